"""Policies that learn from the log have not seen what they are asked about."""

import json
from dataclasses import replace
from typing import ClassVar

import pyarrow.parquet as pq
import pytest

from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.offline.estimation.bandit_log import folds_of
from ragbandit.router.offline.replay import memory_log, replay
from ragbandit.router.policies.algorithms.fixed import Uniform
from ragbandit.router.policies.base import PolicyOutput
from ragbandit.shared.errors import ConfigError, InvalidInput, PolicyFault
from tests.support.logs.log_rows import plain_rows
from tests.support.logs.replay_logs import close, judged, lived_rows, rows_from


def test_features_are_made_where_they_are_missing(settings):
    """Rows without features are encoded again, and policies then do as with the features that were logged."""
    configuration, encoder = settings(), HashingEncoder(8)
    rows = [
        replace(row, decision=replace(row.decision, features=vector, encoder_hash=encoder.hash))
        for row, vector in zip(plain_rows(60), encoder.encode([f"question {n}?" for n in range(60)]), strict=True)
    ]
    bare = [replace(row, decision=replace(row.decision, features=None)) for row in rows]
    kept = judged(rows, "linucb", settings=configuration, encoder=lambda: pytest.fail("nothing to encode"))
    again = judged(bare, "linucb", settings=configuration, encoder=lambda: encoder)
    for one, other in zip(kept.candidates, again.candidates, strict=True):
        close(other, one)


def test_features_that_cannot_be_made(settings):
    """A policy that needs features of rows without them is refused where there is no encoder, or no question."""
    bare = [replace(row, decision=replace(row.decision, features=None)) for row in lived_rows(20)]
    with pytest.raises(ConfigError, match="a policy needs features"):
        judged(bare, "linucb", settings=settings())
    silent = rows_from({"arms": ["a", "b"], "pmf": [0.5, 0.5], "arm": "a", "reward": 1.0} for _ in range(5))
    with pytest.raises(InvalidInput, match="has no question") as caught:
        judged(silent, "linucb", settings=settings(), encoder=lambda: HashingEncoder(8))
    assert caught.value.field == "text"


class Spy(Uniform):
    """A policy that always says the same, and tells what it had learned when it was asked about a question."""

    said: ClassVar[tuple[float, ...]] = (0.2, 0.3, 0.5)
    #: (question asked about, decisions learned until then)
    heard: ClassVar[list[tuple[str, tuple[str, ...]]]] = []

    def __init__(self) -> None:
        super().__init__()
        self.learned = []

    def pmf(self, queries, *, features, arms):
        self.heard.extend((query.id, tuple(self.learned)) for query in queries)
        return [PolicyOutput(pmf=self.said) for _ in queries]

    def learn(self, update):
        self.learned.append(update.decision_id)


@pytest.fixture
def spy(monkeypatch):
    """Spy in the registry, with nothing heard yet."""
    monkeypatch.setattr("ragbandit.router.policies.built_in_policies", lambda: {"spy": Spy})
    monkeypatch.setattr(Spy, "heard", [])
    return Spy


@pytest.mark.parametrize("folds", [2, 5])
def test_crossfitted_policy_never_saw_the_row(spy, folds):
    """A policy is asked once about every row, having learned all questions of the other folds in the log's order."""
    rows = lived_rows(60)
    ids = [row.decision.id for row in rows]
    judged(rows, "spy", folds=folds)
    fold = dict(zip(ids, folds_of(memory_log(rows).read().log.questions, folds=folds), strict=True))
    assert sorted(asked for asked, _ in spy.heard) == sorted(ids)
    for asked, learned in spy.heard:
        assert list(learned) == [each for each in ids if fold[each] != fold[asked]]


def test_a_written_column_gives_the_numbers_of_its_policy(tmp_path, settings):
    """The column of a policy, added to the rows, is estimated as the policy; both formats have the same column."""
    rows, options = lived_rows(90), {"candidates": ["linucb", "uniform"]}
    log = memory_log(rows, settings=settings())
    expected = replay(log, pmfs=tmp_path / "pmfs.jsonl", **options)
    replay(log, pmfs=tmp_path / "pmfs.parquet", **options)
    written = [json.loads(line) for line in (tmp_path / "pmfs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert written == pq.read_table(tmp_path / "pmfs.parquet").to_pylist()
    assert list(written[0]) == ["id", "arms", "arm", "pmf", "linucb"]
    assert [(row["id"], row["pmf"]) for row in written] == [(row.decision.id, list(row.decision.pmf)) for row in rows]
    again = [replace(row, extra={"mine": line["linucb"]}) for row, line in zip(rows, written, strict=True)]
    result = replay(memory_log(again, settings=settings()), candidates=["column:mine", "uniform"])
    for name in ("reward", "cost", "weights", "shares", "bounds"):
        close(getattr(result.candidates[0], name), getattr(expected.candidates[0], name), within=1e-12)


def test_columns_that_nobody_learns_are_not_written(tmp_path):
    """A file for columns is refused if no candidate learns, or if its name has no known form."""
    with pytest.raises(InvalidInput, match="no candidate learns"):
        replay(memory_log(lived_rows(10)), candidates=["uniform"], pmfs=tmp_path / "pmfs.jsonl")
    with pytest.raises(InvalidInput, match="does not show the format"):
        replay(memory_log(lived_rows(10)), candidates=["linucb"], pmfs=tmp_path / "pmfs.txt")
    assert not list(tmp_path.iterdir())


def test_refused_rows_are_counted(spy, monkeypatch):
    """Rows that a policy would not learn are counted once, however many folds offered them."""

    def learn(_, update):
        if update.arm == "slow":
            raise PolicyFault("no")

    monkeypatch.setattr(spy, "learn", learn)
    rows = lived_rows(40)
    (judgements,) = judged(rows, "spy").candidates
    slow = sum(row.decision.arm == "slow" for row in rows)
    assert judgements.notes == (f"the policy would not learn {slow} rows",)
