"""Values of every type that files have mean the same to the reader of columns and to the reader of rows."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.offline.logs import BadRow, Logged
from ragbandit.router.offline.logs.cells import convert_value, gold, mapping, seconds
from ragbandit.router.offline.logs.jsonl import parse_rows, read_rows
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.plain_values import for_json, is_missing, plain
from tests.support.logs.log_rows import LEAST, read_log, write_json

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
SECONDS = NOON.timestamp()
PAIRS = pa.map_(pa.string(), pa.float64())


def of(value, kind=None, *, count=2):
    """A column that has this value in every row."""
    return pa.array([value] * count, kind)


PLAIN = {
    "id": pa.array(["first", "second"]),
    "arms": of(["left", "right"]),
    "pmf": of([0.75, 0.25]),
    "arm": pa.array(["left", "right"]),
    "reward": pa.array([1.0, 0.0]),
    "made_at": of(SECONDS),
    "context": of('{"plan": "team"}'),
}
TAKEN = {
    "seconds": {"made_at": of(NOON, pa.timestamp("s", "UTC"))},
    "ISO 8601": {"made_at": of("2025-03-01T13:00:00+01:00")},
    "seconds as text": {"made_at": of(str(SECONDS))},
    "true and false": {"reward": pa.array([True, False])},
    "numbers as text": {"reward": pa.array(["1.0", " 0 "]), "pmf": of(["0.75", "0.25"])},
    "reward by parts": {"reward": pa.array([{"quality": True, "cost": "0"}, {"quality": False, "cost": None}])},
    "reward as JSON": {"reward": pa.array(['{"value": 1}', "0"])},
    "pmf by arm": {"arms": None, "pmf": of({"left": 0.75, "right": 0.25})},
    "pmf by arm in another order": {"pmf": of({"right": 0.25, "left": 0.75})},
    "pmf of pairs": {"arms": None, "pmf": of([{"name": "left", "p": 0.75}, {"name": "right", "p": 0.25}])},
    "arms with bars": {"arms": of("left| right")},
    "lists of a fixed size": {"pmf": of([0.75, 0.25], pa.list_(pa.float32(), 2))},
    "large": {"pmf": of([0.75, 0.25], pa.large_list(pa.float64())), "arm": PLAIN["arm"].cast(pa.large_string())},
    "missing propensity": {"propensity": pa.array([float("nan"), None])},
    "below 0 by rounding": {"pmf": pa.array([[1.0, -2.7e-17], [-2.7e-17, 1.0]])},
    "above 1 by rounding": {"pmf": pa.array([[1 + 1e-7, 0.0], [0.0, 1 + 1e-7]])},
    "numbers for names": {"id": pa.array([1, 2]), "tenant": of(7)},
    "context as a struct": {"context": of({"plan": "team", "seen": NOON, "seats": None})},
    "flags as text": {"explored": of("no")},
    "columns of others": {"seen": of(NOON), "blob": of(b"\xff"), "far": of(float("inf")), "none": of(None)},
    "durations and times of day": {"took": of(timedelta(seconds=2)), "at": of(time(12, 30))},
    "features as numbers": {"features": of([1, 2])},
    "features as base64": {"features": of("AACAPwAAAEA=")},
}
REFUSED = {
    "year 9999": ({"made_at": of(datetime(9999, 12, 31), pa.timestamp("us"))}, "made_at", "times after 2099"),
    "date of 2150": ({"made_at": of(date(2150, 1, 1))}, "made_at", "times after 2099"),
    "time of day": ({"made_at": of(time(12))}, "made_at", "seconds since 1970"),
    "NaN": ({"reward": pa.array([float("nan"), 0.0])}, "reward", "is missing"),
    "unknown part": ({"reward": of({"value": 1.0, "prize": 1.0})}, "reward.prize", "not permitted"),
    "pmf of others": ({"pmf": of({"left": 0.5, "middle": 0.5})}, "pmf", "does not fit the arms"),
}


def file_of(folder, change):
    columns = {name: column for name, column in (PLAIN | change).items() if column is not None}
    pq.write_table(pa.table(columns), folder / "log.parquet")
    return folder / "log.parquet"


@pytest.mark.parametrize("case", TAKEN)
def test_both_readers_take_it(tmp_path, case):
    """Times, booleans, text, structs, maps and arrays of other widths are what the plain columns are."""
    file = file_of(tmp_path, TAKEN[case])
    rows = list(read_rows(file))
    assert not [row for row in rows if isinstance(row, BadRow)], rows
    (log,) = read_log(file, fields=("plan",))
    assert [row.decision.made_at for row in rows] == log.made_at.tolist() == [SECONDS] * 2
    assert [row.reward.value for row in rows] == log.reward.tolist() == [1.0, 0.0]
    assert [list(row.decision.pmf) for row in rows] == log.pmf.tolist()
    assert [row.decision.arm for row in rows] == [log.arms[place] for place in log.action] == ["left", "right"]
    assert [row.decision.query.context["plan"] for row in rows] == log.fields["plan"].tolist() == ["team"] * 2
    if log.features is not None:
        assert [row.decision.features.tolist() for row in rows] == log.features.tolist() == [[1.0, 2.0]] * 2


@pytest.mark.parametrize("case", REFUSED)
def test_both_readers_refuse_it(tmp_path, case):
    """A value that means something else is named by its row and field, in the same words."""
    change, field, reason = REFUSED[case]
    file = file_of(tmp_path, change)
    bad = next(row for row in read_rows(file) if isinstance(row, BadRow))
    assert (bad.line, bad.field) == (1, field)
    assert reason in f"{bad.reason} {bad.remedy}"
    with pytest.raises(InvalidInput) as caught:
        list(read_log(file, fields=("plan",)))
    said = str(caught.value)
    assert f"log.parquet row 1 {field}" in said or f"line 1 {field} " in said
    assert reason in said


@pytest.mark.parametrize("inner", [False, True])
def test_names_that_stand_twice(tmp_path, inner):
    """A column, or a part of one, that occurs twice is refused by its name before any row is read."""
    parts = pa.StructArray.from_arrays([PLAIN["reward"]] * 2, names=["value", "value"])
    columns = [*PLAIN.items(), ("reward", PLAIN["reward"])] if not inner else [*(PLAIN | {"reward": parts}).items()]
    table = pa.table([column for _, column in columns], names=[name for name, _ in columns])
    pq.write_table(table, tmp_path / "log.parquet")
    for reader in (read_rows, read_log):
        with pytest.raises(InvalidInput, match="occurs twice") as caught:
            list(reader(tmp_path / "log.parquet"))
        assert caught.value.field.endswith(" reward.value" if inner else " reward")


def test_missing_columns_are_named_at_once(tmp_path):
    """A file of another table is refused by what it lacks, whatever the number of its rows."""
    pq.write_table(pa.table({"id": ["a"], "pmf": [[0.5, 0.5]]}), tmp_path / "log.parquet")
    with pytest.raises(InvalidInput, match="no such column") as caught:
        next(read_log(tmp_path / "log.parquet"))
    assert caught.value.field.endswith(" arm")


def test_values_of_numpy_and_pandas():
    """Scalars of numpy, dates, ids and the missing values of data frames are converted by their methods."""
    gone = type("NAType", (), {})()
    record = LEAST | {
        "id": UUID(int=7),
        "made_at": np.datetime64("2025-03-01T12:00:00", "ns"),
        "feedback_at": date(2025, 3, 1),
        "pmf": np.array([0.8, 0.2], np.float32),
        "explored": np.bool_(True),
        "seed": np.uint64(2**63),
        "learned_at": gone,
        "propensity": np.float32("nan"),
        "reward": {"quality": np.float32(0.5), "cost": gone},
    }
    (row,) = parse_rows([(1, lambda: record)], defaults=RewardSettings())
    assert isinstance(row, Logged)
    decision = row.decision
    assert decision.id == str(UUID(int=7))
    assert (decision.made_at, row.feedback_at, decision.explored) == (SECONDS, SECONDS - 43_200, True)
    assert (decision.pmf, decision.seed) == (pytest.approx([0.8, 0.2]), 2**63)
    assert (row.reward.quality, row.reward.cost) == (0.5, 0.0)
    assert (row.learned_at, decision.propensity) == (None, decision.pmf[1])
    assert json.loads(json.dumps({"a": np.int64(3), "b": [np.bool_(True), gone]}, default=for_json)) == {
        "a": 3,
        "b": [True, None],
    }
    with pytest.raises(TypeError, match="not JSON serializable"):
        json.dumps(object(), default=for_json)
    assert (is_missing(gone), is_missing(np.float64("nan")), is_missing(""), plain(Decimal("0.5"))) == (
        True,
        True,
        False,
        0.5,
    )
    with pytest.raises(InvalidInput, match="'x' stands twice"):
        convert_value(mapping, [("x", 1), ("x", 2)], field="context")


def test_json_lines_take_the_same_values(tmp_path):
    """Numbers, flags and times may be text in JSON Lines too, and an object may be its JSON."""
    row = {"id": 5, "arms": '["fast", "deep"]', "pmf": [["fast", 0.8], ["deep", "0.2"]], "arm": "deep", "reward": True}
    more = {"made_at": "2025-03-01T12:00:00Z", "context": '{"plan": "team"}', "explored": 0, "propensity": 0.2 + 1e-8}
    (read,) = read_rows(write_json(tmp_path / "log.jsonl", [row | more]))
    decision = read.decision
    assert (decision.id, decision.arms, decision.pmf) == ("5", ("fast", "deep"), (0.8, 0.2))
    assert (decision.made_at, decision.query.context, decision.explored) == (SECONDS, {"plan": "team"}, False)


def test_empty_texts_and_nulls_are_missing(tmp_path):
    """A converter of CSV writes "" for a missing value, and a struct has null for a missing member."""
    row = {"id": "q1", "arms": ["a", "b"], "pmf": [0.5, 0.5], "arm": "a", "reward": 0.7}
    names = (
        "made_at",
        "context",
        "seq",
        "seed",
        "propensity",
        "scores",
        "features",
        "cost_weight",
        "price",
    )
    empty = dict.fromkeys(names, "") | {"budget": {"rounds": None, "tokens": 9}, "aim": {"quality": None}}
    read, same = (list(read_rows(write_json(tmp_path / "log.jsonl", [row | more]))) for more in (empty, {}))
    query = read[0].decision.query
    assert (query.budget.tokens, dict(query.aim)) == (9, {})
    assert replace(read[0].decision, query=same[0].decision.query) == same[0].decision


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        ("Rome", ["Rome"]),
        (42, ["42"]),
        ([42.0, "x", None, 4.5], ["42", "x", "4.5"]),
        ([["a"]], [["a"]]),
        (None, None),
        ('["Rome", "Roma", 42]', ["Rome", "Roma", "42"]),
        ('["Rome"', ['["Rome"']),
        (["Rome", "", " "], ["Rome"]),
        ("['Rome', 'Roma']", ["Rome", "Roma"]),
        ([""], []),
    ],
)
def test_right_answers_may_be_one_text_or_numbers(sent, answers):
    """A single answer is a list of one, a number is its text, null and blanks are no answer. A list may be JSON."""
    assert gold(sent) == answers


def test_digits_of_a_date_are_a_date():
    """Only as text: the same digits as a number are seconds."""
    midnight = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    times = [seconds(value) for value in ("20260101", " 20260101 ", 20260101, "1767225600")]
    assert times == [midnight, midnight, 20260101.0, midnight]
    with pytest.raises(ValueError, match=r"ISO 8601$"):
        seconds("20261301")
