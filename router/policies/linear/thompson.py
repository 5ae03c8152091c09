"""Thompson sampling for linear rewards (Agrawal and Goyal 2013, algorithm 1), integrated instead of sampled.

The paper draws a weight vector from the posterior and plays the arm that is best under it. The probability of an arm
is then the probability that it is the best one, and that is what is computed here: exact propensities, no random
numbers. Different, on purpose:

- Every arm has weights of its own (the paper: one vector, features per arm), so the arms' values are independent
  Gaussians with the means and widths of router/policies/linear/ridge.py.
- The width is the posterior's times `scale`. The paper's factor v, which grows with sqrt(d ln t), serves its proof;
  with hundreds of features it drowns the means.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ragbandit.router.policies.base import PolicyOutput
from ragbandit.router.policies.linear.policy import RidgeParams, RidgePolicy
from ragbandit.router.policies.linear.ridge import MANY_ARMS
from ragbandit.router.policies.params import Number, read_params
from ragbandit.shared.types import ArmName, Features, Json, Vector

#: Edges of the pieces in an arm's own standard deviations: what lies outside has less than 1e-15 of its mass.
_EDGES = np.arange(-8.0, 8.5, 2.0)
#: On a piece of two standard deviations the normal density and its integral are polynomials of degree 15 to 1e-11.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
#: Below this share of the widest arm's width an arm is a point: the step at its mean is then exact enough.
_POINT = 1e-12
#: ... and below this in any case, since densities must stay floats.
_LEAST = 1e-150
#: a piece is left out if the best value lies on it with less than this chance; there are some hundred pieces
_NOBODY = 1e-13
#: further out, in an arm's own standard deviations, lies less than 1e-15 of its mass
_OUTERMOST = 8.25
_ROOT_2 = math.sqrt(2.0)

# Of Python, not of numpy: np.exp rounds otherwise on a CPU with AVX512, and the propensity would too.
_erfc = np.vectorize(math.erfc, otypes=[np.float64])
_exp = np.vectorize(math.exp, otypes=[np.float64])


@dataclass(frozen=True, kw_only=True, slots=True)
class LinTsParams(RidgeParams):
    """Settings of lints."""

    #: factor on the posterior's width; 0 is greedy, ties shared
    scale: Number = 1.0


class LinTs(RidgePolicy):
    """Every arm with the probability that it is the best."""

    algorithm: ClassVar[str] = "lints"

    def __init__(self, **params: Json) -> None:
        settings = read_params(LinTsParams, given=params)
        super().__init__(settings)
        self.scale = settings.scale

    def output(self, features: Features, *, arms: Sequence[ArmName], weight: float) -> PolicyOutput:
        """Every arm by its chance to be the best; the widths go to the log."""
        prediction = self._heads.predict(features, arms=arms, weight=weight)
        widths = [self.scale * width for width in prediction.width]
        pmf = chance_of_being_best(prediction.value, widths=widths)
        return PolicyOutput(
            pmf=pmf, scores=prediction.value, facts=self.facts(prediction, weight=weight) | {"width": widths}
        )


def chance_of_being_best(means: Sequence[float], *, widths: Sequence[float]) -> tuple[float, ...]:
    """P(arm i has the largest value), the values independent Gaussians; width 0 is a sure value, ties are shared.

    P_i = integral of density_i(x) * product over j != i of P(value_j <= x), by Gauss-Legendre on pieces so fine that
    no arm changes much on one of them. The absolute error is below 1e-9; the result sums to 1.
    """
    mean = np.array(means, dtype=np.float64)
    mean -= mean.max()  # near 0, where floats are dense
    width = np.array(widths, dtype=np.float64)
    sure = width <= max(_POINT * float(width.max()), _LEAST)
    chance = np.zeros(mean.size)
    lowest = -math.inf
    if sure.any():
        lowest = float(mean[sure].max())
        tied = sure & (mean == lowest)
        # A sure value is the best if every unsure one falls below it.
        chance[tied] = _below(np.array([lowest]), mean=mean[~sure], width=width[~sure]).prod() / tied.sum()
    if not sure.all():
        integrals = _unsure if mean.size <= MANY_ARMS else _unsure_of_many
        chance[~sure] = integrals(mean[~sure], width=width[~sure], lowest=lowest)
    return tuple((chance / chance.sum()).tolist())


def _unsure(mean: Vector, *, width: Vector, lowest: float) -> Vector:
    """The integrals of k arms with widths above 0, over x > lowest, the best sure value; shape (k,)."""
    edges = (mean[:, None] + width[:, None] * _EDGES).reshape(-1)
    # Under the arm with the highest lower end nobody is best; above the highest upper end nobody is found.
    start = max(lowest, float((mean + _EDGES[0] * width).max()))
    edges = np.unique(np.append(edges[edges > start], start))
    middle, half = (edges[1:] + edges[:-1]) / 2.0, (edges[1:] - edges[:-1]) / 2.0  # (pieces,)
    x = (middle[:, None] + half[:, None] * _NODES).reshape(-1)  # (nodes,)
    weight = (half[:, None] * _WEIGHTS).reshape(-1)
    below = _below(x, mean=mean, width=width)  # (nodes, k)
    density = _exp(-0.5 * ((x[:, None] - mean) / width) ** 2) / (width * math.sqrt(2.0 * math.pi))
    return np.array(
        [(weight * density[:, i] * np.delete(below, i, axis=1).prod(axis=1)).sum() for i in range(mean.size)]
    )


def _unsure_of_many(mean: Vector, *, width: Vector, lowest: float) -> Vector:
    """`_unsure` in O(k) per node, on nodes that all arms share; the two agree to 1e-9.

    A piece is as wide as the narrowest arm that changes on it, and pieces on which hardly anybody is best are left out:
    the chance that the best value lies on a piece is the product of all P(value_j <= x), at its end less at its
    beginning. At a node the products without one arm are those of the arms before it and behind it.
    """
    edges = _shared_edges(mean, width=width, lowest=lowest)
    inside = np.diff(_cdf((edges[:, None] - mean) / width).prod(axis=1)) > _NOBODY
    lower, upper = edges[:-1][inside], edges[1:][inside]
    middle, half = (upper + lower) / 2.0, (upper - lower) / 2.0  # (pieces,)
    x = (middle[:, None] + half[:, None] * _NODES).reshape(-1)  # (nodes,)
    weight = (half[:, None] * _WEIGHTS).reshape(-1)
    z = (x[:, None] - mean) / width  # (nodes, k)
    below = _cdf(z)
    before, behind = np.ones_like(below), np.ones_like(below)
    np.cumprod(below[:, :-1], axis=1, out=before[:, 1:])
    behind[:, :-1] = np.cumprod(below[:, :0:-1], axis=1)[:, ::-1]
    density = _mapped(math.exp, -0.5 * z * z, within=np.abs(z) < _OUTERMOST, beyond=np.zeros_like(z))
    density /= width * math.sqrt(2.0 * math.pi)
    chances: Vector = (weight[:, None] * density * before * behind).sum(axis=0)
    return chances


def _shared_edges(mean: Vector, *, width: Vector, lowest: float) -> Vector:
    """Edges of pieces above `lowest`, each as wide as the narrowest arm that changes on it."""
    order = np.argsort(width, kind="stable")
    narrow, low, high = width[order], (mean + _EDGES[0] * width)[order], (mean + _EDGES[-1] * width)[order]
    x, end = max(lowest, float(low.max())), float(high.max())
    edges = [x]
    while x < end:
        here = np.flatnonzero((low <= x) & (high > x))
        step = float(narrow[here[0]]) if here.size else end - x
        coming = low[(low > x) & (low < x + step) & (narrow < step)]
        beyond = min(float(coming.min()) if coming.size else x + step, end)
        if beyond <= x:  # a step that rounding swallows: the arm is a point here
            beyond = float(np.nextafter(x, math.inf)) + 1e-15 * abs(x)
        x = beyond
        edges.append(x)
    return np.array(edges)


def _cdf(z: Vector) -> Vector:
    """P(a standard normal value <= z)."""
    return _mapped(math.erfc, -z / _ROOT_2, within=np.abs(z) < _OUTERMOST, beyond=np.where(z > 0.0, 2.0, 0.0)) * 0.5


def _mapped(function: Callable[[float], float], x: Vector, *, within: npt.NDArray[np.bool_], beyond: Vector) -> Vector:
    """Python's function of x `within` some bounds, what is `beyond` them elsewhere."""
    beyond[within] = list(map(function, x[within].tolist()))
    return beyond


def _below(x: Vector, *, mean: Vector, width: Vector) -> Vector:
    """P(value_j <= x_n), shape (n, k)."""
    if not mean.size:
        return np.ones((x.size, 0))
    below: Vector = 0.5 * _erfc((mean - x[:, None]) / (width * math.sqrt(2.0)))
    return below
