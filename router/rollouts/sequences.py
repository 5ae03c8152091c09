"""Sequences: bounds of means that hold at every row at once, so that one may look after each and stop at any.

A mean is bounded below by bets against it. Where no score is below `least`, and the mean of each given the past is m at
most, the capital of a bet k >= 0,

    prod_i (1 + k (s_i - least)) / (1 + k (m - least)),

is a nonnegative supermartingale that starts at 1. So is its average over many bets, and by Ville's inequality it ever
reaches 1 / alpha with probability alpha at most (Waudby-Smith and Ramdas 2023, "Estimating means of bounded random
variables by betting"). Scores are paired and doubly robust, with predictions cut so that a large weight cannot take a
score below -reach (Waudby-Smith, Wu, Ramdas, Karampatziakis and Mineiro 2022, "Anytime-valid off-policy inference for
contextual bandits"). Nothing here is asymptotic: the promise needs the logged pmf alone, no least number of rows.

`router/offline/estimation/confidence_sequences.py` has the same over arrays; this one goes on row by row.
"""

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["REACHES", "Capital", "Sequence", "Stream", "scores_of"]

Array = npt.NDArray[np.float64]

#: Bets in units of 1 / (high - least). The best one falls like 1 / sqrt(n variance).
_BETS: Final = np.geomspace(2e-3, 2.0, 11)
#: How far below the least prediction a score may fall: small ones allow bolder bets, which tells sooner
REACHES: Final = np.array([1.0, 4.0])
#: halvings of the range in search of a bound
_HALVINGS: Final = 36


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """One claim, "the mean is above `null`", and the chance that it is made where it is wrong."""

    #: least value of sum_k D_k M_k for predictions in [0, 1]
    floor: float
    null: float
    alpha: float


@dataclass(kw_only=True, slots=True)
class Sequence:
    """The capital of one stream's bets, row by row."""

    stream: Stream
    rows: int = 0
    #: the row after which the claim was proven; None: it is not
    proven_at: int | None = None
    #: sums of log(1 + bet (score - least)), shape (reaches, bets)
    grown: Array = field(default_factory=lambda: np.zeros((len(REACHES), len(_BETS))))

    def add(self, scores: Array) -> None:
        """Take rows in, in their order; scores: with each reach, shape (reaches, rows)."""
        above = np.maximum(scores - self._least[:, None], 0.0)
        steps = np.log1p(self._bets[:, :, None] * above[:, None, :])
        if self.proven_at is None and scores.shape[1]:
            paths = self.grown[:, :, None] + np.cumsum(steps, axis=2)
            counts = self.rows + np.arange(1, scores.shape[1] + 1)
            paths -= self._cost(self.stream.null)[:, :, None] * counts
            reached = _log_mean_exp(paths.reshape(-1, scores.shape[1])) >= -math.log(self.stream.alpha)
            if reached.any():
                self.proven_at = self.rows + int(np.argmax(reached)) + 1
        self.grown += steps.sum(axis=2)
        self.rows += scores.shape[1]

    def lower(self, *, alpha: float) -> float:
        """The lower bound of the mean at this row; `floor` where nothing is known."""
        below, above = self.stream.floor, 1.0
        for _ in range(_HALVINGS):
            middle = (below + above) / 2
            capital = self.grown - self.rows * self._cost(middle)
            if _log_mean_exp(capital.reshape(-1, 1))[0] >= -math.log(alpha):
                below = middle
            else:
                above = middle
        return below

    @property
    def _least(self) -> Array:
        return self.stream.floor - REACHES

    @property
    def _bets(self) -> Array:
        return _BETS / (1.0 - self._least)[:, None]

    def _cost(self, mean: float) -> Array:
        return np.log1p(self._bets * (mean - self._least)[:, None])


def scores_of(*, share: Array, pmf: Array, arm: npt.NDArray[np.intp], value: Array, guess: Array) -> Array:
    """Doubly robust scores of sum_k D_k E[value of arm k], with each of the reaches; shape (reaches, rows).

    share: D, shape (n, K); pmf: logged, shape (n, K), above 0 where D is not 0; value: in [0, 1], of the arm drawn;
    guess: M, in [0, 1], shape (n, K), made before the row was drawn.
    """
    ratio = np.divide(share, pmf, out=np.zeros_like(share), where=pmf > 0.0)
    at = np.arange(len(value)), arm
    scores = np.empty((len(REACHES), len(value)))
    for place, reach in enumerate(REACHES):
        with np.errstate(divide="ignore"):
            room = reach / np.abs(ratio)
        cut = np.where(ratio > 0.0, np.minimum(guess, room), np.maximum(guess, 1.0 - room))
        scores[place] = (share * cut).sum(axis=1) + ratio[at] * (value - cut[at])
    return scores


@dataclass(kw_only=True, slots=True)
class Capital:
    """Bets that are fair where the log is what it says: capital far above 1 says that it is not.

    `add` takes, for each bet and row, the factor of which the mean is 1 under the logged pmf.
    """

    bets: int
    alpha: float
    #: the row after which it was refuted; None: it is not
    refuted_at: int | None = None
    rows: int = 0
    logs: Array = field(init=False)

    def __post_init__(self) -> None:
        self.logs = np.zeros(self.bets)

    def add(self, factors: Array) -> None:
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


def _log_mean_exp(values: Array) -> Array:
    """Over the first axis."""
    top = values.max(axis=0)
    found: Array = top + np.log(np.exp(values - top).mean(axis=0))
    return found
