"""A row that cannot be used is named by line, field, reason and remedy; its neighbours go on."""

import tempfile
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from ragbandit.router.offline.logs import BadRow, Logged, write_rows
from ragbandit.router.offline.logs.jsonl import KEYS, read_rows
from ragbandit.shared.types import Reward
from tests.support.logs.log_rows import JSON, LEAST, plain_rows, same, write_json

PARTS = [part.name for part in fields(Reward)]

#: fault of a row -> (field in the error, word of its reason or remedy)
WRONG = {
    "propensity 0": ({"propensity": 0}, "propensity", "outside (0, 1]"),
    "neither pmf nor propensity": ({"pmf": None}, "pmf", "or as propensity that of the drawn arm"),
    "propensity of nobody": ({"propensity": 0.2 + 1e-6}, "propensity", "pmf gives the drawn arm"),
    "propensity too small": ({"pmf": [1.0, 1e-200]}, "propensity", "too small to be a probability that was drawn"),
    "pmf sums to less": ({"pmf": [0.7, 0.2]}, "pmf", "sums to 0.9"),
    "pmf negative": ({"pmf": [1.2, -0.2]}, "pmf", "negative"),
    "pmf NaN": ({"pmf": [float("nan"), 0.2]}, "pmf", "finite number"),
    "pmf too short": ({"pmf": [1.0]}, "pmf", "does not fit"),
    "pmf of other arms": ({"pmf": {"fast": 0.8, "dear": 0.2}}, "pmf", "does not fit"),
    "arm not offered": ({"arm": "dear"}, "arm", "not among fast, deep"),
    "arm twice": ({"arms": ["deep", "deep"]}, "arms", "twice"),
    "one arm": ({"arms": ["deep"], "pmf": [1.0]}, "arms", "nothing to choose"),
    "arm without name": ({"arms": ["deep", ""]}, "arms", "at least 1 character"),
    "reward infinite": ({"reward": float("inf")}, "reward.value", "finite number"),
    "reward out of bounds": ({"reward": 1.5}, "reward", "outside [-1, 1]"),
    "reward without value": ({"reward": {"cost": 1}}, "reward.value", "missing"),
    "reward of an unknown part": ({"reward": {"value": 1, "price": 1}}, "reward.price", "not permitted"),
    "reward unlike its parts": ({"reward": {"value": 0.9, "quality": 0.5, "cost": 0}}, "reward.value", "its parts"),
    "features of another width": ({"features": [1.0, 2.0]}, "features", "the first row has 3"),
    "features no base64": ({"features": "!"}, "features", "base64 of float32"),
    "id missing": ({"id": None}, "id", "missing"),
    "id twice": ({"id": "first"}, "id", "is on line 1"),
    "text NUL": ({"text": "a\x00b"}, "text", "NUL"),
    "text half": ({"text": "\ud800"}, "text", "half"),
    "context no object": ({"context": [1]}, "context", "Give an object"),
    "scores too few": ({"scores": [1.0]}, "scores", "1 numbers for 2 arms"),
    "budget unknown": ({"budget": {"hours": 1}}, "budget.hours", "not permitted"),
    "seed too large": ({"seed": str(2**64)}, "seed", "less than"),
    "explored two": ({"explored": 2}, "explored", "true or false"),
    "milliseconds": ({"made_at": 1_767_225_600_000}, "made_at", "seconds since 1970, or a time in ISO 8601: these"),
}
FIRST = LEAST | {"id": "first", "features": [1.0, 2.0, 3.0]}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_row(tmp_path, case):
    """What cannot be true is named with line, field, reason and remedy, and the row after it is read."""
    change, field, reason = WRONG[case]
    rows = [FIRST, LEAST | change, LEAST | {"id": "last"}]
    good, bad, last = read_rows(write_json(tmp_path / "log.jsonl", rows))
    assert isinstance(bad, BadRow)
    assert (bad.line, bad.field) == (2, field)
    assert reason in f"{bad.reason} ({bad.remedy})"
    assert bad.remedy
    assert (type(good), type(last)) == (Logged, Logged)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"[1]", "is a list"),
        (b"\xff", "not UTF-8"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_no_json(tmp_path, line, reason):
    """A line without a JSON object is one bad row."""
    name = "log.jsonl"
    write_rows(tmp_path / name, plain_rows(2))
    first, last = (tmp_path / name).read_bytes().splitlines()
    (tmp_path / name).write_bytes(b"\n".join([first, line, last]))
    good, bad, rest = read_rows(tmp_path / name)
    assert (type(good), type(rest)) == (Logged, Logged)
    assert bad.line == 2
    assert reason in bad.reason


def test_arm_alone_of_a_ledger(tmp_path):
    """A row that names its version may have one arm: the caller allowed no other one."""
    (row,) = plain_rows(1, arms=("only",))
    write_rows(tmp_path / "log.jsonl", [row])
    (back,) = read_rows(tmp_path / "log.jsonl")
    assert isinstance(back, Logged)
    write_rows(tmp_path / "log.jsonl", [replace(row, decision=replace(row.decision, version=""))])
    (bad,) = read_rows(tmp_path / "log.jsonl")
    assert bad.field == "arms"


KEYS = st.sampled_from([*KEYS, "extra"])


@given(change=st.dictionaries(KEYS, JSON, max_size=3), parts=st.dictionaries(st.sampled_from(PARTS), JSON, max_size=3))
@settings(max_examples=30, deadline=None)
def test_any_json_is_a_row_or_a_bad_row(change, parts):
    """Reading goes on with any JSON under the known keys, and every row that is read can be written."""
    row = LEAST | change | ({"reward": parts} if parts else {})
    with tempfile.TemporaryDirectory() as folder:
        found = list(read_rows(write_json(Path(folder) / "log.jsonl", [row, LEAST | {"id": "last"}])))
        assert len(found) == 2
        taken = [row for row in found if isinstance(row, Logged)]
        assert taken
        write_rows(Path(folder) / "again.jsonl", taken)
        assert all(map(same, taken, read_rows(Path(folder) / "again.jsonl")))
