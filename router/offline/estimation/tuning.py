"""Tuning: the parameter of clipped_ips, switch_dr or dros, chosen on the log itself: less variance for more bias.

What a grid of parameters makes of a log is kept as moments, so that the log can be read in pieces: `trials` of each
piece, `merged`, and of the whole `chosen`. A small parameter follows the model (or counts large weights for less), an
infinite one leaves the weights as they are.

The choice is made on the rows that are then estimated from: the standard error of a tuned estimate knows nothing of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ragbandit.router.offline.estimation.estimators import ESTIMATORS, Estimator, shrunk, terms
from ragbandit.router.offline.estimation.moments import Moments
from ragbandit.router.offline.types import Choices, Matrix, Vector
from ragbandit.shared.errors import InvalidInput

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Trials:
    """Estimates of each parameter of a grid on the same rows."""

    estimators: tuple[Estimator, ...]
    #: per estimator, of (score, dropped): the row's share of the estimate, and (w - s(w)) (r - M[a]) that it leaves out
    moments: tuple[Moments, ...]

    def merged(self, other: "Trials") -> "Trials":
        """Those of both sets of rows together; both must be of the same grid."""
        if self.estimators != other.estimators:
            raise InvalidInput("pieces of two grids", field="grid", remedy="try every piece with the same grid")
        return Trials(
            estimators=self.estimators,
            moments=tuple(mine.merged(theirs) for mine, theirs in zip(self.moments, other.moments, strict=True)),
        )

    def chosen(self) -> Estimator:
        """The estimator of the least squared error by `errors`; of equal ones the first."""
        return self.estimators[int(np.argmin(self.errors()))]

    def errors(self) -> Vector:
        """The mean squared errors, aligned with the estimators, in squared units of reward (Su et al. 2020, section 5).

        Variance of the mean + (mean dropped)^2: no bound on the bias that may hide, which would mostly choose the
        largest parameter.
        """
        variance = np.array([moments.scatter[0, 0] / moments.rows / moments.rows for moments in self.moments])
        bias = np.array([moments.mean[1] for moments in self.moments])
        return np.asarray(variance + bias**2, dtype=np.float64)


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
    return Trials(estimators=estimators, moments=tuple(moments))
