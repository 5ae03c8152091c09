"""Bayesian linear regression per arm with two heads, quality and cost: the part that several policies share.

Per arm a: y = W_a z + noise, y = (quality, cost), z = (1, x / sqrt(d)), x the question's features of length d. Both
heads see the same z, so one inverse precision P_a serves them; it is kept by Sherman-Morrison, O(d^2) per row. The
mean W_a is the exact minimiser of squared error plus ridge over all rows of the arm, in any order of them.

The noise has one covariance S, shared by the arms: of one arm alone there are often too few rows to tell. Row i adds
e e^T / (1 + z^T P z), e what the arm's mean missed before the row; these terms add up to the rows' scatter left over
by the ridge solution (conjugate update; Bishop, Pattern Recognition and Machine Learning, section 3.3, and the
matrix normal inverse Wishart). The posterior of the value v = quality - weight * cost at z has standard deviation

    width = sqrt((1, -weight) S (1, -weight)^T * z^T P_a z)

in units of reward. z^T P_a z takes O(d^2) per arm; its mean over the arm's latest rows, the leverage, is kept as well,
for a policy that decides in microseconds.

Rows may fade: with a memory of m rows, each new row of an arm multiplies the weight of its older ones by 1 - 1/m. The
prior would fade as well, and the precision of directions that no question takes would fall without end. So every row
restores the prior of one coordinate, each in its turn.

A row may count as w rows (its reward's sample weight): as one whose noise is S / w, which adds w z z^T and w y z^T,
scatters w e e^T / (1 + w z^T P z), and lets older rows fade by 1 - w/m. With w = 2 that is the same row twice; a row
that counts as none is counted and leaves no other trace.

Sums run through einsum and numpy's own loops, never BLAS: its result depends on the threads.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ragbandit.router.policies.base import (
    Arrays,
    Facts,
    checked_arrays,
    counted_state,
    heads_of,
    restored_counts,
    rows_of,
    tally,
    usual_weight,
    weight_of,
)
from ragbandit.shared.errors import PolicyFault
from ragbandit.shared.types import ArmName, Features, Json, Matrix, Update, Vector

#: The noise before any row: quality in [0, 1] has a variance of at most 1/4; of cost nothing is known, not even its
#: unit. It counts as much as one row.
_FIRST_SCATTER = np.array([[0.25, 0.0], [0.0, 0.0]])

#: rows of an arm that its leverage is the mean of
LATEST = 50
#: A coordinate waits d + 1 rows for its prior, and rounding grows like (1 - 1/memory)^-(d+1) meanwhile: with a memory
#: of 2 rows and 256 features nothing is left of the inverse.
LEAST_MEMORY = 50
#: With more arms than this a width is a sum over the upper triangle, half the work. The last bits of the two ways
#: differ, and with few arms the products by pairs cost more than they save.
MANY_ARMS = 8
#: rows of a matrix that are changed at once, so that what is subtracted stays in the processor's cache
_STRIP = 32
#: one row lets its arm's older ones fade by at most this share
_MOST_LOST = 0.5
#: a prediction is never surer than this, in units of reward
LEAST_NOISE = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The posterior for one question; four tuples aligned with the arms that were offered."""

    quality: tuple[float, ...]
    cost: tuple[float, ...]
    #: quality - weight * cost, the posterior mean of the reward
    value: tuple[float, ...]
    #: posterior standard deviation of that mean, in units of reward (> 0)
    width: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stack:
    """What is the same for all questions between two rows that were learned."""

    #: each arm's place in `mean`
    order: dict[ArmName, int]
    #: means of all arms below each other, (2 K, d+1)
    mean: Matrix
    #: every arm's width from its leverage; of an arm without rows, the prior's
    width: dict[ArmName, float]
    width_unseen: float


