"""A simulated pass against a live service, and over processes."""

import multiprocessing

import numpy as np
import pytest

from ragbandit.examples.handbook.learning_curve import played
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.passes import Learning, decision_id, table_rows
from ragbandit.router.policies import untrained_policy
from ragbandit.router.serving.checks.reports import make_outcome
from tests.support.examples import made_table


def table_of(count):
    correct, steps = np.random.default_rng(0).random((2, count, 3))
    return made_table(correct.tolist(), steps.tolist(), arms=("no_retrieval", "single_step", "multi_step"))


@pytest.mark.parametrize(("name", "params"), [("mba", {"ridge": 3.0}), ("linucb", {})])
def test_learns_what_a_live_service_learns(make_world, name, params):
    """A Router and a Learner on SQLite, fed the same questions and ratings, decide alike and end at the same sha256."""
    table = table_of(16)
    sections = {"policy": {"name": name, "params": params}, "reward": {"weight": 0.04}}
    live = make_world(**sections)
    live.router.service.secret = None  # a simulation has no store, so its seeds are computed from the ids only
    encoder, settings = live.router.service.encoder, Settings(**sections)
    features = encoder.encode([row.question for row in table.rows])
    rows = table_rows(
        table, features=features, encoder_hash=encoder.hash, reward=settings.reward, label=settings.policy.label
    )
    learning = Learning(untrained_policy(settings.policy_definition), rows=rows, settings=settings.policy, seed=3)
    for place, row in enumerate(table.rows):
        there = live.route(row.question, key=decision_id(rows[3 * place], seed=3))
        steps = row.steps[there.arm]
        live.store.add_outcome(make_outcome(decision_id=there.id, now=live.now, status="answered", steps=steps))
        live.feedback(there, rating=row.correct[there.arm])
        assert live.learn() == 1
        here = learning.step(place)
        for key in ("arm", "arms", "pmf", "propensity", "scores", "facts", "seed", "explored", "fault"):
            assert getattr(here, key) == getattr(there, key), key
    assert (learning.labels, learning.fault) == (16, None)
    mine = live.sha256(learning.policy)
    assert mine == live.sha256(live.replayed()) == live.sha256(live.learner().policy)


def passes(jobs):
    features = np.random.default_rng(0).normal(size=(24, 8)).astype(np.float32)
    rows = table_rows(table_of(24), features=features, encoder_hash="", reward=RewardSettings(), label="main")
    return played(rows, settings=Settings(), seeds=3, jobs=jobs)


def test_another_processor_draws_the_same_arms(other_processor):
    """A policy that learns while it decides draws the same arms, in the same order, on another processor."""
    for here, there in zip(passes(1), other_processor.call(passes, 1), strict=True):
        assert np.array_equal(here.drawn, there.drawn)
        assert here.earned == pytest.approx(there.earned, rel=1e-9)


def test_processes_change_nothing():
    """The passes are the same with one process and with two, in the order of the seeds."""
    alone, together = map(passes, (1, 2))
    assert repr(alone) == repr(together)
    assert not multiprocessing.active_children()
