"""Summary of the first pass, on passes computed by hand."""

from typing import ClassVar

import numpy as np
import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.simulation import simulate
from ragbandit.router.offline.simulation.measure import LEAST_PREFIX, first_pass, footnotes
from ragbandit.router.offline.simulation.run import Played
from ragbandit.router.policies import POLICIES
from ragbandit.router.policies.kinds.fixed import Uniform
from tests.support.examples import made_table

ARMS = ("low", "high")
PLAIN = Settings(policy={"floor": 0.0, "cold_start_floor": 0.0})


def played(earned, *, order=None):
    """A pass with these rewards."""
    earned = np.array(earned, dtype=np.float64)
    return Played(
        test=np.arange(0),
        shares=np.empty((0, 2)),
        order=np.arange(len(earned)) if order is None else np.array(order),
        drawn=np.zeros(len(earned), dtype=np.intp),
        earned=earned,
        faults=0,
        refused=0,
        reason=None,
        full_information=False,
    )


def said(seeds, *, high, low=0.0, incumbent="high", harm=0.05):
    """The first pass of these runs, on a table of constant rewards."""
    rewards = np.tile([low, high], (500, 1)).astype(np.float64)
    return first_pass(seeds, arms=ARMS, rewards=rewards, incumbent=incumbent, harm=harm)


def table_of(count):
    """`high` is right on every question but each fourth, `low` on these; one step each."""
    return made_table([(float(n % 4 == 0), float(n % 4 != 0)) for n in range(count)], [(1.0, 1.0)] * count, arms=ARMS)


def test_break_even_of_the_middle_pass():
    """The median of three passes is the second; it is None if fewer than half get there."""
    never, early, late = [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1]
    found = said([[played(never)], [played(early)], [played(late)]], high=0.5)
    assert (found.break_even, found.break_even_share) == (4, pytest.approx(2 / 3))
    found = said([[played(never)], [played(never)], [played([2, 2, 2, 2])]], high=0.5)
    assert (found.break_even, found.break_even_share) == (None, pytest.approx(1 / 3))


def test_worst_prefix_looks_from_the_hundredth_on():
    """Nothing earned in 50 questions is half of the incumbent's after 100, and less of it later."""
    earned = [0.0] * 50 + [1.0] * 150
    found = said([[played([1.0] * 200), played(earned)]], high=1.0)
    assert (found.worst_prefix, found.worst_after) == (0.5, LEAST_PREFIX)
    assert found.harmed == 0.5


def test_harm_is_what_the_bound_allows():
    """Four of a hundred lost is within a harm of .05, and not within one of .03."""
    run = played([0.0] * 4 + [1.0] * 200)
    assert said([[run]], high=1.0, harm=0.05).harmed == 0.0
    assert said([[run]], high=1.0, harm=0.03).harmed == 1.0


def test_simulate_says_it_of_each_learner():
    """Always `low`, against the incumbent `high`: reward, always, break-even and the regret are those of the table."""
    rows = simulate(
        table_of(40), policies={"fixed": {"arm": "low"}}, seeds=2, weights=[0.1], settings=PLAIN, incumbent="high"
    )
    row = rows[0]
    found = row.first_pass
    assert (found.incumbent, found.best_fixed, found.passes, found.questions) == ("high", "high", 10, 32)
    assert found.reward == pytest.approx(0.25 - 0.1)
    assert found.always == pytest.approx({"low": 0.15, "high": 0.65})
    assert found.oracle == pytest.approx(0.9)
    assert found.break_even is None
    assert row.as_json()["first_pass"]["worst_prefix"] == found.worst_prefix < 0.9
    assert all(other.first_pass is None for other in rows[1:])


class Watched(Uniform):
    """Keeps what it learned, and what it was asked after how many updates."""

    algorithm = "watched"
    taught: ClassVar = []
    asked: ClassVar = []

    def pmf(self, queries, *, features, arms):
        self.asked.append((len(self.taught), [query.text for query in queries]))
        return super().pmf(queries, features=features, arms=arms)

    def learn(self, update):
        self.taught.append(update)


def taught_of(monkeypatch, *, count=200, **given):
    """(updates, rows) of two policies that draw otherwise: the one that is watched, and always high."""
    monkeypatch.setitem(POLICIES, "watched", f"{__name__}:Watched")
    monkeypatch.setattr(Watched, "taught", [])
    monkeypatch.setattr(Watched, "asked", [])
    policies = {"watched": {}, "fixed": {"arm": "high"}}
    rows = simulate(table_of(count), policies=policies, folds=2, seeds=1, settings=PLAIN, **given)
    return list(Watched.taught), rows[:2]


def test_warm_rows_are_learned_with_all_arms_and_not_asked(monkeypatch):
    """The first rows of a pass come as K updates each, before the first question; the pass is shorter by them."""
    taught, (*rows, _) = taught_of(monkeypatch, count=20, warm=3)
    asked = Watched.asked
    assert rows[0].first_pass.questions == 7
    first = taught[:6]
    assert [update.arm for update in first] == list(ARMS) * 3
    assert {update.propensity for update in first} == {0.5}
    assert [update.seq for update in taught[:13]] == list(range(1, 14))
    assert asked[0][0] == 6
    assert not {update.query.text for update in first} & {text for _, texts in asked[:7] for text in texts}


def test_few_labels_are_learned_and_all_questions_earn(monkeypatch):
    """A share of the decisions is learned, more of them with a greater share; the reward is over all questions."""
    (everything, whole), (some, few), (least, _) = (
        ([one.query.text for one in taught], rows)
        for taught, rows in (taught_of(monkeypatch, labelled=share) for share in (1.0, 0.3, 0.05))
    )
    assert (len(everything), len(set(everything))) == (200, 200)
    assert 40 <= len(some) <= 80
    assert set(least) < set(some)
    assert few[0].first_pass.labels == len(some) / 2 == few[1].first_pass.labels  # the same ones for every policy
    assert whole[0].first_pass.labels == 100 == few[0].first_pass.questions
    assert few[0].first_pass.reward == whole[0].first_pass.reward  # its draws do not hang on what it learned
    assert any(
        f"watched, lambda 0.05, {len(some) / 2:.1f} labels a pass, 2 orders of 100" in one for one in footnotes(few)
    )
