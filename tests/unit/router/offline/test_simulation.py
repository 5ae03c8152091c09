"""A simulated pass: what a policy is given, what it learns, and what it earns."""

from typing import ClassVar

import numpy as np
import pytest

from ragbandit.router.config.settings import RewardSettings, Settings
from ragbandit.router.encoders.base import HashingEncoder
from ragbandit.router.learning.reward import explicit_reward
from ragbandit.router.offline.simulation import SimulationData, SimulationRun, played, rewards_of
from ragbandit.router.policies import POLICIES
from ragbandit.router.policies.kinds.fixed import Uniform
from ragbandit.router.serving.checks.reports import made_feedback, made_outcome
from tests.support.examples import made_table


def table_of(count):
    """Every number of `correct` and `steps` is another one."""
    correct, steps = np.random.default_rng(0).random((2, count, 3))
    return made_table(correct.tolist(), steps.tolist())


class Spy(Uniform):
    """Keeps everything that it was given, and has no pmf for some questions."""

    algorithm = "spy"
    needs = frozenset({"text", "features"})
    asked: ClassVar = []
    taught: ClassVar = []
    breaks: ClassVar = frozenset()

    def pmf(self, queries, *, features, arms):
        self.asked.append((tuple(queries), features, tuple(arms)))
        if self.breaks & {query.text for query in queries}:
            raise RuntimeError("broken")
        return super().pmf(queries, features=features, arms=arms)

    def learn(self, update):
        self.taught.append(update)
        super().learn(update)


@pytest.fixture
def passed(monkeypatch):
    """Returns the pass of the spy over a table."""
    monkeypatch.setitem(POLICIES, "spy", f"{__name__}:Spy")
    monkeypatch.setattr(Spy, "asked", [])
    monkeypatch.setattr(Spy, "taught", [])

    def play(table, **given):
        features = HashingEncoder(16).encode([row.question for row in table.rows])
        world = SimulationData(table=table, **{"settings": Settings(), "features": features, **given})
        [found] = played([SimulationRun(policy="spy", params={}, weight=0.05, seed=0)], world=world, jobs=1)
        return found

    return play


def test_only_the_drawn_arm_is_revealed(passed):
    """A pass asks each question once. An update has the drawn arm's quality and steps, no number of another arm, and
    nothing that a policy gets has the id of a row, which may spell its data set.
    """
    table = table_of(30)
    found = passed(table)
    assert sorted(found.order) == list(range(30))
    assert [table.arms[arm] for arm in found.drawn] == [update.arm for update in Spy.taught]
    by_text = {row.question: row for row in table.rows}
    for update in Spy.taught:
        row = by_text[update.query.text]
        assert (update.reward.quality, update.reward.cost) == (row.correct[update.arm], row.steps[update.arm])
        for arm in set(table.arms) - {update.arm}:
            assert repr(row.correct[arm]) not in repr(update)
            assert repr(row.steps[arm]) not in repr(update)
    assert "'q1'" not in repr(Spy.asked) + repr(Spy.taught)


def test_few_labels_are_learned_and_all_questions_earn(passed):
    """A share of the decisions is learned, more of them with a greater share; the reward is over all questions."""
    table, found, learned = table_of(200), [], []
    for share in (1.0, 0.3, 0.05):
        Spy.taught.clear()
        found.append(passed(table, labelled=share))
        learned.append({update.query.text for update in Spy.taught})
    assert [one.labels for one in found] == [len(texts) for texts in learned]
    assert (found[0].labels, 40 <= found[1].labels <= 80) == (200, True)
    assert learned[2] < learned[1]
    assert np.array_equal(found[0].earned, found[2].earned)  # draws of `uniform` do not depend on what it learned


def test_faults_are_counted_and_the_fallback_is_played(passed, monkeypatch):
    """If a policy breaks for some questions, the fallback arm answers them, and the first reason is kept."""
    monkeypatch.setattr(Spy, "breaks", frozenset({"0?", "2?"}))
    found = passed(
        table_of(4), settings=Settings(policy={"fallback": "multi_step", "floor": 0.0, "cold_start_floor": 0.0})
    )
    drawn = dict(zip(found.order, found.drawn, strict=True))
    assert (drawn[0], drawn[2], found.faults, found.reason) == (2, 2, 2, "RuntimeError: broken")


def test_rewards_are_those_of_the_learner():
    """The rewards of a table equal what router.learning.reward computes from a rating and an outcome, bit for bit."""
    reward, table = RewardSettings(weight=0.5, cost={"steps": 1.7}, minimum=-0.5, maximum=0.6), table_of(50)
    found = rewards_of(table, weight=0.5, price=1.7, bounds=(-0.5, 0.6))
    for value, rating, steps in zip(found.flat, table.correct.flat, table.steps.flat, strict=True):
        rated = made_feedback(decision_id="d", settings=None, now=0.0, rating=rating)
        outcome = made_outcome(decision_id="d", now=0.0, status="answered", steps=steps)
        assert value == explicit_reward([rated], outcome=outcome, settings=reward, how="first").value
    assert {-0.5, 0.6} <= set(found.ravel().tolist())
