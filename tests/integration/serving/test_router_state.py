"""Router.state and Router.parts: what HTTP, metrics and command line show; and a Router that is not started."""

import threading

import numpy as np
import pytest

from ragbandit import Query, Router
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.learning import learner
from ragbandit.router.learning.snapshots import SnapshotFiles, snapshot_sha256
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving import router as router_module
from ragbandit.router.serving.setup.bootstrap import make_learner, open_database
from tests.support.readiness import states_of


def test_state_follows_what_happens(make_world):
    """The state has the ledger's counts, the snapshot in use, lags and the jobs that wait."""
    world = make_world()
    before = world.router.state()
    assert (before.serving_last_seq, before.feedback_to_policy_ms.n) == (0, 0)
    world.judged(3)
    world.router.process.notifier.request_answers([world.route(ours=True).id])
    world.learn()
    after = world.router.state()
    assert (after.serving_last_seq, after.feedback_to_policy_ms.n) == (3, 3)
    assert (after.serving, after.label, after.algorithm) == (after.ledger.snapshot, "main", "mba")
    assert (after.ledger.counters.decided, after.ledger.counters.learned) == (4, 3)
    assert after.jobs["answer"] == 1
    assert [arm.state for arm in after.arms] == ["closed"] * 3


def test_a_router_that_is_not_started_does_nothing(settings):
    """Assembling a Router starts no thread and writes nothing; `start` makes it serve."""
    configuration = settings()
    database, threads = open_database(configuration), threading.active_count()
    with Router(configuration, encoder=HashingEncoder(dimension=8), database=database, jobs=MemoryJobs()) as router:
        assert threading.active_count() == threads
        assert (router.ledger.policy_row(), states_of(router.process.readiness)["router"]) == (
            None,
            "its thread has ended, so no question is decided: restart the service",
        )
        router.start()
        assert states_of(router.process.readiness) == {"router": "ok", "database": "ok", "redis": "ok"}
        assert router.route("Who wrote Dracula?").version == router.state().serving


def test_learn_diagnoses_rarely(router, monkeypatch):
    """`learn` keeps its learner and does not diagnose each label: every 50 decisions, and when `status` is asked."""
    made, diagnosed = [], []
    monkeypatch.setattr(learner, "diagnose", lambda *_, **__: diagnosed.append(1))
    monkeypatch.setattr(router_module, "make_learner", lambda *a, **k: made.append(1) or make_learner(*a, **k))
    counts = []
    for number in range(60):
        decision = router.route(f"Who wrote book {number}?")
        router.outcome(decision.id, answer="x", steps=1)
        router.feedback(decision.id, rating=number % 2 == 0)
        assert router.learn() == 1
        counts.append(len(diagnosed))
    assert (counts[48], counts[49], counts[59], len(made)) == (0, 1, 1, 1)
    assert router.route("Who?").version == router.status().snapshot
    assert len(diagnosed) == 2
    assert router.verify().ok


@pytest.mark.parametrize("incumbent", [None, "single_step"])
def test_a_label_costs_no_reading_and_hardly_an_inversion(settings, monkeypatch, incumbent):
    """`learn` hands its policy over: no snapshot is read, and matrices are inverted for new arms and blocks only.

    The policy that decides is the one that the snapshot's files give, and not the learner's own object.
    """
    read, inverted = [], []
    whole, inverse = SnapshotFiles._read, np.linalg.inv
    monkeypatch.setattr(SnapshotFiles, "_read", lambda *a: read.append(1) or whole(*a))
    monkeypatch.setattr(np.linalg, "inv", lambda matrix: inverted.append(len(matrix)) or inverse(matrix))
    configuration, labels = settings(policy={"incumbent": incumbent}), 40
    database = open_database(configuration)
    with Router(configuration, encoder=HashingEncoder(dimension=8), database=database, jobs=MemoryJobs()) as router:
        router.start()
        for number in range(labels):
            decision = router.route(f"Who wrote book {number}?")
            router.outcome(decision.id, answer="x", steps=1)
            router.feedback(decision.id, rating=number % 2 == 0)
            router.learn()
            if number == 0:  # the learner has loaded the first snapshot
                read.clear()
        assert (read, len([size for size in inverted if size > 1]) < labels) == ([], True)
        served, (_, learner) = router.service.serving, next(iter(router._learners.values()))
        loaded, info = SnapshotFiles(configuration.snapshot_root).load(served.version)
        assert served.policy is not learner.policy
        assert snapshot_sha256(served.policy, info=info) == snapshot_sha256(loaded, info=info) == info.sha256
        features, arms = router.encoder.encode(["Who?"])[0], tuple(configuration.arms)
        ours, theirs = (
            pmf_of_one(one, Query(text="Who?"), features=features, arms=arms) for one in (served.policy, loaded)
        )
        assert (ours.pmf, ours.scores) == (pytest.approx(theirs.pmf), pytest.approx(theirs.scores))
