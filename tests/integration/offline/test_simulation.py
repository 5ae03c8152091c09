"""A simulated pass against a live service, and over processes."""

import multiprocessing

import numpy as np
import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.simulation import Learning, SimulationData, SimulationRun, decision_id, played
from ragbandit.router.serving.checks.reports import made_outcome
from tests.support.examples import made_table


def table_of(count):
    correct, steps = np.random.default_rng(0).random((2, count, 3))
    return made_table(correct.tolist(), steps.tolist(), arms=("no_retrieval", "single_step", "multi_step"))


@pytest.mark.parametrize(("name", "params"), [("mba", {"ridge": 3.0}), ("linucb", {})])
def test_learns_what_a_live_service_learns(make_world, name, params):
    """A Router and a Learner on SQLite, fed the same questions and ratings, decide alike and end at the same sha256."""
    table = table_of(16)
    live = make_world(policy={"name": name, "params": params}, reward={"weight": 0.04})
    live.router.service.secret = None  # a simulation has no store, so its seeds are computed from the ids only
    encoder = live.router.service.encoder
    world = SimulationData(
        table=table,
        settings=Settings(reward={"weight": 0.9}),
        features=encoder.encode([row.question for row in table.rows]),
        encoder_hash=encoder.hash,
    )
    learning = Learning(SimulationRun(policy=name, params=params, weight=0.04, seed=3), world=world)
    for place, row in enumerate(table.rows):
        there = live.route(row.question, key=decision_id(row, seed=3))
        steps = row.steps[there.arm]
        live.store.add_outcome(made_outcome(decision_id=there.id, now=live.now, status="answered", steps=steps))
        live.feedback(there, rating=row.correct[there.arm])
        assert live.learn() == 1
        here = learning.step(place)
        for key in ("arm", "arms", "pmf", "propensity", "scores", "facts", "seed", "explored", "fault"):
            assert getattr(here, key) == getattr(there, key), key
    assert (learning.seq, learning.faults, learning.refused) == (16, 0, 0)
    mine = live.sha256(learning.policy)
    assert mine == live.sha256(live.replayed()) == live.sha256(live.learner().policy)
    assert live.router.verify(deep=True).ok


def test_processes_change_nothing():
    """The passes are the same with one process and with two, in the order of the runs."""
    table = table_of(24)
    features = np.random.default_rng(0).normal(size=(24, 8)).astype(np.float32)
    world = SimulationData(table=table, settings=Settings(), features=features)
    runs = [
        SimulationRun(policy=name, params={}, weight=0.05, seed=seed) for name in ("mba", "uniform") for seed in (0, 1)
    ]
    alone, together = (played(runs, world=world, jobs=jobs) for jobs in (1, 2))
    assert repr(alone) == repr(together)
    assert not multiprocessing.active_children()
