"""The posterior of the arms' weights: Bayesian linear regression with two heads, quality and cost.

Per arm: y = W z + noise, y = (quality, cost), z = (1, x / sqrt(d)), x the question's features of length d. With the
prior theta ~ N(0, S x diag(1 / precision)) on each head, an arm's whole state is three sums over its rows,

    A = prior + sum w z z^T,    b = sum w y z^T,    u = u_0 + sum sqrt(w) e z^T,

w what a row counts as, e one random sign per row and posterior sample. They give the mean b A^-1, the covariance A^-1,
and posterior samples: the deviation u A^-1 has the covariance A^-1 (perturbed observations: Papandreou and Yuille
2010; ensemble sampling: Lu and Van Roy 2017). Signs come from a hash of the arm, the row's number and the sample: one
sample is one whole guess of what an arm is worth, the same for all questions.

The noise has one covariance S, shared by the arms: of one arm alone there are often too few rows to tell. A row adds
w e e^T / (1 + w z^T A^-1 z), e what the mean missed (Bishop, Pattern Recognition and Machine Learning, section 3.3).
A value quality - weight * cost at z has the posterior standard deviation

    width = sqrt((1, -weight) S (1, -weight)^T * z^T A^-1 z),    in units of reward.

The rows of an arm are cut into blocks of 1, 1, 2, 4, ... up to `block` rows. At the end of a block the sums take it at
once and A is inverted; within a block the served posterior takes the rows one by one (Sherman-Morrison), when somebody
asks. Old rows fade at the beginning of a block, by what they lose until its end, and the prior does not:
A <- k A + (1 - k) prior. Residuals are taken against the mean at the block's beginning.
"""

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final

import numpy as np

from ragbandit.router.policies.base import Arrays, Facts, checked_arrays
from ragbandit.shared.types import ArmName, Features, Json, Matrix, Vector

#: most rows of a block
LARGEST_BLOCK: Final = 512
#: least memory, in rows: with less, the rows of one block would be all that is left
LEAST_MEMORY: Final = 50
#: a block has at most this share of the memory's rows: within a block rows count alike
_SHARE_OF_MEMORY: Final = 16
#: The noise before any row: quality in [0, 1] has a variance of at most 1/4; of cost nothing is known, not even its
#: unit. It counts as much as one row.
_FIRST_SCATTER: Final = np.array([[0.25, 0.0], [0.0, 0.0]])
#: one row lets its arm's older ones fade by at most this share
_MOST_LOST: Final = 0.5
#: a prediction is never surer than this, in units of reward
LEAST_NOISE: Final = 1e-6
#: features are learned as multiples of this, so that float32 holds them
_UNIT: Final = 2.0**-14
#: arrays that snapshots of before had beside the sums, from which they follow
_DERIVED: Final = ("inverse", "mean", "start", "deviation")
#: sets of offered arms whose posteriors are kept side by side
MOST_SETS: Final = 16


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the ledger as heads learn it."""

    arm: ArmName
    #: quality and cost less the arm's prior means
    target: tuple[float, float]
    #: of cost
    weight: float
    #: what it counts as, > 0
    rows: float


class Noise:
    """The covariance of (quality, cost) about their means, one of all arms; old rows fade."""

    def __init__(self, *, memory: float | None) -> None:
        self.memory = memory
        #: (2, 2), and what the rows in it count as, both faded
        self.scatter = np.zeros((2, 2))
        self.rows = 0.0

    def at(self, weight: float) -> float:
        """Standard deviation of quality - weight * cost around its mean, in units of reward, >= 0."""
        covariance = (_FIRST_SCATTER + self.scatter) / (1.0 + self.rows)
        variance = covariance[0, 0] - 2.0 * weight * covariance[0, 1] + weight * weight * covariance[1, 1]
        return math.sqrt(max(float(variance), 0.0))  # positive semidefinite but for rounding

    def learn(self, row: Row, *, missed: Vector, spread: float) -> tuple[float, float]:
        """Take in what a row's mean missed, (2,), where z^T A^-1 z was `spread`; what `SeparateHeads.learn` returns."""
        expected = self.at(row.weight) * math.sqrt((1.0 + row.rows * spread) / row.rows)
        fade = kept(row.rows, memory=self.memory)
        self.scatter = fade * self.scatter + row.rows * np.outer(missed, missed) / (1.0 + row.rows * spread)
        self.rows = fade * self.rows + row.rows
        value = float(missed[0] - row.weight * missed[1])
        return value, value / max(expected, LEAST_NOISE)


