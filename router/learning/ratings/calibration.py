"""Calibration: what a judge's score is worth in people's judgements, learned from decisions that have both.

A pair is a decision with a model's score and a person's rating or a label. From PAIRS_NEEDED pairs on, a score s of an
arm becomes

    quality = clip(g(s) + b_arm, 0, 1),    b_arm = sum of (y - g(s)) over the arm's pairs / (their number + SHRINK),

g the isotonic regression of y - b on score over all pairs (Barlow et al. 1972; Zadrozny and Elkan 2002 for
calibration), straight between its points; g and b by turns, ROUNDS times (backfitting). So a judge that favours an arm
is corrected by that arm's own pairs, and an arm with few of them stays close to what all have in common.

A score counts as

    rows = explained * n_arm / (n_arm + HALF),

explained = 1 - residual variance / variance of people's judgements within the arms, of the straight line, adjusted for
its slope: a score that explains a quarter of what people say is worth a quarter of a person's rating. (The residuals of
g itself are too small with few pairs.) The second factor is what the arm's pairs add: an error of b_arm is the same in
all scores of the arm, and more scores do not make it smaller.

The curve that an update sees is a function of the stored pairs alone: those before it in the ledger (`after_seq`), the
newest PAIRS_USED of them, as of the last fit; fits follow each other by the number of pairs (`fit_point`). Sums and
products of Python floats, in the order of the pairs: the same bits on every machine.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ragbandit.shared.types import ArmName, CalibrationPair, Reward

#: pairs before which scores are learned as they are
PAIRS_NEEDED: Final = 50
#: newest pairs that a fit uses
PAIRS_USED: Final = 5000
#: newest pairs that are kept in memory: those of the fit in force, and those since
KEPT: Final = PAIRS_USED + PAIRS_USED // 50
#: pairs that an arm's own difference is shrunk by
SHRINK: Final = 2.0
#: pairs of an arm with which its scores count half of what they explain
HALF: Final = 5.0
#: turns of curve and offsets
ROUNDS: Final = 8
#: weights are multiples of 1 / this, so that few of them differ
GRAIN: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """A function that never falls: straight between its points, flat beyond them."""

    #: strictly increasing
    scores: tuple[float, ...]
    #: never falling, one for each score
    values: tuple[float, ...]

    def at(self, score: float) -> float:
        """Its value at a score."""
        index = bisect_left(self.scores, score)
        if index == len(self.scores) or index == 0:
            return self.values[min(index, len(self.scores) - 1)]
        left, right = self.scores[index - 1], self.scores[index]
        part = (score - left) / (right - left)
        low, high = self.values[index - 1], self.values[index]
        return min(max(low + part * (high - low), low), high)


def isotonic(points: Sequence[tuple[float, float]]) -> Curve:
    """The curve that never falls and is closest to the points (score, value) in squared error. Needs at least one.

    Pool adjacent violators: neighbours whose means fall are put together. Points of one score share their mean.
    """
    at_score: dict[float, list[float]] = {}
    for score, value in points:
        at_score.setdefault(score, []).append(value)
    blocks: list[tuple[float, int, int]] = []  # sum of values, points, scores
    for score in sorted(at_score):
        values = at_score[score]
        total, count, scores = math.fsum(values), len(values), 1
        while blocks and blocks[-1][0] * count >= total * blocks[-1][1]:  # means compared without a division
            before = blocks.pop()
            total, count, scores = before[0] + total, before[1] + count, before[2] + scores
        blocks.append((total, count, scores))
    fitted = [total / count for total, count, scores in blocks for _ in range(scores)]
    return Curve(scores=tuple(sorted(at_score)), values=tuple(fitted))


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """One fit: what scores are worth, by arm."""

    curve: Curve
    #: what an arm's quality lies above the curve, shrunk; arms without pairs are left out
    offsets: dict[ArmName, float]
    #: pairs of each arm
    pairs: dict[ArmName, int]
    #: share of the variance of people's judgements of an arm that scores explain, in [0, 1]
    explained: float

    def quality(self, score: float, *, arm: ArmName) -> float:
        """What people would say on average, in [0, 1]."""
        return min(max(self.curve.at(score) + self.offsets.get(arm, 0.0), 0.0), 1.0)

    def rows(self, arm: ArmName) -> float:
        """How many rows a score of this arm counts as, in [0, 1]."""
        own = self.pairs.get(arm, 0)
        return math.floor(GRAIN * self.explained * own / (own + HALF) + 0.5) / GRAIN


def fitted(pairs: Sequence[CalibrationPair]) -> Calibration:
    """The calibration that these pairs give. Needs at least one."""
    offsets: dict[ArmName, float] = {}
    of_arm: dict[ArmName, list[CalibrationPair]] = {}
    for pair in pairs:
        of_arm.setdefault(pair.arm, []).append(pair)
    for _ in range(ROUNDS):
        curve = isotonic([(pair.score, pair.quality - offsets.get(pair.arm, 0.0)) for pair in pairs])
        offsets = {
            arm: math.fsum(pair.quality - curve.at(pair.score) for pair in own) / (len(own) + SHRINK)
            for arm, own in of_arm.items()
        }
    return Calibration(
        curve=curve,
        offsets=offsets,
        pairs={arm: len(own) for arm, own in of_arm.items()},
        explained=_explained(list(of_arm.values())),
    )


def _explained(by_arm: Sequence[Sequence[CalibrationPair]]) -> float:
    """The squared correlation of score and quality within the arms, adjusted; 0 where it is not above 0."""
    scores, qualities, products = [], [], []
    for own in by_arm:
        score = math.fsum(pair.score for pair in own) / len(own)
        quality = math.fsum(pair.quality for pair in own) / len(own)
        scores += [(pair.score - score) ** 2 for pair in own]
        qualities += [(pair.quality - quality) ** 2 for pair in own]
        products += [(pair.score - score) * (pair.quality - quality) for pair in own]
    both, free = math.fsum(scores) * math.fsum(qualities), len(scores) - len(by_arm)
    slope = math.fsum(products)
    if not (both > 0.0 and slope > 0.0 and free > 1):
        return 0.0
    return min(max(1.0 - (1.0 - slope * slope / both) * free / (free - 1), 0.0), 1.0)


def next_fit(last: int) -> int:
    """The number of pairs at which the fit after the one of `last` pairs is made: two in a hundred more."""
    return last + max(1, min(last, PAIRS_USED) // 50)


def fit_point(count: int) -> int:
    """The number of pairs that the fit in force uses the newest of, with `count` pairs there; 0: there is none yet."""
    if count < PAIRS_NEEDED:
        return 0
    last = PAIRS_NEEDED
    while next_fit(last) <= count:
        last = next_fit(last)
    return last


class Calibrator:
    """The pairs of a ledger up to a place, and the fit that is in force there."""

    def __init__(self, *, count: int = 0) -> None:
        """count: pairs before the first that it is given; it needs KEPT of them before it can fit again."""
        #: pairs so far
        self.count = count
        self._point = fit_point(count)
        #: the newest pairs, as many as a fit from now on may use
        self._newest: list[CalibrationPair] = []
        self._made: tuple[int, Calibration] | None = None

    def extend(self, pairs: Iterable[CalibrationPair]) -> None:
        """Take further pairs, numbered on from `count`."""
        for pair in pairs:
            self.count += 1
            assert pair.number == self.count, f"pair {pair.number} where {self.count} belongs"
            self._newest.append(pair)
            if self.count == (next_fit(self._point) if self._point else PAIRS_NEEDED):
                self._point = self.count
            if len(self._newest) > 2 * KEPT:
                del self._newest[:-KEPT]

    @property
    def fit(self) -> Calibration | None:
        """The fit in force; None before PAIRS_NEEDED pairs."""
        if not self._point:
            return None
        if self._made is None or self._made[0] != self._point:
            end = len(self._newest) - (self.count - self._point)
            self._made = (self._point, fitted(self._newest[max(0, end - PAIRS_USED) : end]))
        return self._made[1]


def calibrated(reward: Reward, *, arm: ArmName, fit: Calibration) -> Reward:
    """The reward of a judge's score (its quality) by a fit. One that counts as no row goes on counting as none."""
    score = reward.quality
    quality = fit.quality(score, arm=arm)
    value = min(max(quality - reward.weight * reward.cost, reward.minimum), reward.maximum)
    rows = fit.rows(arm) if reward.sample_weight > 0.0 else 0.0
    return replace(reward, quality=quality, value=value, raw_quality=score, sample_weight=rows)
