"""Confidence sequences: bounds that hold simultaneously after every row, so one may look and stop at any time.

**Betting sequences** are exact for any number of rows, even if the logging policy or the model depends on earlier rows.
Let s_i be the score of row i. If no score is below `least`, and the mean of each score, given the earlier rows, is at
most m, then the capital of a bet k >= 0,

    prod_i (1 + k (s_i - least)) / (1 + k (m - least)),

is a nonnegative supermartingale that starts at 1, and so is the mean capital of several bets. By Ville's inequality,
the probability that this capital ever reaches 1 / alpha is at most alpha (Waudby-Smith and Ramdas 2023, "Estimating
means of bounded random variables by betting"). The capital decreases in m. The lower bound is the m at which this
capital is 1 / alpha. Rows enter only through one sum per bet, sum_i log(1 + k (s_i - least)), which is free of m.

**Asymptotic sequences** are narrower, and valid in the limit of many rows (`asymptotic_width`).
"""

import json
import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.formats import counted, roughly
from ragbandit.shared.types import Matrix, Vector

Choices = npt.NDArray[np.intp]

#: bets among which the capital is divided, in units of 1 / (1 - smallest score). After n rows the best bet is of the
#: order of 1 / sqrt(n * variance of the scores)
BETS: Final = np.geomspace(2e-3, 2.0, 11)
#: how far a doubly robust score may be below 0, if rewards are in [0, 1]. A small reach allows larger bets, which
#: decide sooner. A large reach uses more of the predictions, which is better with many rows
REACHES: Final = np.array([1.0, 4.0])


@dataclass(kw_only=True, slots=True)
class BettingSequence:
    """A betting test of the claim that the mean of `robust_scores` is above `null`."""

    #: smallest possible mean; the largest is 1
    floor: float
    null: float
    #: probability that a false claim is proven, and probability that `lower` is above the mean
    alpha: float
    rows: int = 0
    #: number of rows after which the claim was proven; None if the claim is not proven
    proven_at: int | None = None
    #: sums over the rows of log(1 + bet (score - least)), shape (reaches, bets)
    grown: Matrix = field(default_factory=lambda: np.zeros((len(REACHES), len(BETS))))

    def add(self, scores: Matrix) -> None:
        """Add rows in their order. scores: shape (reaches, rows). Raises InvalidInput if a score is too low."""
        least = self._least
        above = scores - least
        if not (above >= -1e-9 * np.maximum(1.0, np.abs(least))).all():  # a tolerance for rounding
            raise InvalidInput(f"a score after row {self.rows} is too small or not a number", field="scores")
        steps = np.log1p(self._scaled_bets[:, :, None] * np.maximum(above, 0.0)[:, None, :])
        count = scores.shape[1]
        if self.proven_at is None and count:
            paths = self.grown[:, :, None] + np.cumsum(steps, axis=2)
            paths -= self._costs(self.null)[:, :, None] * (self.rows + np.arange(1, count + 1))
            reached = log_mean_exp(paths.reshape(-1, count)) >= -math.log(self.alpha)
            if reached.any():
                self.proven_at = self.rows + int(np.argmax(reached)) + 1
        self.grown += steps.sum(axis=2)
        self.rows += count

    def lower(self) -> float:
        """Lower bound of the mean after the rows so far; `floor` without rows."""
        below, above = self.floor, 1.0
        for _ in range(36):  # steps of bisection
            middle = (below + above) / 2
            capital = self.grown - self.rows * self._costs(middle)
            refuted = log_mean_exp(capital.reshape(-1, 1))[0] >= -math.log(self.alpha)
            below, above = (middle, above) if refuted else (below, middle)
        return below

    @property
    def _least(self) -> Matrix:
        """The smallest possible score for each reach, shape (reaches, 1)."""
        return (self.floor - REACHES)[:, None]

    @property
    def _scaled_bets(self) -> Matrix:
        return BETS / (1.0 - self._least)

    def _costs(self, mean: float) -> Matrix:
        """What each row subtracts from the logarithm of the capital, if the mean is `mean`; shape (reaches, bets)."""
        return np.asarray(np.log1p(self._scaled_bets * (mean - self._least)))