@dataclass(slots=True)
class _Arm:
    """Sums of one arm at the beginning of its block, the rows since, and the posterior that follows."""

    #: A (d+1, d+1), b (2, d+1), u (samples, d+1)
    precision: Matrix
    moment: Matrix
    noise: Matrix
    #: mean of z^T A^-1 z over rows that A has not learned, > 0
    leverage: float
    #: rows before the block, since the first of all
    before: int = 0
    #: rows of the block: z (d+1,), (quality, cost) less their prior means, and what they count as
    rows: list[Vector] = field(default_factory=list)
    targets: list[tuple[float, float]] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    #: mean at the block's beginning (2, d+1)
    start: Matrix = field(init=False)
    #: served: covariance A^-1, mean, samples' deviations from it in units of the noise; rows of the block in them
    covariance: Matrix = field(init=False)
    mean: Matrix = field(init=False)
    samples: Matrix = field(init=False)
    taken: int = field(init=False)
    #: changes with every row and at the end of every block
    version: int = 0

    def __post_init__(self) -> None:
        self.solve()

    def solve(self) -> None:
        """The posterior of the sums, without the rows of the block."""
        inverse = np.linalg.inv(self.precision)
        self.covariance = 0.5 * (inverse + inverse.T)
        self.start = self.mean = self.moment @ self.covariance
        self.samples, self.taken = self.noise @ self.covariance, 0
        self.version += 1

    def weighted(self) -> Matrix:
        """Quality and cost of the block's rows, times what each counts as; (rows, 2)."""
        weighted: Matrix = np.array(self.targets) * np.array(self.counts)[:, None]
        return weighted


@dataclass(slots=True)
class _Offered:
    """Posteriors of offered arms side by side: means (2, arms, d+1) and samples (samples, arms, d+1)."""

    mean: Matrix
    samples: Matrix
    #: of what each arm has here; None: its prior
    versions: list[int | None]


