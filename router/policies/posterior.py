"""The posterior of every arm's weights: Bayesian linear regression with two heads, quality and cost.

Per arm: y = W z + noise, y = (quality, cost), z = (1, x / sqrt(d)), x the question's features of length d. With the
prior theta ~ N(0, S x diag(1 / precision)) on each head, an arm's whole state is three sums over its rows,

    A = prior + sum w z z^T,    b = sum w y z^T,    u = u_0 + sum sqrt(w) e z^T,

w what a row counts as, e one random sign per row and posterior sample. They give the mean b A^-1, the covariance A^-1,
and posterior samples: the deviation u A^-1 has the covariance A^-1 (perturbed observations: Papandreou and Yuille
2010; ensemble sampling: Lu and Van Roy 2017). Signs come from a hash of the arm, the row's number and the sample: one
sample is one whole guess of what an arm is worth, the same for all questions.

The noise has one covariance S, shared by the arms: of one arm alone there are often too few rows to tell. A row adds
w e e^T / (1 + w z^T A^-1 z), e what the mean missed (Bishop, Pattern Recognition and Machine Learning, section 3.3).
The value quality - weight * cost at z has the posterior standard deviation

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
#: features are multiples of this and below _MOST_FEATURE, so that float32 holds them as they are learned
_UNIT: Final = 2.0**-14
_MOST_FEATURE: Final = 256.0
#: sets of offered arms whose posteriors are kept side by side
_MOST_SETS: Final = 16
#: arrays that snapshots of before had beside the sums, from which they follow
_DERIVED: Final = ("inverse", "mean", "start", "deviation")


@dataclass(frozen=True, slots=True)
class Means:
    """Posterior means of the offered arms for one question, (arms,) each; value = quality - weight * cost."""

    quality: Vector
    cost: Vector
    value: Vector


@dataclass(slots=True)
class _Arm:
    """Sums of one arm at the beginning of its block, the rows since, and the posterior that follows."""

    #: A (d+1, d+1), b (2, d+1), u (samples, d+1)
    precision: Matrix
    moment: Matrix
    noise: Matrix
    #: mean of z^T A^-1 z over rows that A has not learned, > 0
    leverage: float
    #: prior mean of its cost
    first_cost: float = 0.0
    #: rows since it was begun or restarted, and what they count as; rows before the block since the first of all
    age: int = 0
    mass: float = 0.0
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

    def __post_init__(self) -> None:
        self.solve()

    def solve(self) -> None:
        """The posterior of the sums, without the rows of the block."""
        inverse = np.linalg.inv(self.precision)
        self.covariance = 0.5 * (inverse + inverse.T)
        self.start = self.mean = self.moment @ self.covariance
        self.samples, self.taken = self.noise @ self.covariance, 0

    def weighted(self) -> Matrix:
        """Quality and cost of the block's rows, times what each counts as; (rows, 2)."""
        weighted: Matrix = np.array(self.targets) * np.array(self.counts)[:, None]
        return weighted


