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
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Matrix, Vector

#: numbers of rows after which one looks, rising, shape (looks,)
Looks = npt.NDArray[np.intp]
#: (low, high), in units of reward
Interval = tuple[float, float]
Choices = npt.NDArray[np.intp]

#: rows whose bets are in memory at once
_CHUNK: Final = 1 << 12
#: halvings of the range in search of a bound
_HALVINGS: Final = 36
#: a score may lie below its least value by rounding only
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class BetGrid:
    """Bets over which the capital is spread, and how far scores may fall."""

    #: in units of 1 / (high - least); the best one falls like 1 / sqrt(n variance)
    bets: Vector
    #: How far below 0 a doubly robust score may fall, in units of the rewards' range. Small ones allow bolder bets,
    #: which tells sooner; large ones keep more of the model, which tells more in the end.
    reaches: Vector


#: of a log: its least bet serves ten million rows
LONG: Final = BetGrid(bets=np.geomspace(1e-4, 1e1, 16), reaches=np.array([1.0, 4.0, 16.0]))
#: of a version that is tried: thousands of rows
SHORT: Final = BetGrid(bets=np.geomspace(2e-3, 2.0, 11), reaches=np.array([1.0, 4.0]))


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanClaim:
    """One claim, "the mean is above `null`", and the chance that it is made where it is wrong."""

    #: least value that the mean can have
    floor: float
    null: float
    alpha: float


@dataclass(kw_only=True, slots=True)
class BettingSequence:
    """The capital of bets on scores of several sorts, which have one mean; row by row."""

    #: of each sort of scores, shape (sorts,)
    least: Vector
    #: where the mean lies
    within: Interval
    #: in units of 1 / (high - least)
    bets: Vector
    claim: MeanClaim | None = None
    rows: int = 0
    #: the row after which the claim was proven; None: it is not
    proven_at: int | None = None
    #: sums of log(1 + bet (score - least)), shape (sorts, bets)
    grown: Matrix = field(init=False)

    def __post_init__(self) -> None:
        self.grown = np.zeros((len(self.least), len(self.bets)))

    @classmethod
    def of(cls, claim: MeanClaim, *, grid: BetGrid = SHORT) -> "BettingSequence":
        """Of `robust_scores` that are to prove this claim."""
        return cls(least=claim.floor - grid.reaches, within=(claim.floor, 1.0), bets=grid.bets, claim=claim)

    def add(self, scores: Matrix) -> None:
        """Take rows in, in their order; scores: shape (sorts, rows). Raises InvalidInput for one that is too low."""
        above = scores - self.least[:, None]
        if not (above >= -_ROUNDING * np.maximum(1.0, np.abs(self.least))[:, None]).all():
            raise InvalidInput(f"below its least value, or no number, after row {self.rows}", field="scores")
        steps = np.log1p(self._scaled_bets[:, :, None] * np.maximum(above, 0.0)[:, None, :])
        count = scores.shape[1]
        if self.claim is not None and self.proven_at is None and count:
            paths = self.grown[:, :, None] + np.cumsum(steps, axis=2)
            paths -= self._costs(np.array([self.claim.null]))[0, :, :, None] * (self.rows + np.arange(1, count + 1))
            reached = _log_mean_exp(paths.reshape(-1, count)) >= -math.log(self.claim.alpha)
            if reached.any():
                self.proven_at = self.rows + int(np.argmax(reached)) + 1
        self.grown += steps.sum(axis=2)
        self.rows += count

    def lower(self, *, alpha: float) -> float:
        """The lower bound of the mean at this row; the least possible mean where nothing is known."""
        return float(self.lower_at(self.grown[None], rows=np.array([self.rows]), alpha=alpha)[0])

    def lower_at(self, grown: npt.NDArray[np.float64], *, rows: Looks, alpha: float) -> Vector:
        """The lower bounds after so many rows, shape (looks,); grown: the sums then, shape (looks, sorts, bets)."""
        below, above = (np.full(len(rows), end) for end in self.within)
        for _ in range(_HALVINGS):
            middle = (below + above) / 2
            capital = grown - rows[:, None, None] * self._costs(middle)
            refuted = _log_mean_exp(capital.reshape(len(rows), -1).T) >= -math.log(alpha)
            below, above = np.where(refuted, middle, below), np.where(refuted, above, middle)
        return np.asarray(below)

    @property
    def _scaled_bets(self) -> Matrix:
        return self.bets / (self.within[1] - self.least)[:, None]

    def _costs(self, means: Vector) -> npt.NDArray[np.float64]:
        """What a row takes from the logarithm of the capital against these means, shape (means, sorts, bets)."""
        return np.log1p(self._scaled_bets * (means[:, None, None] - self.least[:, None]))


