"""Tuning: the parameter of clipped_ips, switch_dr or dros, chosen on the log itself: less variance for more bias.

What a grid of parameters makes of a log is kept as moments, so that the log can be read in pieces: `trials` of each
piece, `merged`, and of the whole `chosen`. A small parameter follows the model (or counts large weights for less), an
infinite one leaves the weights as they are.

The choice is made on the rows that are then estimated from: the standard error of a tuned estimate knows nothing of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from types import MappingProxyType
from typing import Literal

import numpy as np

from ragbandit.router.offline.estimation.estimators import ESTIMATORS, Estimator, shrunk, terms
from ragbandit.router.offline.estimation.moments import Moments
from ragbandit.router.offline.types import Choices, Matrix, Vector
from ragbandit.shared.errors import InvalidInput

Method = Literal["mse", "mse_bound", "slope"]

_WEIGHTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, math.inf)
#: Default grids. Logs with a floor of .001 under every arm have no weight above 1000. Shrinkage by l halves a weight of
#: sqrt(l), so its grid is that of the weights, squared. 0 is the model alone.
GRIDS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "clipped_ips": _WEIGHTS,
        "switch_dr": (0.0, *_WEIGHTS),
        "dros": (0.0, *(weight * weight for weight in _WEIGHTS)),
    }
)

#: of Tucker and Lee (2021): intervals of half-width 1 and sqrt(6) - 1 times the reach must touch
_SLOPE = math.sqrt(6.0) - 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Trials:
    """Estimates of each parameter of a grid on the same rows."""

    estimators: tuple[Estimator, ...]
    #: per estimator, of (score, dropped): the row's share of the estimate, and (w - s(w)) (r - M[a]) that it leaves out
    moments: tuple[Moments, ...]
    #: of the one column w, and the largest w
    weight: Moments
    largest: float

    def merged(self, other: "Trials") -> "Trials":
        """Those of both sets of rows together; both must be of the same grid."""
        if self.estimators != other.estimators:
            raise InvalidInput("pieces of two grids", field="grid", remedy="try every piece with the same grid")
        return Trials(
            estimators=self.estimators,
            moments=tuple(mine.merged(theirs) for mine, theirs in zip(self.moments, other.moments, strict=True)),
            weight=self.weight.merged(other.weight),
            largest=max(self.largest, other.largest),
        )

    def chosen(self, method: Method = "mse", *, width: float = 1.0, delta: float = 0.1) -> Estimator:
        """The estimator to use: of the least squared error by `errors`, measured or bounded, or that of `slope`."""
        match method:
            case "mse":
                return self.estimators[int(np.argmin(self.errors()))]
            case "mse_bound":
                return self.estimators[int(np.argmin(self.errors(width=width, delta=delta)))]
            case "slope":
                return self.slope(delta=delta)
            case _:
                raise InvalidInput(f"no method {method!r}", field="method", remedy="use mse, mse_bound or slope")

    def errors(self, *, width: float = 1.0, delta: float | None = None) -> Vector:
        """The mean squared errors, aligned with the estimators, in squared units of reward (Su et al. 2020, section 5).

        Variance of the mean + (|mean dropped| + hidden)^2. By default nothing is hidden. With a delta, hidden is width
        (sqrt(2 L mean(w^2) / n) + 2 L max(w) / 3n), L = log(2 / delta): the bias is below both together with
        probability 1 - delta by Bernstein's inequality, but so large a bound mostly chooses the largest parameter.
        width: the largest |r - M| (> 0), the rewards' range.
        """
        rows, hidden = self.weight.rows, 0.0
        if delta is not None:
            _check_delta(delta)
            log = math.log(2.0 / delta)
            squares = float(self.weight.scatter[0, 0]) / rows + float(self.weight.mean[0]) ** 2
            hidden = width * (math.sqrt(2.0 * log * squares / rows) + 2.0 * log * self.largest / (3.0 * rows))
        variance = np.array([moments.scatter[0, 0] for moments in self.moments]) / rows / rows
        bias = np.array([abs(moments.mean[1]) for moments in self.moments])
        return np.asarray(variance + (bias + hidden) ** 2, dtype=np.float64)

    def slope(self, *, delta: float = 0.1) -> Estimator:
        """The narrowest estimator that agrees with every wider one (SLOPE: Su, Srinath and Krishnamurthy 2020).

        Each estimate has a reach, the normal quantile of 1 - delta times its standard error. From the widest reach to
        the narrowest, the first estimate that lies further from any before it than its own reach plus sqrt(6) - 1 times
        the other's betrays a bias: the choice is the one before (SLOPE++, Tucker and Lee 2021).
        """
        _check_delta(delta)
        value = np.array([moments.mean[0] for moments in self.moments])
        error = np.sqrt([moments.covariance[0, 0] / moments.rows for moments in self.moments])
        reach = NormalDist().inv_cdf(1.0 - delta) * error
        order = np.argsort(-reach, kind="stable")
        for number in range(1, len(order)):
            wider, here = order[:number], order[number]
            if (np.abs(value[wider] - value[here]) > reach[here] + _SLOPE * reach[wider]).any():
                return self.estimators[int(order[number - 1])]
        return self.estimators[int(order[-1])]


def trials(
    name: str,
    *,
    reward: Vector,
    action: Choices,
    logged: Matrix,
    candidate: Matrix,
    predicted: Matrix | None = None,
    grid: Sequence[float] | None = None,
) -> Trials:
    """Trials of every parameter of the grid (default: GRIDS) on these rows; shapes as in `estimators.terms`.

    name: of an estimator that has a parameter. Raises InvalidInput for others, an empty grid and a missing model.
    """
    if name not in GRIDS:
        raise InvalidInput(f"{name!r} has no parameter", field="estimator", remedy=f"use one of {', '.join(GRIDS)}")
    parameters = GRIDS[name] if grid is None else grid
    if len(parameters) == 0 or len(action) == 0:
        raise InvalidInput("nothing to try", field="grid", remedy="give at least one parameter and one row")
    plain = Estimator(name="dr" if ESTIMATORS[name].needs_model else "ips")
    whole = terms(plain, reward=reward, action=action, logged=logged, candidate=candidate, predicted=predicted)
    drawn = np.arange(len(action)), action
    missed = reward if not plain.facts.needs_model or predicted is None else reward - predicted[drawn]
    estimators = tuple(Estimator(name=name, parameter=float(parameter)) for parameter in parameters)
    moments = []
    for estimator in estimators:
        weight = shrunk(estimator, weight=whole.weight)
        moments.append(Moments.of(whole.baseline + weight * missed, (whole.weight - weight) * missed))
    return Trials(
        estimators=estimators,
        moments=tuple(moments),
        weight=Moments.of(whole.weight),
        largest=float(whole.weight.max()),
    )


def _check_delta(delta: float) -> None:
    if not 0.0 < delta < 1.0:
        raise InvalidInput(f"{delta!r} is not between 0 and 1", field="delta", remedy="for example 0.05")
