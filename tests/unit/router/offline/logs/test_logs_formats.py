"""Every format gives back what it was given, and a file is whole or not there."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.offline.logs import Logged, write_rows
from ragbandit.router.offline.logs.jsonl import read_rows
from ragbandit.shared.errors import InvalidInput
from tests.support.logs.log_rows import LEAST, logs, plain_rows, same, write_json

NAMES = ["log.jsonl", "log.jsonl.gz", "log.parquet"]


@pytest.mark.parametrize("name", NAMES)
@given(rows=logs())
@settings(max_examples=12, deadline=None)
def test_round_trip(name, rows):
    """Whatever rows a log holds, they come back equal, features to the bit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        assert write_rows(path, rows) == len(rows)
        back = list(read_rows(path))
        assert [Path(folder) / name] == list(Path(folder).iterdir())
    assert len(back) == len(rows)
    for row, again in zip(rows, back, strict=True):
        assert isinstance(again, Logged), again
        assert same(replace(row, extra={}) if name.endswith("parquet") else row, again)


def test_least_row(tmp_path):
    """Five keys make a row; the rest has defaults, and no time or chance is in them."""
    (row,) = read_rows(write_json(tmp_path / "log.jsonl", [LEAST]), defaults=RewardSettings(minimum=0.0, maximum=2.0))
    decision, reward = row.decision, row.reward
    assert (decision.arm, decision.propensity, decision.explored) == ("deep", 0.2, True)
    assert (decision.policy, decision.version, decision.run_by, decision.made_at) == ("imported", "", "caller", 0.0)
    assert (decision.query.text, decision.query.tenant, decision.features) == ("", "default", None)
    assert (reward.value, reward.quality, reward.cost, reward.minimum, reward.maximum) == (0.7, 0.7, 0.0, 0.0, 2.0)
    assert (reward.preset, reward.source, row.seq, row.line) == ("reward", "explicit", 1, 1)


@pytest.mark.parametrize("name", NAMES)
def test_failed_write_leaves_nothing(tmp_path, name):
    """Rows that break off leave no file, and an older file of that name as it was."""

    def broken():
        yield from plain_rows(3)
        raise RuntimeError("the store is gone")

    with pytest.raises(RuntimeError):
        write_rows(tmp_path / name, broken())
    assert list(tmp_path.iterdir()) == []
    write_rows(tmp_path / name, plain_rows(2))
    before = (tmp_path / name).read_bytes()
    with pytest.raises(RuntimeError):
        write_rows(tmp_path / name, broken())
    assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize("name", NAMES)
def test_empty_log(tmp_path, name):
    """A log without rows is refused by the file's name."""
    write_rows(tmp_path / name, [])
    with pytest.raises(InvalidInput, match="has no rows"):
        list(read_rows(tmp_path / name))


def test_truncated_gzip(tmp_path):
    """A gzip that ends too early gives its whole rows, then says where they end."""
    name = "log.jsonl.gz"
    write_rows(tmp_path / name, plain_rows(600))
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    rows = []
    with pytest.raises(InvalidInput, match=r"the last whole row is on line (\d+)") as caught:
        rows.extend(read_rows(tmp_path / name))
    good = [row for row in rows if isinstance(row, Logged)]
    assert 100 < len(good) < 600
    assert f"line {len(rows)}" in caught.value.message
    assert name in caught.value.field


def test_damaged_parquet(tmp_path):
    """A Parquet file that breaks in its middle is refused as an input, not as a crash."""
    write_rows(tmp_path / "log.parquet", plain_rows(5000))
    raw = bytearray((tmp_path / "log.parquet").read_bytes())
    raw[2000:6000] = bytes(4000)
    (tmp_path / "log.parquet").write_bytes(raw)
    with pytest.raises(InvalidInput, match=r"log\.parquet"):
        list(read_rows(tmp_path / "log.parquet"))


def test_format_by_name(tmp_path):
    """A new file's name says the format; the content of a file says how it is read."""
    for name in NAMES:
        write_rows(tmp_path / name, plain_rows(1))
        (tmp_path / name).rename(tmp_path / "log.data")
        assert len(list(read_rows(tmp_path / "log.data"))) == 1
    with pytest.raises(InvalidInput, match=r"end the name in \.jsonl"):
        write_rows(tmp_path / "log.txt", [])
