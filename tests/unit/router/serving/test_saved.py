"""What was saved against always one arm: no number of an arm that was hardly tried, and intervals that hold."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.serving.overview import saved_of
from ragbandit.router.storage.totals.differences import comparisons
from ragbandit.shared.evidence import FEWEST_EFFECTIVE
from ragbandit.shared.types import ArmTotals

NAMES = (
    *("compared", "difference", "difference_squares", "weight", "weight_squares"),
    *("expected_squares", "expected_cubes", "reward_range"),
)
#: of the arms of a policy that all but keeps to its incumbent: the incumbent, rare ones, one drawn about twice in 600
#: questions, and one drawn never
RARE = (0.9665, 0.02, 0.01, 0.0033, 0.0002)
RATED = 0.3


class MadeWorld:
    """Judged questions with a known truth. pmf, chance (of a right answer), scores: shape (rows, arms)."""

    def __init__(self, draw, *, pmf, chance, scores) -> None:
        rows, arms = pmf.shape
        at, every = np.arange(rows), np.arange(arms)
        self.pmf, self.scores = pmf, scores
        self.action = (draw.random((rows, 1)) > np.cumsum(pmf, axis=1)).sum(axis=1).clip(max=arms - 1)
        self.reward = (draw.random(rows) < chance[at, self.action]).astype(float)
        self.mine = self.action[:, None] == every
        #: what the policy earned beyond always each arm, over the questions so far, shape (rows, arms)
        self.truth = np.cumsum((pmf * chance).sum(axis=1, keepdims=True) - chance, axis=0) / (at + 1)[:, None]
        policy = (pmf * scores).sum(axis=1) + self.reward - scores[at, self.action]
        always = scores + self.mine * (self.reward[:, None] - scores) / pmf
        found = policy[:, None] - always
        ones = np.ones_like(pmf)
        amounts = (ones, found, found**2, self.mine / pmf, self.mine / pmf**2, 1.0 / pmf, 1.0 / pmf**2, ones)
        self._sums = {name: np.cumsum(of, axis=0) for name, of in zip(NAMES, amounts, strict=True)}
        self._unrated = draw.binomial(round(rows * (1.0 / RATED - 1.0)), pmf.mean(axis=0))

    def totals(self, arm: int, *, rows: int) -> ArmTotals:
        """The totals of an arm after so many judged questions."""
        judged = int(self.mine[:rows, arm].sum())
        sums = {name: float(of[rows - 1, arm]) for name, of in self._sums.items()}
        sums["compared"] = rows
        decided = judged + int(self._unrated[arm] * rows / len(self.action))
        return replace(ArmTotals(), decided=decided, learned=judged, **sums)


def made_world(draw, *, pmf, chance, scores, rows=2000) -> MadeWorld:
    """A world in which every question is alike. scores: of every arm, or None for their mean so far."""
    given = {"pmf": np.tile(pmf, (rows, 1)), "chance": np.tile(chance, (rows, 1))}
    if scores is not None:
        return MadeWorld(draw, **given, scores=np.full((rows, len(pmf)), scores))
    plain = MadeWorld(draw, **given, scores=np.zeros((rows, len(pmf))))
    right = np.cumsum(plain.mine * plain.reward[:, None], axis=0) - plain.mine * plain.reward[:, None]
    drawn = np.cumsum(plain.mine, axis=0) - plain.mine
    return MadeWorld(draw, **given, scores=(right + 0.5) / (drawn + 1.0))


def test_the_totals_of_a_made_world_are_those_that_are_kept():
    """Row by row the sums of these tests are the ones that a learner adds to the hourly totals."""
    draw = np.random.default_rng(5)
    pmf = draw.dirichlet(np.ones(3), size=60) * 0.9 + 0.1 / 3.0
    world = MadeWorld(draw, pmf=pmf, chance=np.full((60, 3), 0.5), scores=draw.random((60, 3)))
    sums = [dict.fromkeys(NAMES, 0.0) for _ in range(3)]
    for p, scores, drawn, reward in zip(pmf, world.scores, world.action.tolist(), world.reward, strict=True):
        row = {"pmf": p, "scores": scores, "drawn": drawn, "reward": reward}
        for arm, amounts in comparisons(**row, minimum=0.0, maximum=1.0):
            for name, amount in amounts.items():
                sums[arm][name] += amount
    for arm in range(3):
        totals = world.totals(arm, rows=60)
        assert {name: getattr(totals, name) for name in NAMES} == pytest.approx(sums[arm])


@pytest.mark.parametrize(
    ("right", "scores"),
    [(0.95, None), (0.7, None), (0.1, None), (0.95, 0.0), (0.1, 1.0)],
    ids=["better-learned", "alike-learned", "worse-learned", "better-pessimistic", "worse-optimistic"],
)
def test_no_number_of_an_arm_that_was_hardly_tried_and_the_others_hold(scores, right):
    """Below 10 effective rows there is none; from there on at most 5 % of the worlds ever miss, at any of 20 looks."""
    draw, worlds = np.random.default_rng(11), 60
    missed, printed, untried = np.zeros(5), np.zeros(5), np.zeros(5)
    for _ in range(worlds):
        world = made_world(draw, pmf=RARE, chance=(0.7, right, right, right, right), scores=scores)
        for arm in range(5):
            miss = False
            for rows in range(100, 2001, 100):
                totals = world.totals(arm, rows=rows)
                saved = saved_of(totals)
                if totals.effective < FEWEST_EFFECTIVE:
                    assert (saved.difference, saved.low, saved.high) == (None, None, None)
                    assert saved.missing.startswith(f"not tried enough: {totals.decided:,} draw")
                    untried[arm] += 1
                else:
                    assert saved.missing is None
                    printed[arm] += 1
                    miss |= not saved.low <= world.truth[rows - 1, arm] <= saved.high
            missed[arm] += miss
    assert untried[3:].tolist() == [20 * worlds] * 2
    assert (printed[:3] > 0).all()
    assert (missed <= worlds * 0.05 + 3.0 * math.sqrt(worlds * 0.05 * 0.95)).all()


def test_an_arm_that_is_frequent_on_some_questions_and_rare_on_others():
    """What it is worth where it is rare shows late: from 10 effective rows on at most 5 % of the worlds ever miss."""
    draw, worlds, rows, missed = np.random.default_rng(17), 100, 4000, 0
    for _ in range(worlds):
        rare = draw.random((rows, 1)) < 0.5
        pmf = np.where(rare, (0.97, 0.02, 0.01), (0.2, 0.3, 0.5))
        chance = np.where(rare, (0.7, 0.5, 0.1), (0.7, 0.5, 0.9))
        world = MadeWorld(draw, pmf=pmf, chance=chance, scores=np.ones((rows, 3)))
        found = [(look, saved_of(world.totals(2, rows=look))) for look in range(100, rows + 1, 100)]
        judged = [(saved, world.truth[look - 1, 2]) for look, saved in found if saved.missing is None]
        assert judged
        missed += any(not saved.low <= truth <= saved.high for saved, truth in judged)
    assert missed <= worlds * 0.05 + 3.0 * math.sqrt(worlds * 0.05 * 0.95)


def test_arms_that_were_tried_have_an_interval():
    """Of three arms that are drawn alike all have one, which is narrow enough to tell them apart, and true."""
    draw, worlds, missed = np.random.default_rng(3), 100, 0
    for _ in range(worlds):
        world = made_world(draw, pmf=(0.4, 0.3, 0.3), chance=(0.9, 0.6, 0.2), scores=None)
        found = [saved_of(world.totals(arm, rows=2000)) for arm in range(3)]
        assert all(saved.missing is None and saved.high - saved.low < 0.25 for saved in found)
        assert found[2].low > 0.0 > found[0].high
        missed += any(not saved.low <= truth <= saved.high for saved, truth in zip(found, world.truth[-1], strict=True))
    assert missed <= worlds * 0.05 + 3.0 * math.sqrt(worlds * 0.05 * 0.95)


def test_questions_on_which_an_arm_was_never_drawn_count():
    """An arm that is likely on half of the questions, and never drawn on the other half, is not judged by the first."""
    draw, rows = np.random.default_rng(1), 200
    first = np.arange(rows)[:, None] % 2 == 0
    pmf = np.where(first, (0.1, 0.9), (0.9999, 0.0001))
    world = MadeWorld(draw, pmf=pmf, chance=np.where(first, (0.5, 0.9), (0.5, 0.1)), scores=np.full((rows, 2), 0.9))
    totals = world.totals(1, rows=rows)
    assert totals.weight**2 / totals.weight_squares > 50
    assert totals.effective < 1.0
    assert saved_of(totals).low is None


def test_intervals_are_those_of_the_notes():
    """Half the width for variance 1/4 and weight 2 at 200 effective rows of 400 is that of the published formula."""
    n = 400
    sums = {"compared": n, "difference_squares": 0.25 * (n - 1), "reward_range": float(n)}
    weights = {"weight": float(n), "weight_squares": 2.0 * n, "expected_squares": 2.0 * n}
    saved = saved_of(replace(ArmTotals(), **sums, **weights))
    assert saved.effective == 200.0
    assert saved.high == pytest.approx(0.075879, abs=2e-6)
    assert saved.low == -saved.high


def test_an_interval_is_within_what_rewards_allow():
    """Rewards from 0 to 1 differ by 1 at most, however heavy the weights are."""
    world = made_world(np.random.default_rng(2), pmf=(0.99, 0.01), chance=(0.5, 0.5), scores=0.0)
    saved = saved_of(world.totals(1, rows=2000))
    assert -1.0 <= saved.low <= saved.difference <= saved.high <= 1.0


def test_nothing_is_told_of_an_arm_that_nothing_compares():
    """0 draws give no value, not 0; the counts are said."""
    saved = saved_of(ArmTotals())
    assert (saved.difference, saved.low, saved.high) == (None, None, None)
    assert (
        saved.missing == "not tried enough: 0 draws, 0 judged; 10 effective rows needed, no end in sight at this rate"
    )