def lower_bounds(
    scores: Callable[[slice], Matrix], *, sequence: BettingSequence, confidence: float, looks: Looks
) -> Vector:
    """Lower bounds of the mean after each look, shape (looks,), all true at once; they never fall.

    scores: rows -> their scores of every sort, shape (sorts, rows), in the order in which they came. sequence: a fresh
    one. Raises InvalidInput for looks that do not rise within the rows.
    """
    _check_confidence(confidence)
    if len(looks) == 0 or looks[0] < 1 or (np.diff(looks) <= 0).any():
        raise InvalidInput("not rising from 1 row on", field="looks", remedy="give rising numbers of rows")
    grown = np.empty((len(looks), *sequence.grown.shape))
    for index, look in enumerate(looks):
        while sequence.rows < look:
            rows = slice(sequence.rows, min(sequence.rows + _CHUNK, int(look)))
            more = scores(rows)
            if more.shape[1] < rows.stop - rows.start:
                raise InvalidInput(f"{look} rows where there are fewer", field="looks", remedy="look at rows there are")
            sequence.add(more)
        grown[index] = sequence.grown
    return np.maximum.accumulate(sequence.lower_at(grown, rows=looks, alpha=1.0 - confidence))


def betting_ips(
    weight: Vector, *, reward: Vector, rewards: Interval, confidence: float, looks: Looks, grid: BetGrid = LONG
) -> tuple[Vector, Vector]:
    """(lows, highs) of a candidate's value after each look, both of shape (looks,), without a model.

    weight, reward: shape (n,); rewards: the least and the largest reward. From bets on w (r - least) and w (most - r),
    with half the error each. Where the logging policy gave no chance to arms of the candidate, these may be worth
    anything: the bounds remain true.
    """
    _check_confidence(confidence)
    gain, (least, most) = _shares(reward, rewards=rewards), rewards

    def side(gain: Vector) -> Vector:
        scores = (weight * gain)[None]
        sequence = BettingSequence(least=np.zeros(1), within=(0.0, 1.0), bets=grid.bets)
        return lower_bounds(
            lambda rows: scores[:, rows], sequence=sequence, confidence=(1.0 + confidence) / 2, looks=looks
        )

    return least + (most - least) * side(gain), most - (most - least) * side(1.0 - gain)


def doubly_robust(
    reward: Vector,
    *,
    action: Choices,
    pmf: Matrix,
    candidate: Matrix,
    model: Matrix,
    rival: Matrix | None = None,
    rewards: Interval,
    confidence: float,
    looks: Looks,
    grid: BetGrid = LONG,
) -> tuple[Vector, Vector]:
    """(lows, highs) of a candidate's value after each look, both of shape (looks,); with a rival, of the difference.

    reward, action: shape (n,), in the order in which they came. pmf (logged), candidate, rival: shape (n, K). rival:
    whose value is subtracted; the logged pmf itself for the policy that logged. model: predicted reward of every arm,
    shape (n, K), each row predicted *from earlier rows only*: cross-fitted predictions have seen the future and break
    the promise. rewards: the least and the largest reward.

    An upper bound is a lower one of 1 - r and 1 - M, with half the error each. Arms without chance under pmf may be
    worth anything: the bounds remain true. Where low > high, the value has not stayed the same while the log grew.
    """
    _check_confidence(confidence)
    least, most = rewards
    share = candidate if rival is None else candidate - rival
    # A difference of pmfs times predictions in [0, 1] is not below -1.
    floor, total = (0.0, 1.0) if rival is None else (-1.0, 0.0)
    gain, guess = _shares(reward, rewards=rewards), np.clip((model - least) / (most - least), 0.0, 1.0)

    def side(gain: Vector, guess: Matrix) -> Vector:
        def scores(rows: slice) -> Matrix:
            return robust_scores(
                share=share[rows], pmf=pmf[rows], arm=action[rows], value=gain[rows], guess=guess[rows], grid=grid
            )

        sequence = BettingSequence(least=floor - grid.reaches, within=(floor, 1.0), bets=grid.bets)
        return lower_bounds(scores, sequence=sequence, confidence=(1.0 + confidence) / 2, looks=looks)

    lows, highs = side(gain, guess), total - side(1.0 - gain, 1.0 - guess)
    shift = least if rival is None else 0.0
    return shift + (most - least) * lows, shift + (most - least) * highs


