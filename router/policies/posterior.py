"""The posterior of the arms' weights: Bayesian linear regression with two heads, quality and cost.

The answer of an arm with the weights W to a question with the design row z has y = (quality, cost) = W z + noise. In
each head, the weights of all arms have the prior N(0, kron(C, diag(v))), in units of the noise variance, with v = RIDGE
/ precision of a weight. C is the covariance between two arms a and b; [a = b] is 1 if they are the same arm, else 0:

    C_ab = [a = b] / RIDGE                                                  independent arms
    C_ab = COMMON + PART * (facts that a and b share) + OWN * [a = b]       arms that share parts

If arms share parts ("facts"), a row of one arm also changes the estimates of arms with the same model, retriever or
depth, and the estimate of an arm without rows follows from its parts. The state of an arm is three sums over its rows,
each with the weight w of the row, and a random sign e for each row and posterior sample:

    G = sum w z z^T,    b = sum w y z^T,    u = sum sqrt(w) e z^T

A is the prior's precision plus the G of each arm on its diagonal. Then b A^-1 is the posterior mean, A^-1 the posterior
covariance, and (prior precision * prior sample + u) A^-1 a deviation with this covariance (perturbed observations:
Papandreou and Yuille 2010; ensemble sampling: Lu and Van Roy 2017). The signs are a hash of arm, row number and sample,
so that a sample is one consistent guess of an arm's values for all questions. Samples come in pairs, the mean plus and
minus a deviation (antithetic variates: Hammersley and Morton 1956), so their mean is exact. A new arm, without rows,
gets its samples from the arms with rows by Matheron's rule: the new arm's prior sample + C_n C^-1 (samples - prior
samples of the arms with rows). C is the covariance between the arms with rows, C_n between the new arm and these arms.

Let S be the covariance of the noise (noise.py). A value quality - weight * cost at z has the posterior standard
deviation sqrt((1, -weight) S (1, -weight)^T * z^T A^-1 z), in units of reward. A row changes A^-1 by the
Sherman-Morrison formula, whose gain vector is stored. After each block of rows, A is inverted again, and the weight of
older rows is reduced. The prior does not fade.
"""

import functools
import hashlib
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Final

import numpy as np

from ragbandit.router.policies.base import Arrays, Facts, checked_arrays
from ragbandit.router.policies.noise import Noise
from ragbandit.router.policies.surrogates import PLAIN, TRUSTED, Scale
from ragbandit.shared.types import ArmName, Json, Matrix, Vector

COMMON: Final = 0.3  #: prior covariance of any two arms, if arms share parts
PART: Final = 0.1  #: additional prior covariance of two arms for each part that they share
OWN: Final = 0.1  #: additional prior covariance of an arm with itself
#: scale of the prior: a weight has the variance v = RIDGE / precision (see the module)
RIDGE: Final = 3.3
#: largest number of rows of a block, after which A is inverted again (see the module)
_BLOCK: Final = 64
#: smallest memory, in rows: with less, only the rows of the latest block would have weight
LEAST_MEMORY: Final = 50
#: largest number of rows of a matrix that `invert` does not halve
_LEAST_HALVED: Final = 64
#: a block has at most memory / _SHARE_OF_MEMORY rows, because rows do not fade within a block
_SHARE_OF_MEMORY: Final = 16

#: third value that `Heads._positions` returns if there are no new arms
_NO_SHARES: Final = np.zeros((0, 0))

ArmFacts = Mapping[ArmName, Mapping[str, Json]]


@dataclass(frozen=True, slots=True)
class Row:
    arm: ArmName
    #: quality and cost, each minus the arm's prior mean
    target: tuple[float, float]
    weight: float  #: weight of cost in the reward
    rows: float  #: number of rows that this row counts as
    #: source of the quality: TRUSTED for ratings, else a source of scores
    source: str = TRUSTED


@dataclass(slots=True)
class _Sums:
    """Sums over the rows of one arm and one source, except the newest rows: G (p, p), b (2, p) and u (pairs, p)."""

    gram: Matrix
    moment: Matrix
    noise: Matrix

    def calibrate(self, scale: Scale) -> "_Sums":
        """The sums that the same rows would give with this calibration of their source."""
        moment = self.moment.copy()
        moment[0] = (moment[0] - scale.offset * self.gram[0]) / scale.slope
        return _Sums(scale.share * self.gram, scale.share * moment, math.sqrt(scale.share) * self.noise)