class RidgeHeads:
    """Ridge regression per arm: the posterior of every arm's weights, and its update.

    ridge, bias_ridge: prior precision of the weights and of the intercept, in units of 1/noise variance (> 0), with
    x scaled so that |x|^2 / d is 1 on average. An arm without rows has mean 0 and the prior's width. memory: rows of an
    arm after which an older one counts 1/e (>= 50); None keeps all alike.
    """

    def __init__(self, *, ridge: float, bias_ridge: float, memory: float | None = None) -> None:
        self.ridge, self.bias_ridge, self.memory = ridge, bias_ridge, memory
        self.seen: dict[ArmName, int] = {}
        #: the weight of cost that the last row had whose question came without one; before any row every cost mean is 0
        self.weight = 0.0
        #: it is of a row whose question had one of its own: no other was learned yet
        self._is_borrowed = False
        #: per arm: inverse precision (d+1, d+1), sums of y z^T (2, d+1), posterior means (2, d+1)
        self._inverse: dict[str, Matrix] = {}
        self._moment: dict[str, Matrix] = {}
        self._mean: dict[str, Matrix] = {}
        #: (2, 2), the scatter of the noise over all rows, and their number, both faded
        self._scatter = np.zeros((2, 2))
        self._rows = 0.0
        #: per arm: rows since it was started, mean of z^T P z over the latest of them
        self._age: dict[ArmName, int] = {}
        #: per arm: what these rows count as
        self._mass: dict[ArmName, float] = {}
        self._leverage: dict[ArmName, float] = {}
        #: what the last row's reward was above its prediction
        self.missed = 0.0
        #: what `predict_fast` needs of all arms; made when asked for
        self._stack: _Stack | None = None
        #: per arm: the upper triangle of its inverse, everything but the diagonal twice; made when asked for
        self._packed: dict[ArmName, Vector] = {}

    @property
    def noise(self) -> float:
        """Standard deviation of the reward around its mean, in units of reward (> 0)."""
        return self._noise(weight=self.weight)

    def noise_at(self, weight: float | None) -> float:
        """`noise` at another weight of cost than that of the last row; None: at that one."""
        return self._noise(weight=self.weight if weight is None else weight)

    def _noise(self, *, weight: float) -> float:
        covariance = (_FIRST_SCATTER + self._scatter) / (1.0 + self._rows)
        variance = covariance[0, 0] - 2.0 * weight * covariance[0, 1] + weight * weight * covariance[1, 1]
        # The scatter is positive semidefinite but for rounding.
        return math.sqrt(max(float(variance), 0.0))

    def predict(self, features: Features, *, arms: Sequence[ArmName], weight: float | None = None) -> Prediction:
        """Means and widths of these arms for one question; features of shape (d,).

        weight: of cost; None: that of the last row.
        """
        z = design(features)
        noise, weight = self.noise_at(weight), self.weight if weight is None else weight
        quality, cost, width = [], [], []
        squares = _squares(z) if len(arms) > MANY_ARMS else None
        for arm in arms:
            if arm in self._mean:
                q, c = ((self._mean[arm] * z).sum(axis=1)).tolist()
                spread = self._spread(arm, z, squares=squares)
            else:
                q = c = 0.0
                spread = float((z * z / self._precision(z.size)).sum())
            quality.append(q)
            cost.append(c)
            width.append(noise * math.sqrt(max(spread, 0.0)))
        value = tuple(q - weight * c for q, c in zip(quality, cost, strict=True))
        return Prediction(quality=tuple(quality), cost=tuple(cost), value=value, width=tuple(width))

    def predict_fast(self, features: Features, *, arms: Sequence[ArmName], weight: float | None = None) -> Prediction:
        """`predict` in O(d) per arm: the width is the same for all questions, from the arm's cached leverage.

        It is that of the last row's weight of cost, whatever the weight.
        """
        if self._stack is None:
            self._stack = self._stacked(size=features.size + 1)
        stack, weight = self._stack, self.weight if weight is None else weight
        order, widths, unseen = stack.order, stack.width, stack.width_unseen
        means = np.einsum("kj,j->k", stack.mean, design(features)).tolist() if order else []
        quality = tuple([means[2 * order[arm]] if arm in order else 0.0 for arm in arms])
        cost = tuple([means[2 * order[arm] + 1] if arm in order else 0.0 for arm in arms])
        return Prediction(
            quality=quality,
            cost=cost,
            value=tuple([q - weight * c for q, c in zip(quality, cost, strict=True)]),
            width=tuple([widths.get(arm, unseen) for arm in arms]),
        )

    def _spread(self, arm: ArmName, z: Vector, *, squares: Vector | None) -> float:
        """z^T P z of an arm. squares: the products of z by pairs, where there are so many arms that it pays."""
        if squares is None:
            return float((np.einsum("ij,j->i", self._inverse[arm], z) * z).sum())
        packed = self._packed.get(arm)
        if packed is None:
            packed = self._packed[arm] = _packed(self._inverse[arm])
        return float(np.einsum("t,t->", packed, squares))

    def _forget(self, arm: ArmName) -> None:
        """Drop what was made of an arm's posterior for predicting."""
        self._stack = None
        self._packed.pop(arm, None)

    def _stacked(self, *, size: int) -> "_Stack":
        known = sorted(self._mean)
        noise, prior = self.noise, 1.0 / self.bias_ridge + 1.0 / self.ridge
        return _Stack(
            order={ArmName(arm): index for index, arm in enumerate(known)},
            mean=np.concatenate([self._mean[arm] for arm in known]) if known else np.zeros((0, size)),
            width={arm: noise * math.sqrt(leverage) for arm, leverage in self._leverage.items()},
            width_unseen=noise * math.sqrt(prior),
        )

    def learn(self, update: Update) -> float:
        """One row into the drawn arm's posterior and into the noise; PolicyFault and no change if it cannot be used.

        The row's residual, in standard deviations of its prediction.
        """
        if update.features is None or (self._mean and update.features.size + 1 != self._size):
            raise PolicyFault("features are missing or of another length")
        rows = rows_of(update)
        if rows == 0.0:
            tally(self.seen, update)
            return 0.0
        arm, z = update.arm, design(update.features)
        *heads, weight = self._targets(update)
        y = np.array(heads)  # (2,)
        fresh = arm not in self._inverse
        inverse = np.diag(1.0 / self._precision(z.size)) if fresh else self._inverse[arm]
        moment = np.zeros((2, z.size)) if fresh else self._moment[arm]
        mean = np.zeros((2, z.size)) if fresh else self._mean[arm]
        fade = self._kept(rows)
        with np.errstate(over="ignore", invalid="ignore"):
            leverage = float((np.einsum("ij,j->i", inverse, z) * z).sum())
            missed = y - (mean * z).sum(axis=1)  # (2,)
            scatter = fade * self._scatter + rows * (missed[:, None] * missed[None, :]) / (1.0 + rows * leverage)
            moment = fade * moment + (rows * y)[:, None] * z[None, :]
        reach = leverage * weight * weight + update.reward.cost
        if not (np.isfinite(scatter).all() and np.isfinite(moment).all() and math.isfinite(reach)):
            raise PolicyFault("the row holds numbers that are not finite, or too large to be squared")
        residual = self._standardised(missed, weight=weight, leverage=leverage, rows=rows)
        age = self._age.get(arm, 0)
        if self.memory is not None:
            inverse /= fade
            self._restore_prior(inverse, place=age % z.size, lost=1.0 - fade)
        add_row(inverse, z, rows=rows)
        self._inverse[arm], self._moment[arm] = inverse, moment
        self._mean[arm] = np.einsum("kj,ij->ki", moment, inverse)
        self._scatter, self._rows = scatter, fade * self._rows + rows
        self._follow(update, weight=weight)
        self._age[arm], self._mass[arm] = age + 1, self._mass.get(arm, 0.0) + rows
        known = self._leverage.get(arm, leverage)
        self._leverage[arm] = known + (leverage - known) / min(age + 1, LATEST)
        self._forget(arm)
        tally(self.seen, update)
        return residual

    def _targets(self, update: Update) -> tuple[float, float, float]:
        """What the heads regress: quality and cost, and the weight between them."""
        usual = usual_weight(update.query, usual=self.weight)
        return heads_of(update.reward, weight=weight_of(update.query, default=self.weight), usual=usual)

    def _follow(self, update: Update, *, weight: float) -> None:
        """Serve questions that come without a weight of cost at that of the last such row; before any at the last's."""
        if update.query.cost_weight is None or self._is_borrowed or not self.seen:
            self.weight = float(weight)
            self._is_borrowed = update.query.cost_weight is not None

    def _kept(self, rows: float) -> float:
        """What is left of an older row's weight when its arm learns one that counts as `rows`."""
        return 1.0 if self.memory is None else 1.0 - min(rows / self.memory, _MOST_LOST)

    def _standardised(self, missed: Sequence[float] | Vector, *, weight: float, leverage: float, rows: float) -> float:
        """The miss (quality, cost) of a row that counts as `rows`, in standard deviations of its prediction."""
        expected = self._noise(weight=weight) * math.sqrt((1.0 + rows * leverage) / rows)
        self.missed = float(missed[0] - weight * missed[1])
        return self.missed / max(expected, LEAST_NOISE)

    def finish(self, arm: ArmName, *, restart: float | None = None) -> None:
        """After every row: with `restart` (> 0) let the arm's rows count that much together, and its age begin anew."""
        if restart is not None:
            self.discount(arm, rows=restart)

    def mass(self, arm: ArmName) -> float:
        """What the rows of an arm count as, since it was started, or started again."""
        return self._mass.get(arm, 0.0)

    def age(self, arm: ArmName) -> int:
        """Rows of an arm since it was started, or started again."""
        return self._age.get(arm, 0)

    def discount(self, arm: ArmName, *, rows: float) -> None:
        """Let an arm's rows count as `rows` (> 0) together, if they are more; its age begins anew.

        What was learned stays the best guess, and new rows soon outweigh it.
        """
        inverse, moment = self._inverse[arm], self._moment[arm]
        share = self._share(arm, rows=rows)
        inverse /= share
        moment *= share
        for place in range(len(inverse)):  # the prior was scaled as well
            precision = (self.bias_ridge if place == 0 else self.ridge) * (1.0 - share)
            _add_at(inverse, place=place, precision=precision)
        self._mean[arm] = np.einsum("kj,ij->ki", moment, inverse)
        self._leverage[arm] = min(self._leverage[arm] / share, 1.0 / self.bias_ridge + 1.0 / self.ridge)
        self._age[arm], self._mass[arm] = 0, 0.0
        self._forget(arm)

    def _share(self, arm: ArmName, *, rows: float) -> float:
        """What is left of an arm's rows where they are to count as `rows` together, if they are more."""
        return min(1.0, rows / (self._mass[arm] if self.memory is None else min(self._mass[arm], self.memory)))

    def _restore_prior(self, inverse: Matrix, *, place: int, lost: float) -> None:
        """Return to one coordinate the prior precision that all of them lose in as many rows as there are of them."""
        precision = (self.bias_ridge if place == 0 else self.ridge) * lost * len(inverse)
        _add_at(inverse, place=place, precision=precision)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """Three arrays per arm, named by the arm, the noise, the counts, the weight, and each arm's age and leverage.

        An inverse is symmetric: the snapshot holds its upper triangle, row by row, (d+1)(d+2)/2 numbers.
        """
        arrays, facts = counted_state(self.seen)
        for arm in sorted(self._inverse):
            arrays[f"inverse/{arm}"] = self._inverse[arm][np.triu_indices(self._size)]
            arrays[f"moment/{arm}"] = self._moment[arm]
            arrays[f"mean/{arm}"] = self._mean[arm]
        arrays["scatter"] = self._scatter
        facts |= {"weight": self.weight, "rows": self._rows}
        facts |= {"is_borrowed": True} if self._is_borrowed else {}
        for name, of_arm in (("age", self._age), ("mass", self._mass), ("leverage", self._leverage)):
            facts[name] = dict(sorted(of_arm.items()))
        return arrays, facts

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over a saved state: every arm that has an age has its three arrays, of one size; no other has any."""
        self.seen = restored_counts(facts)
        self.weight, self._rows = facts["weight"], facts["rows"]
        self._is_borrowed = facts.get("is_borrowed", False)
        self._age, self._mass, self._leverage = dict(facts["age"]), dict(facts["mass"]), dict(facts["leverage"])
        size = arrays[f"mean/{next(iter(self._age))}"].shape[1] if self._age else 0
        shapes = {"inverse": (size * (size + 1) // 2,), "moment": (2, size), "mean": (2, size)}
        of_arms = {f"{kind}/{arm}": shape for arm in self._age for kind, shape in shapes.items()}
        own = checked_arrays(arrays, shapes=of_arms | {"scatter": (2, 2)})
        self._scatter = own["scatter"]
        self._inverse = {arm: whole_matrix(own[f"inverse/{arm}"], size=size) for arm in self._age}
        self._moment = {arm: own[f"moment/{arm}"] for arm in self._age}
        self._mean = {arm: own[f"mean/{arm}"] for arm in self._age}
        self._stack, self._packed = None, {}

    @property
    def _size(self) -> int:
        return len(next(iter(self._inverse.values())))

    def _precision(self, size: int) -> Vector:
        """The prior's diagonal, shape (d+1,)."""
        precision = np.full(size, self.ridge)
        precision[0] = self.bias_ridge
        return precision