def robust_scores(
    *, share: Matrix, pmf: Matrix, arm: Choices, value: Vector, guess: Matrix, grid: BetGrid = SHORT
) -> Matrix:
    """Doubly robust scores of sum_k D_k E[value of arm k], with each of the grid's reaches; shape (reaches, rows).

    share: D, shape (n, K); pmf: logged, shape (n, K); value: in [0, 1], of the arm drawn; guess: M, in [0, 1], shape
    (n, K), made before the row was drawn.

    With e = D / pmf the score is sum_k D_k M_k + e_a (value - M_a). It may use any predictions made before the draw; so
    each M_k is cut to where e_k (value - M_k) cannot fall below -reach (Waudby-Smith, Wu, Ramdas, Karampatziakis and
    Mineiro 2022, "Anytime-valid off-policy inference for contextual bandits"), which makes large bets safe.
    """
    ratio = np.divide(share, pmf, out=np.copysign(np.inf, share), where=pmf > 0.0)
    ratio[share == 0.0] = 0.0
    drawn = np.arange(len(value)), arm
    scores = np.empty((len(grid.reaches), len(value)))
    for index, reach in enumerate(grid.reaches):
        with np.errstate(divide="ignore"):
            room = reach / np.abs(ratio)
        cut = np.where(ratio > 0.0, np.minimum(guess, room), np.maximum(guess, 1.0 - room))
        scores[index] = (share * cut).sum(axis=1) + ratio[drawn] * (value - cut[drawn])
    return scores


@dataclass(kw_only=True, slots=True)
class FairBets:
    """Bets that are fair where the log is what it says: capital far above 1 says that it is not.

    `add` takes, for each bet and row, the factor of which the mean is 1 under the logged pmf.
    """

    bets: int
    alpha: float
    #: the row after which it was refuted; None: it is not
    refuted_at: int | None = None
    rows: int = 0
    logs: Vector = field(init=False)

    def __post_init__(self) -> None:
        self.logs = np.zeros(self.bets)

    def add(self, factors: Matrix) -> None:
        """Take rows in; factors: shape (bets, rows), not below 0."""
        with np.errstate(divide="ignore"):
            paths = self.logs[:, None] + np.cumsum(np.log(np.maximum(factors, 1e-300)), axis=1)
        if self.refuted_at is None and factors.shape[1]:
            reached = _log_mean_exp(paths) >= -math.log(self.alpha)
            if reached.any():
                self.refuted_at = self.rows + int(np.argmax(reached)) + 1
        if factors.shape[1]:
            self.logs = paths[:, -1]
        self.rows += factors.shape[1]


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


def _log_mean_exp(values: Matrix) -> Vector:
    """Over the first axis."""
    top = values.max(axis=0)
    return np.asarray(top + np.log(np.exp(values - top).mean(axis=0)))


def _check_confidence(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise InvalidInput(f"{confidence:g}", field="confidence", remedy="give a number between 0 and 1, as 0.95")


def _shares(reward: Vector, *, rewards: Interval) -> Vector:
    """Rewards as shares of their range, in [0, 1]."""
    least, most = rewards
    shares = (reward - least) / (most - least)
    if not ((shares >= -_ROUNDING) & (shares <= 1.0 + _ROUNDING)).all():
        raise InvalidInput(f"outside [{least:g}, {most:g}]", field="reward", remedy="declare the bounds that they have")
    return np.clip(shares, 0.0, 1.0)
