"""What another policy would have earned on this log: pure functions over arrays, no store needed.

Notation: r reward (n,), p the logged probability of the arm that was drawn (n,), q the probability that the
candidate gives to that same arm (n,), w = q / p the importance weight.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from router.errors import InvalidInput

__all__ = ["Estimate", "ips", "snips"]

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A value with what is needed to trust it."""

    value: float
    standard_error: float
    #: rows used
    rows: int
    #: (sum w)^2 / sum w^2: as many on-policy rows would say as much
    effective_rows: float

    def interval(self, *, z: float = 1.959963984540054) -> tuple[float, float]:
        """Normal interval; z = 1.96 for 95 %. Undercovers on few effective rows: judge it by them."""
        return self.value - z * self.standard_error, self.value + z * self.standard_error


def ips(reward: Vector, *, logged: Vector, candidate: Vector) -> Estimate:
    """Mean of w r (Horvitz-Thompson): unbiased where p > 0 wherever q > 0; can leave the range of rewards."""
    weight = _weights(reward, logged=logged, candidate=candidate)
    terms = weight * reward
    error = float(terms.std(ddof=1)) / math.sqrt(len(terms)) if len(terms) > 1 else math.inf
    return Estimate(value=float(terms.mean()), standard_error=error, rows=len(terms), effective_rows=_effective(weight))


def snips(reward: Vector, *, logged: Vector, candidate: Vector) -> Estimate:
    """Sum of w r over sum of w (Swaminathan and Joachims 2015): slightly biased, stays in the range of rewards.

    Standard error by the delta method: sqrt(sum (w (r - value))^2) / sum w. NaN where no row has weight.
    """
    weight = _weights(reward, logged=logged, candidate=candidate)
    total = float(weight.sum())
    if total == 0.0:
        return Estimate(value=math.nan, standard_error=math.inf, rows=len(reward), effective_rows=0.0)
    value = float((weight * reward).sum()) / total
    error = math.sqrt(float(((weight * (reward - value)) ** 2).sum())) / total
    return Estimate(value=value, standard_error=error, rows=len(reward), effective_rows=_effective(weight))


def _weights(reward: Vector, *, logged: Vector, candidate: Vector) -> Vector:
    """The importance weights, after the checks without which a number would be meaningless."""
    if not len(reward) == len(logged) == len(candidate) > 0:
        raise InvalidInput(
            f"lengths {len(reward)}, {len(logged)}, {len(candidate)}", field="log", remedy="give equal, nonzero lengths"
        )
    for name, array, good in (
        ("reward", reward, np.isfinite(reward)),
        ("logged", logged, (logged > 0) & (logged <= 1)),
        ("candidate", candidate, (candidate >= 0) & (candidate <= 1)),
    ):
        if not good.all():
            row = int(np.flatnonzero(~good)[0])
            raise InvalidInput(f"{array[row]!r} in row {row}", field=name, remedy="drop the row or mend the log")
    return candidate / logged


def _effective(weight: Vector) -> float:
    squares = float((weight**2).sum())
    return 0.0 if squares == 0.0 else float(weight.sum()) ** 2 / squares