@dataclass(slots=True)
class _Arm:
    sums: dict[str, _Sums] = field(default_factory=dict)  #: source -> sums over the rows of this source
    number: int = 0  #: number of rows
    unfaded: float = 0.0  #: total weight of the rows since the sums faded last

    def fade(self, share: float) -> None:
        for sums in self.sums.values():
            sums.gram *= share
            sums.moment *= share
            sums.noise *= math.sqrt(share)


@dataclass(slots=True)
class _NewRow:
    """A row that is already in the posterior, but not in the sums."""

    arm: ArmName
    source: str
    #: number of the arm's earlier rows
    number: int
    z: Vector
    target: tuple[float, float]
    rows: float
    #: random sign of the row in each pair of samples, (pairs,)
    signs: Vector


@dataclass(slots=True)
class JointWeights:
    """Weights that are solved together: of one arm if arms are independent, else of all arms."""

    arms: list[ArmName]
    #: position of these weights among the weights of all arms
    place: slice
    #: inverse of A without the newest rows, (n, n) for n weights; A^-1 is this minus the sum of g g^T over all gains g
    covariance: Matrix
    #: gain g of each of the newest rows, (rows of a block, n)
    gains: Matrix
    newest: list[_NewRow] = field(default_factory=list)

    def slice_of(self, arm: ArmName, *, size: int) -> slice:
        index = self.arms.index(arm)
        return slice(index * size, (index + 1) * size)

    def gain(self, z: Vector, *, place: slice) -> Vector:
        """A^-1 z, (n,), for a row of the arm at `place`."""
        gain: Vector = self.covariance[:, place] @ z
        if self.newest:
            gains = self.gains[: len(self.newest)]
            gain -= (gains[:, place] @ z) @ gains
        return gain


