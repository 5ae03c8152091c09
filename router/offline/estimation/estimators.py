"""Off-policy estimators of a policy's value: pure functions over arrays, no store needed.

Notation, for n rows and K arms: r rewards (n,); a the arms that were drawn (n,); P the logged pmfs (n, K); Q the
candidate's pmfs (n, K); M predicted rewards (n, K), of models that did not see the row; w = Q[a] / P[a].

An estimate is made of three numbers per row (`Terms`) and of nothing else, so that a log can be read in pieces: `terms`
of each piece, their `Moments` merged, `estimated` of the whole. Formulas and papers stand in one table, `ESTIMATORS`.

No estimator sees an arm that P never plays. Where Q plays one, IPS counts its reward as 0, SNIPS as that of the other
arms, and those with a model take the model's word.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ragbandit.router.offline.types import Choices, Matrix, Vector
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import effective_rows

#: multiplications in one product: larger ones OpenBLAS spreads over threads, which wait for each other
_PRODUCT = 1 << 18


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Moments of n rows with k columns."""

    rows: int
    #: shape (k,); zeros where there are no rows
    mean: Vector
    #: sum over the rows of (z - mean)(z - mean)^T, shape (k, k)
    scatter: Matrix

    @classmethod
    def of(cls, *columns: Vector) -> "Moments":
        """The moments of these columns, each of shape (n,); NaN where a number is not finite."""
        values = np.stack(columns)
        width, rows = values.shape
        if rows == 0:
            return cls(rows=0, mean=np.zeros(width), scatter=np.zeros((width, width)))
        mean = values.mean(axis=1)
        values -= mean[:, None]
        scatter, step = np.zeros((width, width)), max(_PRODUCT // width**2, 32)
        for start in range(0, rows, step):
            block = values[:, start : start + step]
            scatter += block @ block.T
        return cls(rows=rows, mean=mean, scatter=scatter)

    def merged(self, other: "Moments") -> "Moments":
        """The moments of both sets of rows together (Chan, Golub and LeVeque 1983)."""
        rows = self.rows + other.rows
        if 0 in (self.rows, other.rows):
            return other if self.rows == 0 else self
        step = other.mean - self.mean
        return Moments(
            rows=rows,
            mean=self.mean + step * (other.rows / rows),
            scatter=self.scatter + other.scatter + np.outer(step, step) * (self.rows * other.rows / rows),
        )

    def part(self, columns: Sequence[int]) -> "Moments":
        """The moments of these columns, in this order."""
        return Moments(rows=self.rows, mean=self.mean[columns], scatter=self.scatter[np.ix_(columns, columns)])

    def combined(self, matrix: Matrix) -> "Moments":
        """The moments of the columns matrix @ z: linear combinations of these; matrix has shape (m, k)."""
        return Moments(rows=self.rows, mean=matrix @ self.mean, scatter=matrix @ self.scatter @ matrix.T)

    @property
    def covariance(self) -> Matrix:
        """Covariance of a row, unbiased (n - 1 in the denominator), shape (k, k); infinite variances below two rows."""
        if self.rows < 2:
            return np.diag(np.full(len(self.mean), np.inf))
        return self.scatter / (self.rows - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimatorDefinition:
    """What an estimator is. Of a row: w its weight Q[a] / P[a], M the reward model."""

    formula: str
    source: str
    #: it needs predicted rewards: the score is sum_k Q_k M_k + s (r - M[a]), s = w or, of dm, 0; without them w r
    needs_model: bool = False
    #: its bias does not fade with more rows, and its standard error does not hold it
    biased: bool = False
    #: the mean of the corrections is divided by that of the weights
    self_normalised: bool = False


#: every estimator by name
ESTIMATORS: Mapping[str, EstimatorDefinition] = MappingProxyType(
    {
        "ips": EstimatorDefinition(
            formula="mean of w r: unbiased where P plays all that Q plays; can leave the rewards' range",
            source="Horvitz and Thompson 1952",
        ),
        "snips": EstimatorDefinition(
            formula="sum of w r over sum of w: a bias that fades as 1/n, and never outside the range of the rewards",
            source="Swaminathan and Joachims 2015",
            self_normalised=True,
        ),
        "dm": EstimatorDefinition(
            formula="mean of the model's rewards under Q, the direct method: as right as the model",
            source="Dudik, Langford and Li 2011",
            needs_model=True,
            biased=True,
        ),
        "dr": EstimatorDefinition(
            formula="the direct method plus the mean of w (r - M[a]): unbiased where IPS is, whatever the model",
            source="Dudik, Langford and Li 2011",
            needs_model=True,
        ),
        "sndr": EstimatorDefinition(
            formula="the direct method plus the sum of w (r - M[a]) over the sum of w",
            source="Dudik, Erhan, Langford and Li 2014",
            needs_model=True,
            self_normalised=True,
        ),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimator:
    """An estimator by name. Raises InvalidInput that names the known ones."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in ESTIMATORS:
            known = ", ".join(ESTIMATORS)
            raise InvalidInput(f"{self.name!r} is not known", field="estimator", remedy=f"use one of {known}")

    def __str__(self) -> str:
        return self.name

    @property
    def facts(self) -> EstimatorDefinition:
        """Its row of ESTIMATORS."""
        return ESTIMATORS[self.name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """The parts of an estimate, one number of each per row, shape (n,)."""

    #: w: its mean is 1 but for chance and unsupported actions, whatever the estimator
    weight: Vector
    #: contribution of the observed reward
    correction: Vector
    #: the candidate's value under the reward model; 0 without a model
    baseline: Vector

    @property
    def moments(self) -> Moments:
        """Moments of the columns (weight, correction, baseline)."""
        return Moments.of(self.weight, self.correction, self.baseline)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A value with what is needed to trust it."""

    #: NaN where nothing can be said: no rows, or no weight in a self-normalised estimate
    value: float
    #: infinite for fewer than two rows
    standard_error: float
    #: rows used
    rows: int
    #: (sum w)^2 / sum w^2 (Kish): as many on-policy rows would say as much
    effective_rows: float
    #: the standard error leaves out a bias that does not fade with more rows
    biased: bool


def terms(
    estimator: Estimator,
    *,
    reward: Vector,
    action: Choices,
    logged: Matrix,
    candidate: Matrix,
    predicted: Matrix | None = None,
) -> Terms:
    """The terms of every row; the arrays must be true, as a checked `Log`'s are: nothing is checked here.

    Correction: w r without a model, with one w (r - M[a]), of dm 0; baseline: the sum over the arms of Q M. Raises
    InvalidInput where a model is needed and missing.
    """
    drawn = np.arange(len(action)) * logged.shape[1] + action
    weight = np.take(candidate, drawn)
    weight /= np.take(logged, drawn)
    if not estimator.facts.needs_model:
        correction = weight * reward
        return Terms(weight=weight, correction=correction, baseline=np.zeros(len(action)))
    if predicted is None:
        raise InvalidInput(f"{estimator} needs a model", field="predicted", remedy="predict every arm of every row")
    direct = estimator.name == "dm"
    correction = np.zeros(len(action)) if direct else weight * (reward - np.take(predicted, drawn))
    return Terms(weight=weight, correction=correction, baseline=np.einsum("nk,nk->n", candidate, predicted))


def estimated(estimator: Estimator, *, moments: Moments) -> Estimate:
    """The estimate from the moments of (weight, correction, baseline), merged from as many pieces as there were.

    Value: mean correction + mean baseline; if self-normalised, mean correction / mean weight + mean baseline (SNIPS:
    Swaminathan and Joachims 2015; DR: Dudik, Erhan, Langford and Li 2014). Standard error: the sample deviation (n - 1)
    of the row's score over sqrt(n); if self-normalised, the score is that of the delta method (`combination`).
    """
    weight, correction, baseline = (float(mean) for mean in moments.mean)
    if estimator.facts.self_normalised:
        correction = correction / weight if weight > 0.0 else math.nan
    value = correction + baseline if moments.rows else math.nan
    error = math.inf
    if moments.rows > 1 and not math.isnan(value):
        scores = moments.combined(combination(estimator, moments=moments)[None, :])
        # Rounding may leave a variance of 0 slightly below it.
        error = math.sqrt(max(float(scores.covariance[0, 0]), 0.0) / moments.rows)
    squares = float(moments.scatter[0, 0]) + moments.rows * weight * weight
    return Estimate(
        value=value,
        standard_error=error,
        rows=moments.rows,
        effective_rows=effective_rows(moments.rows * weight, squares=squares),
        biased=estimator.facts.biased,
    )


def combination(estimator: Estimator, *, moments: Moments) -> Vector:
    """The coefficients (3,) with which (weight, correction, baseline) make a row's score, up to a constant.

    The value moves with the scores' mean: it is that mean for (0, 1, 1); if self-normalised, with W the mean weight and
    s = mean correction / W, the coefficients are (-s/W, 1/W, 1) (the delta method's gradient), the mean is that of the
    baseline and the value is the mean + s. So the covariance of two estimates on the same rows is that of their scores
    over n, whatever the constants: what a paired difference needs. NaN where a self-normalised estimate has no weight.
    """
    if not estimator.facts.self_normalised:
        return np.array([0.0, 1.0, 1.0])
    weight, correction, _ = moments.mean
    if not weight > 0.0:
        return np.full(3, math.nan)
    return np.array([-correction / weight / weight, 1.0 / weight, 1.0])