class SeparateHeads:
    """Every arm has weights of its own: what is learned of one says nothing of the others.

    ridge, bias_ridge: prior precision of the weights and of the intercept, in units of 1 / noise variance, > 0. memory:
    rows of an arm after which an older one counts 1/e, >= 50; None keeps all alike. block: most rows of a block, 1 to
    512. samples: posterior samples kept, > 0.
    """

    def __init__(self, *, ridge: float, bias_ridge: float, memory: float | None, block: int, samples: int) -> None:
        self.ridge, self.bias_ridge, self.memory, self.samples = ridge, bias_ridge, memory, samples
        most = block if memory is None else min(block, int(memory) // _SHARE_OF_MEMORY)
        self.block = 1 << (max(most, 1).bit_length() - 1)  # a power of two, as the blocks before it are
        self.noise = Noise(memory=memory)
        self._arms: dict[ArmName, _Arm] = {}
        self._offered: dict[tuple[ArmName, ...], _Offered] = {}

    def sampled(
        self, z: Vector, *, arms: Sequence[ArmName], weight: float, first: int, last: int
    ) -> tuple[Matrix, Matrix]:
        """Posterior means of quality and cost above the prior means, (2, arms), and samples of the value, (n, arms).

        z: (d + 1,). The values of the samples first to last, n of them, each less the mean, in units of reward.
        """
        offered = self._side_by_side(tuple(arms), size=z.size)
        means = (offered.mean.reshape(-1, z.size) @ z).reshape(2, -1)
        deviations = (offered.samples[first:last].reshape(-1, z.size) @ z).reshape(-1, len(arms))
        return means, deviations * max(self.noise.at(weight), LEAST_NOISE)

    def _side_by_side(self, arms: tuple[ArmName, ...], *, size: int) -> _Offered:
        offered = self._offered.get(arms)
        if offered is None:
            if len(self._offered) >= MOST_SETS:
                self._offered.clear()
            priors = [self._prior_samples(arm, size=size) for arm in arms]
            offered = _Offered(np.zeros((2, len(arms), size)), np.stack(priors, axis=1), [None] * len(arms))
            self._offered[arms] = offered
        for at, name in enumerate(arms):
            arm = self._arms.get(name)
            if arm is not None and arm.version != offered.versions[at]:
                self._take(name, arm)
                offered.mean[:, at], offered.samples[:, at], offered.versions[at] = arm.mean, arm.samples, arm.version
        return offered

    def _take(self, name: ArmName, arm: _Arm) -> None:
        """All rows of its block into the arm's served posterior (Sherman-Morrison)."""
        if arm.taken == len(arm.rows):
            return
        for at in range(arm.taken, len(arm.rows)):
            z, w = arm.rows[at], arm.counts[at]
            gain = arm.covariance @ z
            left = 1.0 + w * float(gain @ z)
            signs = signs_of(name, "row", arm.before + at, count=self.samples)
            missed = math.sqrt(w) * signs - w * (arm.samples @ z)
            arm.samples = arm.samples + missed[:, None] * (gain / left)[None, :]
            arm.covariance -= np.outer(gain, gain) * (w / left)
        arm.taken = len(arm.rows)
        arm.mean = (arm.moment + arm.weighted().T @ np.array(arm.rows)) @ arm.covariance

    def learn(self, features: Features, row: Row) -> tuple[float, float]:
        """Take in one row: by how much the reward was above its prediction, in reward and in standard deviations.

        features: of this model, (d,), finite and below 2^10 in size. `finish` must follow.
        """
        z = design(np.rint(features.astype(np.float64) / _UNIT) * _UNIT)
        arm = self._arms.get(row.arm)
        if arm is None:
            arm = self._arms[row.arm] = self._new(row.arm, size=z.size)
        arm.rows.append(z)
        arm.targets.append(row.target)
        arm.counts.append(row.rows)
        arm.version += 1
        return self.noise.learn(row, missed=np.array(row.target) - arm.start @ z, spread=arm.leverage)

    def finish(self, name: ArmName, *, age: int, share: float | None = None) -> None:
        """End the arm's block if it is full. age: rows of the arm since it was begun, or restarted.

        share: end it at once, and let all rows of the arm keep this share of their weight. What was learned stays the
        best guess, and new rows soon outweigh it.
        """
        arm = self._arms.get(name)
        if arm is None or (share is None and len(arm.rows) < self._block_rows(age - len(arm.rows))):
            return
        count, gram = 1.0, None
        if arm.rows:
            z, w = np.array(arm.rows), np.array(arm.counts)
            numbers = range(arm.before, arm.before + len(z))
            signs = np.array([signs_of(name, "row", number, count=self.samples) for number in numbers])
            gram = z.T @ (w[:, None] * z)
            gram = 0.5 * (gram + gram.T)  # a snapshot holds one triangle
            arm.precision += gram
            arm.moment += arm.weighted().T @ z
            arm.noise += (np.sqrt(w)[:, None] * signs).T @ z
            arm.before += len(z)
            gram, count = gram / w.sum(), float(w.mean())
        arm.rows, arm.targets, arm.counts = [], [], []
        share = 1.0 if share is None else share
        fade = share * kept(count, memory=self.memory) ** self._block_rows(age)
        self._fade(name, arm, fade=fade)
        arm.solve()
        # The mean of z^T P z over rows that P has learned with the weight `fade * count`, as if it had not (leave one
        # out).
        own = arm.leverage / share if gram is None else float((arm.covariance * gram).sum())
        free = 1.0 if gram is None else 1.0 - fade * count * own
        arm.leverage = min(own / free, self._widest) if free > 0.0 else self._widest

    def _fade(self, name: ArmName, arm: _Arm, *, fade: float) -> None:
        """Let the rows keep this share of their weight, and the prior all of its own."""
        if fade == 1.0:
            return
        prior = self._prior(len(arm.precision))
        arm.precision *= fade
        arm.precision[np.diag_indices(len(prior))] += (1.0 - fade) * prior
        arm.moment *= fade
        back = signs_of(name, "prior", arm.before, count=arm.noise.size).reshape(arm.noise.shape)
        arm.noise = math.sqrt(fade) * arm.noise + np.sqrt((1.0 - fade) * prior) * back

    def _new(self, name: ArmName, *, size: int) -> _Arm:
        prior = self._prior(size)
        return _Arm(
            precision=np.diag(prior),
            moment=np.zeros((2, size)),
            noise=prior * self._prior_samples(name, size=size),
            leverage=self._widest,
        )

    @property
    def _widest(self) -> float:
        """z^T A^-1 z of an arm without rows, where |x|^2 / d is 1."""
        return 1.0 / self.bias_ridge + 1.0 / self.ridge

    def _block_rows(self, age: int) -> int:
        """Rows of the block that begins when the arm has learned `age` rows."""
        return max(1, min(self.block, age))

    def _prior(self, size: int) -> Vector:
        """The prior precision's diagonal, shape (d+1,)."""
        return np.array([self.bias_ridge] + [self.ridge] * (size - 1))

    def _prior_samples(self, arm: ArmName, *, size: int) -> Matrix:
        return _prior_samples(arm, self.samples, ridge=self.ridge, bias_ridge=self.bias_ridge, size=size)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """Per arm its sums at the block's beginning and the rows since; the posterior follows from them.

        Precisions as upper triangles, row by row; features in units of 2^-14, which float32 holds exactly.
        """
        arrays: Arrays = {"scatter": self.noise.scatter}
        arms = sorted(self._arms.items())
        for name, arm in arms:
            size = len(arm.precision)
            arrays[f"precision/{name}"] = arm.precision[np.triu_indices(size)]
            arrays[f"moment/{name}"] = arm.moment
            arrays[f"noise/{name}"] = arm.noise
            units = np.array([z[1:] for z in arm.rows]).reshape(-1, size - 1) * math.sqrt(size - 1) / _UNIT
            arrays[f"units/{name}"] = np.rint(units).astype(np.float32)
            arrays[f"targets/{name}"] = np.array(arm.targets).reshape(-1, 2)
            arrays[f"counts/{name}"] = np.array(arm.counts)
        facts: dict[str, Json] = {"rows": self.noise.rows, "before": {name: arm.before for name, arm in arms}}
        return arrays, facts | {"block_leverage": {name: arm.leverage for name, arm in arms}}

    def restore(self, arrays: Arrays, facts: Facts, *, arms: Sequence[ArmName]) -> None:
        """Take over a saved state."""
        size = arrays[f"moment/{arms[0]}"].shape[1] if arms else 0
        shapes: dict[str, tuple[int, ...]] = {"scatter": (2, 2)}
        for name in arms:
            rows = len(arrays[f"counts/{name}"])
            parts = {"precision": (size * (size + 1) // 2,), "moment": (2, size), "noise": (self.samples, size)}
            parts |= {"units": (rows, size - 1), "targets": (rows, 2), "counts": (rows,)}
            shapes |= {f"{kind}/{name}": shape for kind, shape in parts.items()}
        arrays = {key: array for key, array in arrays.items() if key.partition("/")[0] not in _DERIVED}
        own = checked_arrays(arrays, shapes=shapes, float32={f"units/{name}" for name in arms})
        self.noise.scatter, self.noise.rows = own["scatter"], facts["rows"]
        self._arms, self._offered = {}, {}
        for name in arms:
            self._arms[name] = _Arm(
                precision=_whole(own[f"precision/{name}"], size=size),
                moment=own[f"moment/{name}"],
                noise=own[f"noise/{name}"],
                leverage=facts["block_leverage"][name],
                before=facts["before"][name],
                rows=[design(units * _UNIT) for units in own[f"units/{name}"].astype(np.float64)],
                targets=[(quality, cost) for quality, cost in own[f"targets/{name}"].tolist()],
                counts=own[f"counts/{name}"].tolist(),
            )


def _whole(triangle: Vector, *, size: int) -> Matrix:
    """The symmetric matrix of an upper triangle."""
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = triangle
    return np.triu(matrix, 1).T + matrix


def kept(rows: float, *, memory: float | None) -> float:
    """What is left of an older row's weight when its arm learns one that counts as `rows`."""
    return 1.0 if memory is None else 1.0 - min(rows / memory, _MOST_LOST)


def design(features: Features | Vector) -> Vector:
    """The row z = (1, x / sqrt(d)), shape (d+1,), float64."""
    return np.concatenate([[1.0], features.astype(np.float64) / math.sqrt(features.size)])


@functools.lru_cache(maxsize=256)
def _prior_samples(arm: str, count: int, *, ridge: float, bias_ridge: float, size: int) -> Matrix:
    """Samples of an arm without rows, (count, d+1): the intercept at quantiles of its prior, the rest by signs."""
    samples = signs_of(arm, "prior", 0, count=count * size).reshape(count, size) / math.sqrt(ridge)
    order = sorted(range(count), key=lambda sample: hashlib.blake2b(_name(arm, "intercept", sample)).digest())
    values = np.array([NormalDist().inv_cdf((sample + 0.5) / count) for sample in range(count)])
    samples[order, 0] = values / math.sqrt(float((values * values).mean()) * bias_ridge)
    samples.flags.writeable = False
    return samples


def signs_of(name: str, kind: str, number: int, *, count: int) -> Vector:
    """So many numbers +1 or -1 that follow from the name, the kind and the number."""
    stream = hashlib.shake_128(_name(name, kind, number)).digest((count + 7) // 8)
    return np.unpackbits(np.array(bytearray(stream), dtype=np.uint8))[:count].astype(np.float64) * 2.0 - 1.0


def _name(name: str, kind: str, number: int) -> bytes:
    return f"{kind}\0{number}\0{name}".encode("utf-8", "surrogatepass")
