"""Confidence sequences: bounds that hold at every look at growing data at once, however often one looks and stops.

**By bets**: exact at any number of rows, also where the logging policy or the model depend on earlier rows. A mean is
bounded below by bets against it. Where no score is below `least`, and the mean given the past is m at most, the capital
of a bet k >= 0,

    prod_i (1 + k (s_i - least)) / (1 + k (m - least)),

is a nonnegative supermartingale that starts at 1. So is its average over many bets, and by Ville's inequality that
reaches 1 / alpha at any time with probability alpha at most (Waudby-Smith and Ramdas 2023, "Estimating means of bounded
random variables by betting"). The capital falls in m: the bound is the m at which it is 1 / alpha. Written so, rows
enter by one sum per bet, sum_i log(1 + k (s_i - least)), whatever the m: one pass over them serves every look.

**Asymptotic**: narrower, and true in the limit (`asymptotic_width`).

A judge's scores narrow both, as a control variate (`JudgeSlopes`).
"""

import json
import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Matrix, Vector

Choices = npt.NDArray[np.intp]

#: halvings of the range in search of a bound
_HALVINGS: Final = 36
#: a score may lie below its least value by rounding only
_ROUNDING: Final = 1e-9


#: bets over which the capital is spread, in units of 1 / (high - least); the best one falls like 1 / sqrt(n variance)
BETS: Final = np.geomspace(2e-3, 2.0, 11)
#: How far below 0 a doubly robust score may fall, in units of the rewards' range. Small ones allow bolder bets, which
#: tells sooner; large ones keep more of the model, which tells more in the end.
REACHES: Final = np.array([1.0, 4.0])


@dataclass(kw_only=True, slots=True)
class BettingSequence:
    """The capital of bets on `robust_scores`, row by row, and whether it has proven that their mean is above `null`."""

    #: least value that the mean can have; the most is 1
    floor: float
    null: float
    #: the chance that the claim is proven where it is wrong, and that `lower` is above the mean
    alpha: float
    rows: int = 0
    #: the row after which the claim was proven; None: it is not
    proven_at: int | None = None
    #: sums of log(1 + bet (score - least)), shape (reaches, bets)
    grown: Matrix = field(default_factory=lambda: np.zeros((len(REACHES), len(BETS))))

    def add(self, scores: Matrix) -> None:
        """Take rows in, in their order; scores: shape (reaches, rows). Raises InvalidInput for one that is too low."""
        least = self._least
        above = scores - least
        if not (above >= -_ROUNDING * np.maximum(1.0, np.abs(least))).all():
            raise InvalidInput(f"below its least value, or no number, after row {self.rows}", field="scores")
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
        """The lower bound of the mean at this row; the least possible mean where nothing is known."""
        below, above = self.floor, 1.0
        for _ in range(_HALVINGS):
            middle = (below + above) / 2
            capital = self.grown - self.rows * self._costs(middle)
            refuted = log_mean_exp(capital.reshape(-1, 1))[0] >= -math.log(self.alpha)
            below, above = (middle, above) if refuted else (below, middle)
        return below

    @property
    def _least(self) -> Matrix:
        """The least score with each of REACHES, shape (reaches, 1)."""
        return (self.floor - REACHES)[:, None]

    @property
    def _scaled_bets(self) -> Matrix:
        return BETS / (1.0 - self._least)

    def _costs(self, mean: float) -> Matrix:
        """What a row takes from the logarithm of the capital against this mean, shape (reaches, bets)."""
        return np.asarray(np.log1p(self._scaled_bets * (mean - self._least)))


def doubly_robust(
    weight: Vector, *, share: Matrix, arm: Choices, value: Vector, guess: Matrix
) -> tuple[Vector, Vector]:
    """The two parts of a doubly robust score of sum_k D_k E[value of arm k]: e_a (value - M_a) and sum_k D_k M_k.

    weight: e_a = D_a / pmf_a of the arm drawn, shape (n,); share: D, shape (n, K); guess: M, shape (n, K).
    """
    drawn = np.arange(len(arm)) * guess.shape[1] + arm
    return weight * (value - np.take(guess, drawn)), np.einsum("nk,nk->n", share, guess)


