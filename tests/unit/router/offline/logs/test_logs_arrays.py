"""A Parquet file as arrays, equal to what its rows say, whatever the offers and the batches."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from ragbandit.router.offline.estimation.bandit_log import BY_FEATURES, BY_ID, BY_TEXT
from ragbandit.router.offline.logs import parquet, write_rows
from ragbandit.router.offline.logs.batches import drawn_flags
from ragbandit.router.offline.logs.columns import normalised
from ragbandit.shared.errors import InvalidInput
from tests.support.logs.log_rows import LEAST, keys_of, logs, plain_rows, read_log


def whole(logs_):
    """The arrays of all batches, one after the other."""
    pieces = list(logs_)
    names = ("keys", "questions", "recognised_by")
    names += ("action", "pmf", "offered", "reward", "quality", "cost", "raw", "defaulted", "made_at")
    return pieces, {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names}


def expected(rows, arms):
    """The same arrays by a loop over the rows."""
    pmf, offered = np.zeros((len(rows), len(arms))), np.zeros((len(rows), len(arms)), dtype=bool)
    for number, row in enumerate(rows):
        for arm, p in zip(row.decision.arms, row.decision.pmf, strict=True):
            pmf[number, arms.index(arm)], offered[number, arms.index(arm)] = p, True
    texts = normalised(pa.array([row.decision.query.text for row in rows])).to_pylist()
    recognised_by = [
        BY_TEXT if text else BY_ID if row.decision.features is None else BY_FEATURES
        for row, text in zip(rows, texts, strict=True)
    ]
    seen = [
        text or (row.decision.id if way == BY_ID else row.decision.features.astype("<f4").tobytes())
        for row, text, way in zip(rows, texts, recognised_by, strict=True)
    ]
    return {
        "keys": keys_of([row.decision.id for row in rows]),
        "questions": keys_of(seen),
        "recognised_by": recognised_by,
        "action": np.array([arms.index(row.decision.arm) for row in rows]),
        "pmf": pmf,
        "offered": offered,
        "reward": np.array([row.reward.value for row in rows]),
        "quality": np.array([row.reward.quality for row in rows]),
        "cost": np.array([row.reward.cost for row in rows]),
        "raw": np.array([row.reward.preset in ("reward", "default") for row in rows]),
        "defaulted": np.array([row.reward.source == "default" for row in rows]),
        "made_at": np.array([row.decision.made_at for row in rows]),
    }


def assert_same(rows, path, **asked):
    pieces, found = whole(read_log(path, **asked))
    arms = pieces[0].arms
    assert {piece.arms for piece in pieces} == {arms}
    assert arms[: len(rows[0].decision.arms)] == rows[0].decision.arms
    assert set(arms) == {arm for row in rows for arm in row.decision.arms}
    for name, values in expected(rows, list(arms)).items():
        assert np.array_equal(found[name], values), name
    assert min(piece.minimum for piece in pieces) == min(row.reward.minimum for row in rows)
    assert max(piece.maximum for piece in pieces) == max(row.reward.maximum for row in rows)


@given(rows=logs(most=6), batch=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_any_log(rows, batch):
    """Arms that differ in number, name and order between rows land in the right columns, in every batch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        write_rows(path, rows)
        assert_same(rows, path, batch_rows=batch)


def test_more_than_one_row_group(tmp_path, monkeypatch):
    """A file of several row groups, as large as they are to be, is one log, in order."""
    assert parquet.GROUP == 65_536
    monkeypatch.setattr(parquet, "GROUP", 512)
    rows = plain_rows(700)
    write_rows(tmp_path / "log.parquet", rows)
    metadata = pq.ParquetFile(tmp_path / "log.parquet").metadata
    assert [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)] == [512, 188]
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert_same(rows, tmp_path / "log.parquet")


def test_features_and_fields(tmp_path):
    """Features come with their rows, and fields where they are asked for."""
    rows = plain_rows(20)
    write_rows(tmp_path / "log.parquet", rows)
    fields = ("tenant", "version", "device", "missing")
    (log,) = read_log(tmp_path / "log.parquet", fields=fields)
    assert np.array_equal(log.features, np.stack([row.decision.features for row in rows]))
    assert log.fields["device"].tolist() == [row.decision.query.context["device"] for row in rows]
    assert set(log.fields["tenant"]) == {"default"}
    assert set(log.fields["version"]) == {"main-0-none"}
    assert set(log.fields["missing"]) == {""}


@pytest.mark.parametrize("change", [{"features": [1.0]}, {"features": None}, {"encoder_hash": "other"}])
def test_uneven_features(tmp_path, change):
    """Features that are missing in a row, of another width or by another encoder are no features at all."""
    good = LEAST | {"features": [1.0, 2.0], "encoder_hash": "one"}
    pq.write_table(pa.Table.from_pylist([good, good | {"id": "q2"} | change]), tmp_path / "log.parquet")
    (log,) = read_log(tmp_path / "log.parquet")
    assert (len(log), log.features, log.encoder_hash) == (2, None, "")


def test_no_such_column(tmp_path):
    """A column that is not there is named, a candidate's with its first row."""
    write_rows(tmp_path / "log.parquet", plain_rows(2))
    with pytest.raises(InvalidInput, match="line 1 mine: the pmf is missing"):
        next(read_log(tmp_path / "log.parquet", own=("mine",)))
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(InvalidInput, match=r"no such column .*the file has id"):
        next(read_log(tmp_path / "other.parquet"))


@pytest.mark.parametrize(
    ("facts", "is_drawn"),
    [
        ("{}", True),
        ('{"sticky": {"first": "d1"}}', False),
        ('{"killed" : {"arm": "a"}}', False),
        ('{"label_queue": {"asked": true, "q": 0.5, "uniform": false}}', False),
        ('{"label_queue": {"uniform": false, "q": 0.5, "asked":true}}', False),
        ('{"label_queue": {"asked": true, "uniform": true}}', True),
        ('{"judge_sample": {"asked": true, "uniform": false}}', True),  # the judgement is a label
        ('{"entities": {"sticky": {}, "killed": 0.0, "label_queue": {"asked": true, "uniform": false}}}', True),
        ('{"note": "\\"sticky\\": {"}', True),
        ('{"sticky": ', True),
        (None, True),
    ],
)
def test_rows_that_were_not_drawn(facts, is_drawn):
    """A fact of the decision shows that its arm was not drawn; keys and texts inside other facts prove nothing."""
    reward = pa.array([{"judged_by": "label"}])
    batch = pa.RecordBatch.from_arrays([pa.array([facts], type=pa.string()), reward], names=["facts", "reward"])
    assert drawn_flags(batch).tolist() == [is_drawn]