def whole_matrix(triangle: Vector, *, size: int) -> Matrix:
    """The symmetric matrix of an upper triangle."""
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = triangle
    return np.triu(matrix, 1).T + matrix


def _add_at(inverse: Matrix, *, place: int, precision: float) -> None:
    """(A + precision e e^T)^-1 from A^-1, in place, e the unit vector of a coordinate."""
    column = inverse[:, place].copy()
    column *= math.sqrt(precision / (1.0 + precision * float(column[place])))
    _subtract_square(inverse, column)


def add_row(inverse: Matrix, z: Vector, *, rows: float = 1.0) -> float:
    """(A + w z z^T)^-1 from A^-1, in place; z^T A^-1 z. w, > 0: what the row counts as.

    One vector times itself keeps it symmetric to the last bit.
    """
    gain = np.einsum("ij,j->i", inverse, z)  # (d+1,)
    leverage = float((gain * z).sum())
    gain /= math.sqrt((1.0 + rows * leverage) / rows)
    _subtract_square(inverse, gain)
    return leverage


def _subtract_square(matrix: Matrix, vector: Vector) -> None:
    """Take v v^T off the matrix, in place."""
    for start in range(0, len(matrix), _STRIP):
        strip = slice(start, start + _STRIP)
        matrix[strip] -= vector[strip, None] * vector[None, :]


def _packed(symmetric: Matrix) -> Vector:
    """The upper triangle, row by row, everything but the diagonal twice; shape (n (n+1) / 2,)."""
    twice = symmetric * 2.0
    twice[np.diag_indices(len(twice))] = np.diag(symmetric)
    return twice[_upper(len(symmetric))]


def _squares(z: Vector) -> Vector:
    """The products z_i z_j, i <= j, in the order of `_packed`."""
    rows, columns = _upper(z.size)
    return z[rows] * z[columns]


@functools.lru_cache(maxsize=4)
def _upper(size: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    return np.triu_indices(size)


def design(features: Features | Vector) -> Vector:
    """The row z = (1, x / sqrt(d)), shape (d+1,), float64."""
    z = np.empty(features.size + 1)
    z[0] = 1.0
    z[1:] = features
    z[1:] /= math.sqrt(features.size)
    return z