def robust_scores(*, share: Matrix, pmf: Matrix, arm: Choices, value: Vector, guess: Matrix) -> Matrix:
    """Doubly robust scores of sum_k D_k E[value of arm k], with each of REACHES; shape (reaches, rows).

    share: D, shape (n, K); pmf: logged, shape (n, K); value: in [0, 1], of the arm drawn; guess: M, in [0, 1], shape
    (n, K), made before the row was drawn.

    With e = D / pmf the score is sum_k D_k M_k + e_a (value - M_a). It may use any predictions made before the draw; so
    each M_k is cut to where e_k (value - M_k) cannot fall below -reach (Waudby-Smith, Wu, Ramdas, Karampatziakis and
    Mineiro 2022, "Anytime-valid off-policy inference for contextual bandits"), which makes large bets safe.
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
    """How far the asymptotic confidence sequence reaches from a mean of so many scores of standard deviation 1.

    Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024, "Time-uniform central limit theory and asymptotic confidence
    sequences": sides=2, to both sides (equation 9 of its first version); sides=1, to one (equation 161 of version 7),
    where alpha is that side's error. tightest_at: the number of rows at which it is tightest.
    """
    error = alpha if sides == 2 else 2.0 * alpha
    rho2 = (-2.0 * math.log(error) + math.log(1.0 - 2.0 * math.log(error))) / tightest_at
    spread = rows * rho2 + 1.0
    grown = np.sqrt(spread) / error
    logarithm = np.log(grown) if sides == 2 else np.log1p(grown)
    return np.asarray(np.sqrt(2.0 * spread / (rows**2 * rho2) * logarithm))


def log_mean_exp(values: Matrix) -> Vector:
    """The logarithm of the mean of exp(values) over the first axis."""
    top = values.max(axis=0)
    return np.asarray(top + np.log(np.exp(values - top).mean(axis=0)))


#: a comparison with fewer effective rows has no interval and no verdict on any surface: coverage was measured from
#: here on (benchmarks/coverage)
FEWEST_EFFECTIVE: Final = 10
#: effective rows before an asymptotic confidence sequence says anything: its promise is of many rows
BURN_IN_EFFECTIVE: Final = 50
#: what stands in place of a number, where there is no room for `Tried.missing`
NOT_TRIED: Final = "not tried enough"
#: a forecast of more than so many times the questions so far is none
_FARTHEST: Final = 1000


def pace(questions: float, *, first: float, until: float) -> float:
    """Questions in a second, of so many since the first of them. first, until: seconds since the epoch."""
    return questions / max(until - first, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """How much a log has of one comparison."""

    #: decisions that drew what is compared
    draws: int
    #: of these: those with a reward
    judged: int
    #: effective rows of the comparison, (sum of weights)^2 / sum of squared weights; >= 0
    effective: float
    #: questions of the log in which these rows came
    questions: int
    #: effective rows that the method needs
    needed: int = FEWEST_EFFECTIVE

    @property
    def enough(self) -> bool:
        """An interval may be printed; never where `effective` is no number."""
        return self.effective >= self.needed

    @property
    def missing(self) -> str | None:
        """Why no interval is printed, in words; None where one may be."""
        if self.enough:
            return None
        counts = f"{self.draws:,} {'draw' if self.draws == 1 else 'draws'}, {self.judged:,} judged"
        return f"{NOT_TRIED}: {counts}; {self.needed} effective rows needed, {self._forecast}"

    @property
    def _forecast(self) -> str:
        """How many more questions it takes where effective rows go on to come as often as they came."""
        lacking = self.needed - self.effective
        if not 0.0 < lacking <= _FARTHEST * self.effective:
            return "no end in sight at this rate"
        more = max(1, math.ceil(lacking * self.questions / self.effective))
        unit = 10 ** max(0, len(str(more)) - 2)  # a forecast is no more precise than two digits
        more = -(-more // unit) * unit
        return f"about {more:,} {'question' if more == 1 else 'questions'} more at this rate"


#: decisions with both from which on a slope is used, and at which it counts half
FEWEST_BOTH: Final = 20
#: standard errors by which an arm's rated answers may score otherwise than its other answers, by chance
_UNLIKE: Final = 4.0


@dataclass(kw_only=True, slots=True)
class JudgeSlopes:
    """How much of a judge's score the estimate of a mean may use before each row, from earlier rows alone: b.

    Where people rated some answers, y, and a judge scored these and others, g, the mean of y is also that of
    y + b (mean of g over all scored answers - g), whatever b is, if who is rated is chance (prediction-powered
    inference: Angelopoulos, Bates, Fannjiang, Jordan and Zrnic 2023). Its variance is least where b is the slope of y
    on g. A b that rests on earlier rows alone keeps intervals valid at every look, whoever wrote the scores. State is
    eight numbers per arm, whatever the number of rows.
    """

    #: by arm: rows with both, the sums of y, g, y g, g g over them; other scored rows, the sums of g and g g over them
    _sums: dict[str, Vector] = field(default_factory=dict)

    def before(self, arms: tuple[str, ...], *, arm: Choices, value: Vector, judge: Vector) -> Vector:
        """Of every row, shape (n,), from 0 to 1; the rows count from then on.

        arm: the column drawn. value: in [0, 1], judge: scores in [0, 1]; NaN where there is none. The slope is that
        among the answers of one arm, drawn to 0 by FEWEST_BOTH rows. It is 0 while an arm's rated answers score
        otherwise than its other answers: who is rated, or what is scored, is then no chance.
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
            gap = (sg / count - so / rest) ** 2 > _UNLIKE**2 * error
            unlike |= gap & (np.minimum(n, others) >= FEWEST_BOTH)
            if len(g):
                self._sums[name] = upto[:, -1]
        slope = np.clip(total[1] / np.maximum(total[2], 1e-9), 0.0, 1.0) * total[0] / (total[0] + FEWEST_BOTH)
        return np.where((total[0] >= FEWEST_BOTH) & ~unlike, slope, 0.0)


def judge_score(surrogates: str | None) -> float:
    """A judge's score beside a person's rating, of a row's JSON `surrogates`; NaN: there is none."""
    return float(json.loads(surrogates).get("judge", math.nan)) if surrogates else math.nan