def doubly_robust(
    weight: Vector, *, share: Matrix, arm: Choices, value: Vector, guess: Matrix
) -> tuple[Vector, Vector]:
    """The terms (e_a (value - M_a), sum_k D_k M_k) of the scores. `robust_scores` explains the letters. weight: e_a."""
    drawn = np.arange(len(arm)) * guess.shape[1] + arm
    return weight * (value - np.take(guess, drawn)), np.einsum("nk,nk->n", share, guess)


def robust_scores(*, share: Matrix, pmf: Matrix, arm: Choices, value: Vector, guess: Matrix) -> Matrix:
    """Doubly robust scores of the difference between two policies, for each reach in REACHES; shape (reaches, rows).

    Let D be a weighted difference of the policies' pmfs, M the predicted values of the arms, a the drawn arm, and
    e = D / pmf. The score sum_k D_k M_k + e_a (value - M_a) estimates sum_k D_k E[value of arm k]. For each reach, M_k
    is clipped so that e_k (value - M_k) is at least -reach, which makes large bets safe (Waudby-Smith, Wu, Ramdas,
    Karampatziakis and Mineiro 2022, "Anytime-valid off-policy inference for contextual bandits").

    share: D, shape (n, K)
    pmf: logged probabilities, shape (n, K)
    arm: column of the drawn arm, shape (n,)
    value: value of the drawn arm, in [0, 1], shape (n,)
    guess: predictions M in [0, 1], made before the row was drawn, shape (n, K)
    """
    ratio = np.divide(share, pmf, out=np.copysign(np.inf, share), where=pmf > 0.0)
    ratio[share == 0.0] = 0.0
    weight = ratio[np.arange(len(value)), arm]
    scores = np.empty((len(REACHES), len(value)))
    for index, reach in enumerate(REACHES):
        with np.errstate(divide="ignore"):
            room = reach / np.abs(ratio)
        cut = np.where(ratio > 0.0, np.minimum(guess, room), np.maximum(guess, 1.0 - room))
        scores[index] = sum(doubly_robust(weight, share=share, arm=arm, value=value, guess=cut))
    return scores


def asymptotic_width(rows: Vector, *, alpha: float, tightest_at: float, sides: int) -> Vector:
    """Half-width of the asymptotic confidence sequence after `rows` scores with standard deviation 1.

    Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024, "Time-uniform central limit theory and asymptotic confidence
    sequences": equation 9 of version 1 for 2 sides, equation 161 of version 7 for 1 side.

    tightest_at: number of rows for which the sequence is tightest
    """
    error = alpha if sides == 2 else 2.0 * alpha
    rho2 = (-2.0 * math.log(error) + math.log(1.0 - 2.0 * math.log(error))) / tightest_at
    spread = rows * rho2 + 1.0
    grown = np.sqrt(spread) / error
    logarithm = np.log(grown) if sides == 2 else np.log1p(grown)
    return np.asarray(np.sqrt(2.0 * spread / (rows**2 * rho2) * logarithm))


def log_mean_exp(values: Matrix) -> Vector:
    """log(mean(exp(values))) over the first axis, without overflow."""
    top = values.max(axis=0)
    return np.asarray(top + np.log(np.exp(values - top).mean(axis=0)))


#: smallest number of effective rows for an interval and a verdict. Coverage was measured from this number on
#: (benchmarks/coverage)
FEWEST_EFFECTIVE: Final = 10
#: smallest number of effective rows for an asymptotic confidence sequence, which is valid for many rows only
BURN_IN_EFFECTIVE: Final = 50
#: printed instead of a number if there is no room for `Tried.missing`
NOT_TRIED: Final = "not tried enough"


