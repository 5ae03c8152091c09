"""A simulated pass: what a policy is given, what it learns and earns, and when it has earned what a fixed arm earns."""

from typing import ClassVar

import numpy as np
import pytest

from ragbandit.examples.handbook.learning_curve import play
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.offline.passes import Played, break_even, table_rows
from ragbandit.router.policies.algorithms.fixed import Uniform
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
    monkeypatch.setattr("ragbandit.router.policies.built_in_policies", lambda: {"spy": Spy})
    monkeypatch.setattr(Spy, "asked", [])
    monkeypatch.setattr(Spy, "taught", [])

    def passed(table, *, policy=None, **given):
        settings = Settings(policy={"name": "spy", **(policy or {})})
        features = HashingEncoder(16).encode([row.question for row in table.rows])
        rows = table_rows(
            table, features=features, encoder_hash="", reward=settings.reward, label=settings.policy.label
        )
        return play(rows, settings=settings, seed=0, **given)

    return passed


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


def test_the_fallback_decides_if_a_policy_breaks(passed, monkeypatch):
    """If a policy breaks for some questions, the fallback arm answers them, and the first reason is kept."""
    monkeypatch.setattr(Spy, "breaks", frozenset({"0?", "2?"}))
    found = passed(table_of(4), policy={"fallback": "multi_step", "floor": 0.0, "cold_start_floor": 0.0})
    drawn = dict(zip(found.order, found.drawn, strict=True))
    assert (drawn[0], drawn[2], found.fault) == (2, 2, "RuntimeError: broken")


def earning(*earned):
    """A pass with these rewards."""
    return Played(order=np.arange(len(earned)), drawn=np.zeros(len(earned), dtype=np.intp), earned=np.array(earned))


def test_break_even_of_the_middle_pass():
    """The median of three passes is the second; it is None if fewer than half get there."""
    never, early, late, fixed = earning(0, 0, 0, 0), earning(1, 1, 1, 1), earning(0, 0, 1, 1), np.full(4, 0.5)
    assert break_even([never, early, late], fixed=fixed) == (4, pytest.approx(2 / 3))
    assert break_even([never, never, early], fixed=fixed) == (None, pytest.approx(1 / 3))
