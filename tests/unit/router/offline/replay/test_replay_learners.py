"""Snapshots and policies that learn from the log must not have seen what they are asked about."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from ragbandit.router.config.settings import FLOORS
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.learning.snapshots import SnapshotFiles, pack
from ragbandit.router.offline.estimation.bandit_log import folds_of
from ragbandit.router.offline.replay import Plan, memory_log, parse_candidates, replay
from ragbandit.router.offline.replay.policy_pmfs import lessons
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.algorithms.fixed import Uniform
from ragbandit.router.policies.base import PolicyOutput, apply
from ragbandit.shared.errors import ConfigError, InvalidInput, PolicyFault
from ragbandit.shared.types import PolicyLabel
from tests.support.logs.log_rows import plain_rows
from tests.support.logs.replay_logs import ARMS, close, judged, lived_rows, rows_from, with_text

# ------------------------------------------------------------------------------------------------------------ snapshots


def snapshot_of(rows, settings, *, label="imported", encoder_hash="", name="linucb"):
    """A snapshot of a policy that learned these rows, in the folder of these settings; its version."""
    policy = make_policy(name, params={})
    for update in lessons(memory_log(rows).read().log, place="line", plan=Plan()):
        assert apply(policy, update)
    info, tensors, facts = pack(
        policy, label=PolicyLabel(label), last_seq=rows[-1].seq, encoder_hash=encoder_hash, now=0.0
    )
    files = SnapshotFiles(settings.snapshot_root)
    files.write(info, tensors, facts)
    return info.version


def fresh_rows(count):
    """Rows of `lived_rows` that ask a question each."""
    return [with_text(row, f"question {number}") for number, row in enumerate(lived_rows(count))]


LEFT_OUT = "rows are left out: a snapshot has learned them, or may have, or has learned their question"


def test_snapshot_is_not_judged_on_its_lessons(settings):
    """Rows that a snapshot has learned are left out, and a note says how many; the rest is judged by it as it was."""
    made, rows = settings(), fresh_rows(200)
    version = snapshot_of(rows[:120], made)
    found = judged(rows, version, "uniform", settings=made)
    assert (found.rows, found.notes[0]) == (80, f"120 {LEFT_OUT}")
    assert found.candidates[0].described == "linucb after 120 updates of imported"
    close(found.candidates[0].reward, judged(rows[120:], version, settings=made).candidates[0].reward)
    policy, _ = SnapshotFiles(made.snapshot_root).load(version)
    features = np.stack([row.decision.features for row in rows[120:]])
    queries = [row.decision.query for row in rows[120:]]
    shares = np.mean([out.pmf for out in policy.pmf(queries, features=features, arms=[ARMS] * 80)], axis=0)
    floor = FLOORS / 3
    assert [found.candidates[0].shares[arm] for arm in ARMS] == pytest.approx(
        (1 - 3 * floor) * shares + floor, abs=0.05
    )


def test_features_are_made_where_they_are_missing(settings):
    """Rows without features are encoded again, and policies then do as with the features that were logged."""
    made, encoder = settings(), HashingEncoder(8)
    rows = [
        replace(row, decision=replace(row.decision, features=vector, encoder_hash=encoder.hash))
        for row, vector in zip(plain_rows(60), encoder.encode([f"question {n}?" for n in range(60)]), strict=True)
    ]
    bare = [replace(row, decision=replace(row.decision, features=None)) for row in rows]
    version = snapshot_of(rows[:20], made, label="main", encoder_hash=encoder.hash)
    kept = judged(rows, version, "linucb", settings=made, encoder=lambda: pytest.fail("nothing to encode"))
    again = judged(bare, version, "linucb", settings=made, encoder=lambda: encoder)
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


# -------------------------------------------------------------------------------------------------- policies that learn


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


def test_refused_rows_are_counted(spy, monkeypatch):
    """Rows that a policy would not learn are counted once, however many folds offered them."""

    def learn(_, update):
        if update.arm == "slow":
            raise PolicyFault("no")

    monkeypatch.setattr(spy, "learn", learn)
    rows = lived_rows(40)
    (found,) = judged(rows, "spy").candidates
    slow = sum(row.decision.arm == "slow" for row in rows)
    assert found.notes == (f"the policy would not learn {slow} rows",)


@pytest.mark.parametrize(("name", "params"), [("adaptive_rag", {}), ("multi_label", {})])
def test_untrained_policies_are_refused(name, params):
    """A classifier that nobody trained learns nothing from a log: it is refused, not judged as uniform."""
    asked = parse_candidates([name], params={name: params})
    with pytest.raises(ConfigError, match="is not trained, and does not learn from a log") as caught:
        replay(memory_log(lived_rows(10)), candidates=asked)
    assert caught.value.field == (f"{name}.params.trained" if name == "budget" else f"{name}.trained")
    assert "ragbandit policy train" in caught.value.remedy
    assert f"--param {caught.value.field}=FOLDER" in caught.value.remedy