class Heads:
    """The posterior of all arms' weights in one model.

    facts: arm -> its parts; arms without an entry share only COMMON. None for independent arms
    ridge, bias_ridge: prior precision of the weights and of the intercept, in units of 1 / noise variance, > 0
    memory: age, in rows of the arm, at which a row has the weight 1/e, >= 50; None if rows do not fade
    pairs: number of pairs of posterior samples, >= 0
    """

    def __init__(
        self, facts: ArmFacts | None, *, ridge: float, bias_ridge: float, memory: float | None, pairs: int
    ) -> None:
        self.facts, self.noise = facts, Noise(memory=memory)
        self.ridge, self.bias_ridge = ridge, bias_ridge
        self.memory, self.pairs = memory, pairs
        self._block = _BLOCK if memory is None else max(1, min(_BLOCK, int(memory) // _SHARE_OF_MEMORY))
        #: the arms with rows, sorted by name
        self._arms: dict[ArmName, _Arm] = {}
        self._scales: dict[str, Scale] = {}
        #: p, the length of a design row; 0 before the first row
        self._size = 0
        self._places: dict[ArmName, int] = {}
        self._joint: dict[ArmName, JointWeights] = {}
        #: `_mean`: posterior means, (2, arms, p); `_deviations`: deviations of the samples, (pairs, arms, p)
        self._mean = self._deviations = np.zeros((0, 0, 0))

    def means(self, z: Vector, *, arms: Sequence[ArmName]) -> Matrix:
        """Posterior means of quality and cost minus prior means, (2, arms), at a design row."""
        if not self._places:
            return np.zeros((2, len(arms)))
        known = (self._mean.reshape(-1, z.size) @ z).reshape(2, -1)
        order, new, shares = self._positions(arms)
        return np.concatenate([known, known @ shares], axis=1)[:, order] if new else known[:, order]

    def deviations(self, z: Vector, *, arms: Sequence[ArmName]) -> Matrix:
        """Deviations of the value in the samples, (pairs, arms), at a design row, in units of the noise."""
        if not self._places:
            return self._prior_values(arms, z=z)
        drawn = (self._deviations.reshape(-1, z.size) @ z).reshape(-1, len(self._places))
        order, new, shares = self._positions(arms)
        if new:
            above = drawn - self._prior_values(list(self._places), z=z)
            drawn = np.concatenate([drawn, self._prior_values(new, z=z) + above @ shares], axis=1)
        return drawn[:, order]

    def quality_weights(self, arm: ArmName, *, size: int) -> Vector:
        """Posterior mean of an arm's weights for quality, (size,); the prior mean 0 before its first row."""
        weights: Vector = self._mean[0, self._places[arm]].copy() if arm in self._places else np.zeros(size)
        return weights

    def _positions(self, arms: Sequence[ArmName]) -> tuple[list[int] | slice, list[ArmName], Matrix]:
        """Returns (positions of the arms in [arms with rows, new arms], new arms, C^-1 C_n of the module)."""
        known = list(self._places)
        if list(arms) == known:  # nearly always true
            return slice(None), [], _NO_SHARES
        new = [arm for arm in arms if arm not in self._places]
        places = {arm: place for place, arm in enumerate([*known, *new])}
        order = [places[arm] for arm in arms]
        if not new:
            return order, new, _NO_SHARES
        shares = np.linalg.solve(self._kernel(known, known), self._kernel(known, new))
        return order, new, shares.astype(np.float64)

    def learn(self, z: Vector, row: Row) -> tuple[float, float]:
        """Learn a row with the design row z. Returns the error of the predicted reward (see `Noise.learn`)."""
        if row.arm not in self._arms:
            self._size = z.size
            self._assign_places({**self._arms, row.arm: _Arm()})
        joint, arm = self._joint[row.arm], self._arms[row.arm]
        scale = self._scales.get(row.source, PLAIN)
        signs = signs_of(row.arm, "row", arm.number, count=self.pairs)
        errors, spread = self._add_row(joint, _NewRow(row.arm, row.source, arm.number, z, row.target, row.rows, signs))
        arm.number, arm.unfaded = arm.number + 1, arm.unfaded + row.rows
        if self._ends_block(sum(self._arms[name].number for name in joint.arms)):
            self._end_block(joint)
        return self.noise.learn(errors, weight=row.weight, rows=scale.share * row.rows, leverage=spread)

    def _ends_block(self, number: int) -> bool:
        """Whether a block ends after this number of rows."""
        return number % self._block == 0

    def _end_block(self, joint: JointWeights) -> None:
        self._move_to_sums(joint)
        for name in joint.arms:
            arm = self._arms[name]
            arm.fade(1.0 if self.memory is None else math.exp(-arm.unfaded / self.memory))
            arm.unfaded = 0.0
        self._recompute(joint)

    def rescale(self, source: str, scale: Scale) -> None:
        """Use this calibration for all rows of a source, including the learned ones."""
        distinct = {id(joint): joint for joint in self._joint.values()}.values()
        for joint in distinct:
            self._move_to_sums(joint)
        self._scales[source] = scale
        for joint in distinct:
            self._recompute(joint)

    def fade(self, arm: ArmName, *, share: float) -> None:
        """Multiply the weight of an arm's rows by `share`, in (0, 1]. New rows then change the estimate faster."""
        if arm in self._arms:
            self._move_to_sums(self._joint[arm])
            self._arms[arm].fade(share)
            self._recompute(self._joint[arm])

    def _add_row(self, joint: JointWeights, row: _NewRow) -> tuple[tuple[float, float], float]:
        """Update the posterior. Returns (prediction errors of quality and cost before the row, z^T A^-1 z)."""
        place = joint.slice_of(row.arm, size=row.z.size)
        gain = joint.gain(row.z, place=place)
        spread = float(gain[place] @ row.z)
        scale = self._scales.get(row.source, PLAIN)
        rows = scale.share * row.rows
        scaled, root = 1.0 + rows * spread, math.sqrt(rows)
        mean = _flat(self._mean)[:, joint.place]
        predicted: list[float] = (mean[:, place] @ row.z).tolist()
        errors = scale.quality(row.target[0]) - predicted[0], row.target[1] - predicted[1]
        mean += np.multiply.outer(errors, gain * (rows / scaled))
        if self.pairs:
            drawn = _flat(self._deviations)[:, joint.place]
            drawn += (root * row.signs - rows * (drawn[:, place] @ row.z))[:, None] * (gain / scaled)
        np.multiply(gain, math.sqrt(rows / scaled), out=joint.gains[len(joint.newest)])
        joint.newest.append(row)
        return errors, spread

    def _move_to_sums(self, joint: JointWeights) -> None:
        """Add the newest rows to the sums of their arms. Call `_recompute` afterwards."""
        for arm, source in sorted({(row.arm, row.source) for row in joint.newest}):
            newest = [row for row in joint.newest if (row.arm, row.source) == (arm, source)]
            z, rows = np.array([row.z for row in newest]), np.array([row.rows for row in newest])
            zeros = _Sums(*(np.zeros((length, self._size)) for length in (self._size, 2, self.pairs)))
            sums = self._arms[arm].sums.setdefault(source, zeros)
            signs = np.array([row.signs for row in newest])
            weighted = rows[:, None] * z
            gram = z.T @ weighted
            sums.gram += 0.5 * (gram + gram.T)  # symmetric, since a snapshot stores one triangle
            sums.moment += np.array([row.target for row in newest]).T @ weighted
            sums.noise += (np.sqrt(rows)[:, None] * signs).T @ z
        joint.newest = []

    def _assign_places(self, rows: Mapping[ArmName, _Arm]) -> None:
        size, old_joints = self._size, self._joint
        old_mean, old_drawn = self._mean, self._deviations
        self._arms, self._joint = {arm: rows[arm] for arm in sorted(rows)}, {}
        arms = list(self._arms)
        self._places = {arm: place for place, arm in enumerate(arms)}
        self._mean, self._deviations = np.zeros((2, len(arms), size)), np.zeros((self.pairs, len(arms), size))
        for together in [arms] if self.facts is not None else [[arm] for arm in arms]:
            first, last = self._places[together[0]], self._places[together[-1]] + 1
            old_joint = next((old_joints[arm] for arm in together if arm in old_joints), None)
            place = slice(first * size, last * size)
            if old_joint is not None and old_joint.arms == together:
                joint = replace(old_joint, place=place)
                for new, old in ((self._mean, old_mean), (self._deviations, old_drawn)):
                    _flat(new)[:, place] = _flat(old)[:, old_joint.place]
            else:
                if old_joint is not None:
                    self._move_to_sums(old_joint)
                gains = np.empty((self._block, len(together) * size))
                joint = JointWeights(together, place, np.zeros((0, 0)), gains)
                self._recompute(joint)
            self._joint |= dict.fromkeys(together, joint)

    def _recompute(self, joint: JointWeights) -> None:
        """Compute the posterior of these weights from the prior and the sums of their arms."""
        size = self._size
        shared, each = np.linalg.inv(self._kernel(joint.arms, joint.arms)), np.arange(size)
        blocks = np.zeros((len(joint.arms), size, len(joint.arms), size))
        blocks[:, each, :, each] = shared * (1.0 / self._variances(size))[:, None, None]
        precision = blocks.reshape(len(joint.arms) * size, -1)
        drawn = np.concatenate([self._prior_samples(arm, size=size) for arm in joint.arms], axis=1) @ precision
        moment = np.zeros((2, len(precision)))
        for arm in joint.arms:
            place = joint.slice_of(arm, size=size)
            moment[0, place] = self._prior_moment(arm)
            for source, sums in self._arms[arm].sums.items():
                scaled = sums.calibrate(self._scales[source]) if source in self._scales else sums
                precision[place, place] += scaled.gram
                drawn[:, place] += scaled.noise
                moment[:, place] += scaled.moment
        joint.covariance = _shared_inverse(precision)
        _flat(self._mean)[:, joint.place] = moment @ joint.covariance
        _flat(self._deviations)[:, joint.place] = drawn @ joint.covariance

    def _prior_moment(self, arm: ArmName) -> Vector | float:
        """Prior precision * prior mean of the arm's weights for quality, before any row."""
        del arm
        return 0.0

    def _kernel(self, left: Sequence[ArmName], right: Sequence[ArmName]) -> Matrix:
        return np.array([[self._covariance(a, b) for b in right] for a in left])

    def _covariance(self, a: ArmName, b: ArmName) -> float:
        if self.facts is None:
            return (a == b) / RIDGE
        facts_a, facts_b = self.facts.get(a, {}), self.facts.get(b, {})
        shared = sum(key in facts_b and facts_b[key] == value for key, value in facts_a.items())
        return COMMON + PART * shared + OWN * (a == b)

    def _variances(self, size: int) -> Vector:
        return RIDGE / np.array([self.bias_ridge] + [self.ridge] * (size - 1))

    def _prior_values(self, arms: Sequence[ArmName], *, z: Vector) -> Matrix:
        return np.array([self._prior_samples(arm, size=z.size) @ z for arm in arms]).T

    def _prior_samples(self, arm: ArmName, *, size: int) -> Matrix:
        if self.facts is None:
            return _independent_samples(arm, self.pairs, size) * np.sqrt(self._variances(size) / RIDGE)
        parts = tuple(f"{key}={value!r}" for key, value in self.facts.get(arm, {}).items())
        return _samples_with_parts(arm, parts, self.pairs, size) * np.sqrt(self._variances(size))

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The state from which `restore` computes the posterior again: the sums and the newest rows.

        A Gram matrix is symmetric, so that only its upper triangle is stored.
        """
        quality, mixed, cost = self.noise.scatter
        arrays: Arrays = {"scatter": np.array([[quality, mixed], [mixed, cost]])}
        newest = {joint.arms[0]: joint.newest for joint in self._joint.values()}
        for name, arm in self._arms.items():
            for source, sums in arm.sums.items():
                arrays[f"gram/{source}/{name}"] = sums.gram[np.triu_indices(self._size)]
                arrays |= {f"moment/{source}/{name}": sums.moment, f"noise/{source}/{name}": sums.noise}
        for name, rows in newest.items():
            numbers = [[row.number, row.rows, *row.target, *row.z] for row in rows]
            arrays[f"newest/{name}"] = np.array(numbers, dtype=np.float64).reshape(-1, 4 + self._size)
        facts: dict[str, Json] = {"rows": self.noise.rows, "size": self._size}
        facts["arms"] = {name: [arm.number, arm.unfaded, *arm.sums] for name, arm in self._arms.items()}
        return arrays, facts | {"newest": {name: [[r.arm, r.source] for r in rows] for name, rows in newest.items()}}

    def restore(self, arrays: Arrays, facts: Facts, *, scales: Mapping[str, Scale]) -> None:
        """Load a saved state. scales: source of scores -> its calibration."""
        size = self._size = facts["size"]
        shapes: dict[str, tuple[int, ...]] = {"scatter": (2, 2)}
        for name, (_, _, *sources) in facts["arms"].items():
            for source in sources:
                shapes |= {f"gram/{source}/{name}": (size * (size + 1) // 2,), f"moment/{source}/{name}": (2, size)}
                shapes[f"noise/{source}/{name}"] = (self.pairs, size)
        shapes |= {f"newest/{name}": (len(rows), 4 + size) for name, rows in facts["newest"].items()}
        checked = checked_arrays(arrays, shapes=shapes)
        (quality, mixed), (_, cost) = checked["scatter"].tolist()
        self.noise.scatter, self.noise.rows = (quality, mixed, cost), facts["rows"]
        self._arms, self._places = {}, {}
        self._joint, self._scales = {}, dict(scales)
        arms: dict[ArmName, _Arm] = {}
        for name, (number, unfaded, *sources) in facts["arms"].items():
            arms[name] = _Arm({}, number, unfaded)
            for source in sources:
                gram = np.zeros((size, size))
                gram[np.triu_indices(size)] = checked[f"gram/{source}/{name}"]
                gram += np.triu(gram, 1).T
                key = f"{source}/{name}"
                arms[name].sums[source] = _Sums(gram, checked[f"moment/{key}"], checked[f"noise/{key}"])
        if arms:
            self._assign_places(arms)
        for name, rows in facts["newest"].items():
            for (arm, source), numbers in zip(rows, checked[f"newest/{name}"].tolist(), strict=True):
                number, count, quality, cost, *z = numbers
                signs = signs_of(arm, "row", int(number), count=self.pairs)
                row = _NewRow(arm, source, int(number), np.array(z), (quality, cost), count, signs)
                self._add_row(self._joint[arm], row)


#: sha256 of a matrix -> its inverse, as long as a policy has it
_inverses: Final = weakref.WeakValueDictionary[bytes, Matrix]()


def _shared_inverse(precision: Matrix) -> Matrix:
    """The inverse of a symmetric positive definite matrix, read-only.

    Policies of one process share it. Sums change once per block, so a router that restores the newest snapshot mostly
    finds the inverse already computed, also by a learner in its process.
    """
    key = hashlib.sha256(precision.data).digest()
    found = _inverses.get(key)
    if found is None:
        found = invert(precision)
        found.flags.writeable = False
        _inverses[key] = found
    return found


def invert(matrix: Matrix) -> Matrix:
    """The inverse, symmetric to the bit, of a symmetric positive definite matrix.

    A large one is inverted by halves, through the Schur complement of its first half, which is positive definite, too.
    Most of this work is products, so that it takes half of the time of `numpy.linalg.inv`. The complement is computed
    by solving linear systems, and not from the first half's inverse, because this keeps its rounding small in
    ill-conditioned matrices.
    """
    size = len(matrix)
    if size <= _LEAST_HALVED:
        whole = np.linalg.inv(matrix)
        return 0.5 * (whole + whole.T)
    half = size // 2
    solved = np.linalg.solve(matrix[:half, :half], np.concatenate([matrix[:half, half:], np.eye(half)], axis=1))
    shares, first = solved[:, : size - half], solved[:, size - half :]
    last = invert(matrix[half:, half:] - matrix[half:, :half] @ shares)
    between = shares @ last
    first = first + between @ shares.T
    inverse = np.empty_like(matrix)
    inverse[:half, :half], inverse[half:, half:] = 0.5 * (first + first.T), last
    inverse[:half, half:], inverse[half:, :half] = -between, -between.T
    return inverse


def _flat(stack: Matrix) -> Matrix:
    """A view of (n, arms, p) as (n, arms * p). `reshape` could not infer the length for n = 0."""
    count, arms, size = stack.shape
    return stack.reshape(count, arms * size)


@functools.lru_cache(maxsize=256)
def _independent_samples(arm: str, count: int, size: int) -> Matrix:
    """Samples of mean 0 and covariance I, (count, size): random signs; for the intercept, quantiles of N(0, 1)."""
    samples = signs_of(arm, "prior", 0, count=count * size).reshape(count, size)
    if count == 0:
        return samples
    order = sorted(range(count), key=lambda sample: hashlib.blake2b(_hash_input(arm, "intercept", sample)).digest())
    values = np.array([NormalDist().inv_cdf(0.5 + (sample + 0.5) / (2 * count)) for sample in range(count)])
    samples[order, 0] *= values / math.sqrt(float((values * values).mean()))
    samples.flags.writeable = False
    return samples


@functools.lru_cache(maxsize=256)
def _samples_with_parts(arm: str, parts: tuple[str, ...], count: int, size: int) -> Matrix:
    """Samples, (count, size): weighted sums of random signs of all arms, of each of the arm's parts, and of the arm."""
    samples = math.sqrt(OWN) * signs_of(arm, "prior", 0, count=count * size)
    for name, variance in [("common", COMMON), *((part, PART) for part in parts)]:
        samples += math.sqrt(variance) * signs_of(name, "part", 0, count=count * size)
    samples.flags.writeable = False
    return samples.reshape(count, size)


def signs_of(name: str, kind: str, number: int, *, count: int) -> Vector:
    """`count` signs, +1 or -1, determined by name, kind and number."""
    stream = hashlib.shake_128(_hash_input(name, kind, number)).digest((count + 7) // 8)
    return np.unpackbits(np.array(bytearray(stream), dtype=np.uint8))[:count].astype(np.float64) * 2.0 - 1.0


def _hash_input(name: str, kind: str, number: int) -> bytes:
    return f"{kind}\0{number}\0{name}".encode("utf-8", "surrogatepass")