def pace(questions: float, *, first: float, until: float) -> float:
    """Questions per second between two times (seconds since 1970)."""
    return questions / max(until - first, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """Amount of data for one comparison in a log."""

    #: decisions that drew the compared arm or policy
    draws: int
    #: draws with a reward
    judged: int
    #: effective sample size, (sum of weights)^2 / sum of squared weights
    effective: float
    questions: int
    #: effective rows that the method needs
    needed: int = FEWEST_EFFECTIVE

    @property
    def enough(self) -> bool:
        """Whether an interval may be printed."""
        return self.effective >= self.needed  # False for NaN

    @property
    def missing(self) -> str | None:
        """Why no interval is printed; None if there is enough data."""
        if self.enough:
            return None
        counts = f"{counted(self.draws, 'draw')}, {self.judged:,} judged"
        return f"{NOT_TRIED}: {counts}; {self.needed} effective rows needed, {self._forecast}"

    @property
    def _forecast(self) -> str:
        lacking = self.needed - self.effective
        if not 0.0 < lacking <= 1000 * self.effective:
            return "at this rate it will not be known"
        more = roughly(lacking * self.questions / self.effective)
        return f"{more} more {'question' if more == 'about 1' else 'questions'} at this rate"


#: fewest answers with both a rating and a judge's score for a slope. At this number of answers the slope is halved
FEWEST_BOTH: Final = 20


@dataclass(kw_only=True, slots=True)
class JudgeSlopes:
    """Slopes b with which a judge's scores, as a control variate, narrow the interval of a mean.

    People rated some answers: let y be a rating. A judge scored these and other answers: let g be a score. If the rated
    answers are a random sample, y + b (mean of g over all scored answers - g) has the same mean as y for every b
    (prediction-powered inference: Angelopoulos, Bates, Fannjiang, Jordan and Zrnic 2023). The variance is smallest if b
    is the slope of y on g. Intervals stay valid after every row, since b is computed from earlier rows only.
    """

    #: arm -> (rows, sum y, sum g, sum y g, sum g g) for answers with y and g, then (rows, sum g, sum g g) with g only
    _sums: dict[str, Vector] = field(default_factory=dict)

    def before(self, arms: tuple[str, ...], *, arm: Choices, value: Vector, judge: Vector) -> Vector:
        """The slope of rating on score for each row, in [0, 1], fitted to the rows before it. Then adds the rows.

        The slope is computed within arms, as if FEWEST_BOTH further rows had the slope 0. While the mean scores of
        rated and unrated answers of an arm differ by more than 4 standard errors, it is 0: the sample is not random.

        arms: names of the columns
        arm: column of the drawn arm, shape (n,)
        value: rating in [0, 1], NaN without a rating, shape (n,)
        judge: score in [0, 1], NaN without a score, shape (n,)
        """
        both = ~np.isnan(value) & ~np.isnan(judge)
        y, g = np.where(both, value, 0.0), np.nan_to_num(judge)
        products = np.stack([np.ones(len(g)), y, g, y * g, g * g])
        total, unlike = np.zeros((3, len(g))), np.zeros(len(g), dtype=np.bool_)
        for name in dict.fromkeys((*arms, *self._sums)):
            mine = arm == (arms.index(name) if name in arms else -1)
            rows = np.concatenate([products * (mine & both), products[[0, 2, 4]] * (mine & ~both & ~np.isnan(judge))])
            upto = self._sums.get(name, np.zeros(8))[:, None] + np.cumsum(rows, axis=1)
            n, sy, sg, syg, sgg, others, so, soo = upto - rows
            count, rest = np.maximum(n, 1.0), np.maximum(others, 1.0)
            total += n, syg - sy * sg / count, sgg - sg * sg / count
            spread, beside = sgg / count - (sg / count) ** 2, soo / rest - (so / rest) ** 2
            error = np.maximum(spread, 1e-3) / count + np.maximum(beside, 1e-3) / rest
            gap = (sg / count - so / rest) ** 2 > 4.0**2 * error
            unlike |= gap & (np.minimum(n, others) >= FEWEST_BOTH)
            if len(g):
                self._sums[name] = upto[:, -1]
        slope = np.clip(total[1] / np.maximum(total[2], 1e-9), 0.0, 1.0) * total[0] / (total[0] + FEWEST_BOTH)
        return np.where((total[0] >= FEWEST_BOTH) & ~unlike, slope, 0.0)


def judge_score(surrogates: str | None) -> float:
    """The judge's score in the JSON of the column `surrogates`; NaN without a score."""
    return float(json.loads(surrogates).get("judge", math.nan)) if surrogates else math.nan