class BayesianHeads:
    """The posterior of every arm's quality and cost, and its update by one ledger row.

    ridge, bias_ridge: prior precision of the weights and of the intercept, in units of 1 / noise variance, > 0. memory:
    rows of an arm after which an older one counts 1/e, >= 50; None keeps all alike. block: most rows of a block, 1 to
    512. samples: posterior samples kept, 0 for none. quality: prior mean of an arm's quality; its cost has then the
    first cost seen, and that of an arm without rows the mean of the others'. None: both prior means are 0.
    """

    def __init__(
        self,
        *,
        ridge: float,
        bias_ridge: float,
        memory: float | None = None,
        block: int = 256,
        samples: int = 0,
        quality: float | None = None,
    ) -> None:
        self.ridge, self.bias_ridge, self.memory = ridge, bias_ridge, memory
        self.samples, self.quality = samples, quality
        most = block if memory is None else min(block, int(memory) // _SHARE_OF_MEMORY)
        self.block = 1 << (max(most, 1).bit_length() - 1)  # a power of two, as the blocks before it are
        self.seen: dict[ArmName, int] = {}
        #: the weight of cost that the last row had whose question came without one; before any row every cost mean is 0
        self.weight = 0.0
        #: it is of a row whose question had one of its own: no other was learned yet
        self._is_borrowed = False
        #: what the last row's reward was above its prediction
        self.missed = 0.0
        self._arms: dict[ArmName, _Arm] = {}
        #: (2, 2), the scatter of the noise over all rows, and their number, both faded
        self._scatter = np.zeros((2, 2))
        self._rows = 0.0
        #: offered arms -> means (arms, 2, d+1), prior means (2, arms), samples (arms, samples, d+1)
        self._offered: dict[tuple[ArmName, ...], tuple[Matrix, Matrix, Matrix]] = {}

    # ---------------------------------------------------------------------------------- what is known

    @property
    def noise(self) -> float:
        """Standard deviation of the reward around its mean, in units of reward (> 0)."""
        return self.noise_at(self.weight)

    def noise_at(self, weight: float) -> float:
        """`noise` at another weight of cost than that of the last row."""
        covariance = (_FIRST_SCATTER + self._scatter) / (1.0 + self._rows)
        variance = covariance[0, 0] - 2.0 * weight * covariance[0, 1] + weight * weight * covariance[1, 1]
        return math.sqrt(max(float(variance), 0.0))  # positive semidefinite but for rounding

    def mass(self, arm: ArmName) -> float:
        """What the rows of an arm count as, since it was started, or started again."""
        return self._arms[arm].mass if arm in self._arms else 0.0

    def age(self, arm: ArmName) -> int:
        """Rows of an arm since it was started, or started again."""
        return self._arms[arm].age if arm in self._arms else 0

    def predict(self, features: Features, *, arms: Sequence[ArmName], weight: float) -> tuple[Means, Vector]:
        """Means of these arms for one question, and the standard deviations of their values in reward, (arms,).

        features of shape (d,); weight: of cost.
        """
        z = design(features)
        prior = float((z * z / self._prior(z.size)).sum())
        spreads = [float(z @ self._current(arm).covariance @ z) if arm in self._arms else prior for arm in arms]
        return self._means(z, arms=arms, weight=weight), self.noise_at(weight) * np.sqrt(np.maximum(spreads, 0.0))

    def sampled(
        self, features: Features, *, arms: Sequence[ArmName], weight: float, first: int = 0, last: int | None = None
    ) -> tuple[Means, Matrix]:
        """Means of these arms, and by how much the value of each sample is above them in reward, (arms, samples).

        first, last: of the samples only these.
        """
        z = design(features)
        means = self._means(z, arms=arms, weight=weight)
        samples = self._offered[tuple(arms)][2][:, first:last]
        deviations: Matrix = np.einsum("kpj,j->kp", samples, z) * max(self.noise_at(weight), LEAST_NOISE)
        return means, deviations

    def _means(self, z: Vector, *, arms: Sequence[ArmName], weight: float) -> Means:
        mean, prior, _ = self._offered.get(tuple(arms)) or self._side_by_side(tuple(arms), size=z.size)
        quality, cost = np.einsum("khj,j->hk", mean, z) + prior
        return Means(quality=quality, cost=cost, value=quality - weight * cost)

    def _side_by_side(self, arms: tuple[ArmName, ...], *, size: int) -> tuple[Matrix, Matrix, Matrix]:
        usual = math.fsum(one.first_cost for one in self._arms.values()) / max(1, len(self._arms))
        known = [self._current(arm) if arm in self._arms else None for arm in arms]
        if len(self._offered) >= _MOST_SETS:
            self._offered.clear()
        self._offered[arms] = (
            np.array([np.zeros((2, size)) if one is None else one.mean for one in known]),
            np.array([[self.quality or 0.0] * len(arms), [usual if one is None else one.first_cost for one in known]]),
            np.array(
                [
                    self._prior_samples(arm, size=size) if one is None else one.samples
                    for arm, one in zip(arms, known, strict=True)
                ]
            ),
        )
        return self._offered[arms]

    def _current(self, name: ArmName) -> _Arm:
        """The arm, its served posterior with all rows of its block (Sherman-Morrison)."""
        arm = self._arms[name]
        if arm.taken == len(arm.rows):
            return arm
        for at in range(arm.taken, len(arm.rows)):
            z, w = arm.rows[at], arm.counts[at]
            gain = arm.covariance @ z
            left = 1.0 + w * float(gain @ z)
            signs = _signs(name, "row", arm.before + at, count=self.samples)
            missed = math.sqrt(w) * signs - w * (arm.samples @ z)
            arm.samples = arm.samples + missed[:, None] * (gain / left)[None, :]
            arm.covariance -= np.outer(gain, gain) * (w / left)
        arm.taken = len(arm.rows)
        arm.mean = (arm.moment + arm.weighted().T @ np.array(arm.rows)) @ arm.covariance
        return arm

    # ---------------------------------------------------------------------------------- learning

    def learn(self, update: Update) -> float:
        """One row into the drawn arm's block and into the noise; PolicyFault and no change if it cannot be used.

        The row's residual, in standard deviations of its prediction. `finish` must follow.
        """
        if update.features is None or (self._arms and update.features.size + 1 != self._size):
            raise PolicyFault("features are missing or of another length")
        z, rows = design(_rounded(update.features)), rows_of(update)
        if rows == 0.0:
            tally(self.seen, update)
            return 0.0
        usual = usual_weight(update.query, usual=self.weight)
        own_weight = weight_of(update.query, default=self.weight)
        quality, cost, weight = heads_of(update.reward, weight=own_weight, usual=usual)
        arm = self._arms.get(update.arm)
        first_cost = 0.0 if self.quality is None else cost if arm is None else arm.first_cost
        target = quality - (self.quality or 0.0), cost - first_cost
        leverage = 1.0 / self.bias_ridge + 1.0 / self.ridge if arm is None else arm.leverage
        missed = np.array(target) if arm is None else np.array(target) - arm.start @ z
        fade = self._kept(rows)
        with np.errstate(over="ignore", invalid="ignore"):
            scatter = fade * self._scatter + rows * np.outer(missed, missed) / (1.0 + rows * leverage)
        # The sums' entries are below 512 * 256 times the largest target that is multiplied by its count.
        reach = leverage * weight * weight + update.reward.cost
        reach += 1e6 * max(rows, 1.0) * (abs(target[0]) + abs(target[1]))
        if not (math.isfinite(scatter[0, 0] + scatter[1, 1]) and math.isfinite(reach)):
            raise PolicyFault("the row holds numbers that are not finite, or too large to be squared")
        expected = self.noise_at(weight) * math.sqrt((1.0 + rows * leverage) / rows)
        self.missed = float(missed[0] - weight * missed[1])
        if arm is None:
            arm = self._arms[update.arm] = self._new(update.arm, size=z.size, first_cost=first_cost)
        arm.rows.append(z)
        arm.targets.append(target)
        arm.counts.append(rows)
        arm.age, arm.mass = arm.age + 1, arm.mass + rows
        self._scatter, self._rows = scatter, fade * self._rows + rows
        if update.query.cost_weight is None or self._is_borrowed or not self.seen:
            # Serve questions that come without a weight of cost at that of the last such row; before any at the last's.
            self.weight, self._is_borrowed = float(weight), update.query.cost_weight is not None
        self._offered.clear()
        tally(self.seen, update)
        return self.missed / max(expected, LEAST_NOISE)

    def finish(self, name: ArmName, *, restart: float | None = None) -> None:
        """End the arm's block if it is full; or at once, its rows counting as `restart` (> 0) together from then on.

        What was learned stays the best guess, and new rows soon outweigh it.
        """
        arm = self._arms.get(name)
        if arm is None or (restart is None and len(arm.rows) < self._block_rows(arm.age - len(arm.rows))):
            return
        share, count, gram = 1.0, 1.0, None
        if restart is not None:
            share = min(1.0, restart / (arm.mass if self.memory is None else min(arm.mass, self.memory)))
            arm.age, arm.mass = 0, 0.0
        if arm.rows:
            z, w = np.array(arm.rows), np.array(arm.counts)
            numbers = range(arm.before, arm.before + len(z))
            signs = np.array([_signs(name, "row", number, count=self.samples) for number in numbers])
            gram = z.T @ (w[:, None] * z)
            gram = 0.5 * (gram + gram.T)  # a snapshot holds one triangle
            arm.precision += gram
            arm.moment += arm.weighted().T @ z
            arm.noise += (np.sqrt(w)[:, None] * signs).T @ z
            arm.before += len(z)
            gram, count = gram / w.sum(), float(w.mean())
        arm.rows, arm.targets, arm.counts = [], [], []
        fade = share * self._kept(count) ** self._block_rows(arm.age)
        self._fade(name, arm, fade=fade)
        arm.solve()
        # The mean of z^T P z over rows that P has learned with the weight `fade * count`, as if it had not (leave one
        # out).
        own = arm.leverage / share if gram is None else float((arm.covariance * gram).sum())
        free = 1.0 if gram is None else 1.0 - fade * count * own
        most = 1.0 / self.bias_ridge + 1.0 / self.ridge
        arm.leverage = min(own / free, most) if free > 0.0 else most
        self._offered.clear()

    def _fade(self, name: ArmName, arm: _Arm, *, fade: float) -> None:
        """Let the rows keep this share of their weight, and the prior all of its own."""
        if fade == 1.0:
            return
        prior = self._prior(len(arm.precision))
        arm.precision *= fade
        arm.precision[np.diag_indices(len(prior))] += (1.0 - fade) * prior
        arm.moment *= fade
        back = _signs(name, "prior", arm.before, count=arm.noise.size).reshape(arm.noise.shape)
        arm.noise = math.sqrt(fade) * arm.noise + np.sqrt((1.0 - fade) * prior) * back

    def _new(self, name: ArmName, *, size: int, first_cost: float) -> _Arm:
        prior = self._prior(size)
        return _Arm(
            precision=np.diag(prior),
            moment=np.zeros((2, size)),
            noise=prior * self._prior_samples(name, size=size),
            leverage=1.0 / self.bias_ridge + 1.0 / self.ridge,
            first_cost=first_cost,
        )

    def _kept(self, rows: float) -> float:
        """What is left of an older row's weight when its arm learns one that counts as `rows`."""
        return 1.0 if self.memory is None else 1.0 - min(rows / self.memory, _MOST_LOST)

    def _block_rows(self, age: int) -> int:
        """Rows of the block that begins when the arm has learned `age` rows."""
        return max(1, min(self.block, age))

    @property
    def _size(self) -> int:
        return len(next(iter(self._arms.values())).precision)

    def _prior(self, size: int) -> Vector:
        """The prior precision's diagonal, shape (d+1,)."""
        return np.array([self.bias_ridge] + [self.ridge] * (size - 1))

    def _prior_samples(self, arm: ArmName, *, size: int) -> Matrix:
        return _prior_samples(arm, self.samples, ridge=self.ridge, bias_ridge=self.bias_ridge, size=size)

    # ---------------------------------------------------------------------------------- snapshots

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """Per arm its sums at the block's beginning and the rows since; the posterior follows from them.

        Precisions as upper triangles, row by row; features in units of 2^-14, which float32 holds exactly.
        """
        arrays, facts = counted_state(self.seen)
        arrays["scatter"] = self._scatter
        arms = sorted(self._arms.items())
        for name, arm in arms:
            arrays[f"precision/{name}"] = arm.precision[np.triu_indices(self._size)]
            arrays[f"moment/{name}"] = arm.moment
            units = np.array([z[1:] for z in arm.rows]).reshape(-1, self._size - 1) * math.sqrt(self._size - 1) / _UNIT
            arrays[f"units/{name}"] = np.rint(units).astype(np.float32)
            arrays[f"targets/{name}"] = np.array(arm.targets).reshape(-1, 2)
            arrays[f"counts/{name}"] = np.array(arm.counts)
            if self.samples:
                arrays[f"noise/{name}"] = arm.noise
        facts |= {"weight": self.weight, "rows": self._rows}
        facts |= {"is_borrowed": True} if self._is_borrowed else {}
        facts |= {key: {name: getattr(arm, key) for name, arm in arms} for key in ("age", "mass", "before")}
        facts["block_leverage"] = {name: arm.leverage for name, arm in arms}
        facts["first_cost"] = {name: arm.first_cost for name, arm in arms}
        return arrays, facts

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over a saved state, also of an earlier release, which held the posterior beside the sums."""
        self.seen = restored_counts(facts)
        self.weight, self._rows = facts["weight"], facts["rows"]
        self._is_borrowed = facts.get("is_borrowed", False)
        names = list(facts["age"])
        size = arrays[f"moment/{names[0]}"].shape[1] if names else 0
        shapes: dict[str, tuple[int, ...]] = {"scatter": (2, 2)}
        arrays = _with_sums(arrays, names=names, size=size)
        for name in names:
            rows = len(arrays[f"counts/{name}"])
            parts = {"precision": (size * (size + 1) // 2,), "moment": (2, size), "units": (rows, size - 1)}
            parts |= {"targets": (rows, 2), "counts": (rows,)}
            parts |= {"noise": (self.samples, size)} if self.samples else {}
            shapes |= {f"{kind}/{name}": shape for kind, shape in parts.items()}
        own = checked_arrays(arrays, shapes=shapes, float32={f"units/{name}" for name in names})
        self._scatter, self._arms, self._offered = own["scatter"], {}, {}
        leverage = facts.get("block_leverage", facts.get("leverage", {}))
        for name in names:
            self._arms[name] = _Arm(
                precision=_whole(own[f"precision/{name}"], size=size),
                moment=own[f"moment/{name}"],
                noise=own[f"noise/{name}"] if self.samples else np.zeros((0, size)),
                leverage=leverage[name],
                first_cost=facts.get("first_cost", {}).get(name, 0.0),
                age=facts["age"][name],
                mass=facts["mass"][name],
                before=facts.get("before", {}).get(name, 0),
                rows=[design(units * _UNIT) for units in own[f"units/{name}"].astype(np.float64)],
                targets=[(quality, cost) for quality, cost in own[f"targets/{name}"].tolist()],
                counts=own[f"counts/{name}"].tolist(),
            )


def _with_sums(arrays: Arrays, *, names: Sequence[str], size: int) -> Arrays:
    """The arrays of the sums; of a snapshot that was learned row by row, which held inverses, made from these."""
    kept = {key: array for key, array in arrays.items() if key.split("/", 1)[0] not in _DERIVED}
    for name in names:
        if f"precision/{name}" not in arrays and f"inverse/{name}" in arrays:
            precision = np.linalg.inv(_whole(arrays[f"inverse/{name}"].astype(np.float64), size=size))
            kept[f"precision/{name}"] = precision[np.triu_indices(size)]
            kept |= {f"units/{name}": np.zeros((0, size - 1), dtype=np.float32)}
            kept |= {f"targets/{name}": np.zeros((0, 2)), f"counts/{name}": np.zeros(0)}
    return kept


def _whole(triangle: Vector, *, size: int) -> Matrix:
    """The symmetric matrix of an upper triangle."""
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = triangle
    return np.triu(matrix, 1).T + matrix


def design(features: Features | Vector) -> Vector:
    """The row z = (1, x / sqrt(d)), shape (d+1,), float64."""
    return np.concatenate([[1.0], features.astype(np.float64) / math.sqrt(features.size)])


def _rounded(features: Features) -> Vector:
    """Features as multiples of 2^-14, (d,). Raises PolicyFault for one that is no number or too large."""
    if not float(np.abs(features).max(initial=0.0)) < _MOST_FEATURE:  # also where one is NaN
        raise PolicyFault(
            f"a feature is not finite, or not below {_MOST_FEATURE:g}; use an encoder whose features are near 1"
        )
    rounded: Vector = np.rint(features.astype(np.float64) / _UNIT) * _UNIT
    return rounded


@functools.lru_cache(maxsize=256)
def _prior_samples(arm: str, count: int, *, ridge: float, bias_ridge: float, size: int) -> Matrix:
    """Samples of an arm without rows, (count, d+1): the intercept at quantiles of its prior, the rest by signs."""
    samples = _signs(arm, "prior", 0, count=count * size).reshape(count, size) / math.sqrt(ridge)
    order = sorted(range(count), key=lambda sample: hashlib.blake2b(_name(arm, "intercept", sample)).digest())
    values = np.array([NormalDist().inv_cdf((sample + 0.5) / count) for sample in range(count)])
    samples[order, 0] = values / math.sqrt(float((values * values).mean()) * bias_ridge) if count else values
    samples.flags.writeable = False
    return samples


def _signs(arm: str, kind: str, number: int, *, count: int) -> Vector:
    """So many numbers +1 or -1 that follow from the arm, the kind and the number."""
    stream = hashlib.shake_128(_name(arm, kind, number)).digest((count + 7) // 8)
    return np.unpackbits(np.array(bytearray(stream), dtype=np.uint8))[:count].astype(np.float64) * 2.0 - 1.0


def _name(arm: str, kind: str, number: int) -> bytes:
    return f"{kind}\0{number}\0{arm}".encode("utf-8", "surrogatepass")
