"""Fixed points of the posterior: an arm's chance to be the best is the share of the points where it is.

Beside the mean of its weights, every arm has `points` draws of them from the posterior, as deviations from the mean in
units of the noise. A draw needs no factor of a matrix: with P = A^-1 the posterior's covariance, and u the sum of a
draw of the prior's precision and of one random sign per row times the row,

    u = L g + sum_i sqrt(w_i) e_i z_i,    L L^T the prior's precision,    e_i = +-1,

u has the covariance A, so the deviation P u has P A P = P (perturbed observations: Papandreou and Yuille 2010; ensemble
sampling: Lu and Van Roy 2017). u is a sum over rows, as the moment of the mean is: a block's rows enter it at once, and
within a block the deviations take them one by one. So the points are an exact function of the ledger. Signs come from
a hash of the arm, the row's number and the point: they are the same on every machine, and the same for all questions,
so that one point is one whole guess of what an arm is worth, question by question.

Where rows fade, u keeps sqrt(fade) of itself, and the prior that comes back brings a draw of its own.
"""

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.policies.base import Arrays, Facts, checked_arrays
from ragbandit.router.policies.linear.blocks import BlockHeads, designs
from ragbandit.router.policies.linear.ridge import LEAST_NOISE, design
from ragbandit.shared.types import ArmName, Features, Json, Matrix, Update, Vector

#: prior mean of the quality of an arm's answers
_QUALITY: Final = 0.5
#: most that a deviation counts: with two arms 1 / sqrt(2 ln K) draws the better one too seldom (docs/mba.md)
_WIDEST: Final = 0.7
#: decimals of the quantiles: the logarithm in them may differ in its last bits from machine to machine
_DIGITS: Final = 9
#: sets of arms whose posteriors are kept side by side
_MOST_SETS: Final = 16
#: arrays of an arm in a saved state
_KINDS: Final = ("noise", "deviation")


@dataclass(frozen=True, slots=True)
class Means:
    """Posterior means of the offered arms for one question, (arms,) each; value = quality - weight * cost."""

    quality: Vector
    cost: Vector
    value: Vector


@dataclass(frozen=True, slots=True)
class _Offered:
    """Some arms' posteriors side by side."""

    #: means of quality and cost, (2 arms, d+1), and what they are above: (arms,) each
    mean: Matrix
    quality: Vector
    cost: Vector
    #: deviations of the points in reward, (arms, points, d+1): half the bytes are half the time of a decision
    points: npt.NDArray[np.float32]


class PointHeads(BlockHeads):
    """BlockHeads with `points` draws of the posterior, and prior means at which an arm is worth trying.

    Before any row an answer is as likely right as wrong, and costs what the arm's first answer did; an arm without an
    answer costs what the others' first ones did on average.
    """

    def __init__(
        self, *, ridge: float, bias_ridge: float, memory: float | None = None, block: int, points: int
    ) -> None:
        super().__init__(ridge=ridge, bias_ridge=bias_ridge, memory=memory, block=block)
        self.points = points
        #: per arm: u of every point at the block's beginning, and the served deviations; (points, d+1) each
        self._noise_moment: dict[ArmName, Matrix] = {}
        self._deviation: dict[ArmName, Matrix] = {}
        #: per arm: rows before the block, since the first of all; the prior mean of its cost
        self._before: dict[ArmName, int] = {}
        self._first_cost: dict[ArmName, float] = {}
        self._offered: dict[tuple[ArmName, ...], _Offered] = {}

    def sampled(
        self,
        features: Features,
        *,
        arms: Sequence[ArmName],
        weight: float | None = None,
        first: int = 0,
        last: int | None = None,
    ) -> tuple[Means, Matrix]:
        """The means of these arms, and by how much each point's value is above them, (arms, points), in reward.

        weight: of cost; None: that of the last row. first, last: of the points only these.
        """
        self._catch_up()
        z, count = design(features), len(arms)
        weight = self.weight if weight is None else weight
        # the points stand in units of the noise at the last row's weight
        scale = 1.0 if weight == self.weight else self.noise_at(weight) / max(self.noise, LEAST_NOISE)
        offered = self._offered.get(tuple(arms)) or self._side_by_side(tuple(arms), size=z.size)
        quality, cost = np.einsum("kj,j->k", offered.mean, z).reshape(count, 2).T
        quality, cost = quality + offered.quality, cost + offered.cost
        some = offered.points[:, first:last]
        deviations: Matrix = np.einsum("kpj,j->kp", some, z.astype(np.float32)).astype(np.float64)
        if scale != 1.0:
            deviations *= scale
        return Means(quality=quality, cost=cost, value=quality - weight * cost), deviations

    def _side_by_side(self, arms: tuple[ArmName, ...], *, size: int) -> _Offered:
        nothing = np.zeros((2, size))
        usual = math.fsum(self._first_cost.values()) / max(1, len(self._first_cost))
        if len(self._offered) >= _MOST_SETS:
            self._offered.clear()
        points = np.array([self._served(arm, size=size) for arm in arms], dtype=np.float32)
        self._offered[arms] = _Offered(
            mean=np.concatenate([self._mean.get(arm, nothing) for arm in arms]),
            quality=np.full(len(arms), _QUALITY),
            cost=np.array([self._first_cost.get(arm, usual) for arm in arms]),
            points=points * np.float32(self.noise),
        )
        return self._offered[arms]

    def _served(self, arm: ArmName, *, size: int) -> Matrix:
        known = self._deviation.get(arm)
        return self._prior(arm, size=size) if known is None else known

    def _prior(self, arm: ArmName, *, size: int) -> Matrix:
        return _prior_points(arm, self.points, ridge=self.ridge, bias_ridge=self.bias_ridge, size=size)

    def _forget(self, arm: ArmName) -> None:
        super()._forget(arm)
        self._offered.clear()

    def _targets(self, update: Update) -> tuple[float, float, float]:
        quality, cost, weight = super()._targets(update)
        return quality - _QUALITY, cost - self._first_cost.get(update.arm, cost), weight

    def learn(self, update: Update) -> float:
        """As BlockHeads."""
        cost, residual = super()._targets(update)[1], super().learn(update)
        if update.arm in self._blocks:
            self._first_cost.setdefault(update.arm, cost)
        return residual

    def _take(self, arm: ArmName, z: Vector, *, row: int) -> float:
        leverage, rows = super()._take(arm, z, row=row), float(self._blocks[arm].counts[row])
        gain = np.einsum("ij,j->i", self._inverse[arm], z)
        points = self._served(arm, size=z.size)
        signs = _signs(arm, "row", self._before.get(arm, 0) + row, count=self.points)
        missed = math.sqrt(rows) * signs - rows * np.einsum("pj,j->p", points, z)
        self._deviation[arm] = points + missed[:, None] * gain[None, :]
        return leverage

    def _close(self, arm: ArmName) -> Matrix:
        gram, block = super()._close(arm), self._blocks[arm]
        before, z = self._before.get(arm, 0), designs(block)
        signs = np.array([_signs(arm, "row", before + row, count=self.points) for row in range(block.rows)])
        if arm not in self._noise_moment:
            prior = self._prior(arm, size=z.shape[1])
            self._noise_moment[arm] = self._precision(z.shape[1]) * prior
        self._noise_moment[arm] += np.einsum("np,nj->pj", np.sqrt(block.counts[: block.rows])[:, None] * signs, z)
        self._before[arm] = before + block.rows
        return gram

    def _begin(self, arm: ArmName, *, gram: Matrix | None, share: float, count: float) -> float:
        fade, moment = super()._begin(arm, gram=gram, share=share, count=count), self._noise_moment[arm]
        if fade < 1.0:
            back = _signs(arm, "prior", self._before[arm], count=moment.size).reshape(moment.shape)
            moment *= math.sqrt(fade)
            moment += np.sqrt((1.0 - fade) * self._precision(moment.shape[1])) * back
        self._deviation[arm] = np.einsum("pj,ij->pi", moment, self._inverse[arm])
        return fade

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """That of BlockHeads, and per arm the points' moments and deviations."""
        arrays, facts = super().state()
        arrays |= {f"noise/{arm}": moment for arm, moment in sorted(self._noise_moment.items())}
        arrays |= {f"deviation/{arm}": points for arm, points in sorted(self._deviation.items())}
        more = {"before": dict(sorted(self._before.items())), "first_cost": dict(sorted(self._first_cost.items()))}
        return arrays, {**facts, **more}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over a saved state: besides that of BlockHeads, every arm's points."""
        own = {name: array for name, array in arrays.items() if name.split("/", 1)[0] in _KINDS}
        super().restore({name: array for name, array in arrays.items() if name not in own}, facts)
        shapes = {f"{kind}/{arm}": (self.points, self._size) for kind in _KINDS for arm in self._age}
        checked = checked_arrays(own, shapes=shapes)
        self._noise_moment = {arm: checked[f"noise/{arm}"] for arm in self._age}
        self._deviation = {arm: checked[f"deviation/{arm}"] for arm in self._age}
        self._before = {arm: facts["before"][arm] for arm in self._age}
        self._first_cost = {arm: facts["first_cost"][arm] for arm in self._age}
        self._offered = {}


@functools.lru_cache(maxsize=256)
def _prior_points(arm: str, count: int, *, ridge: float, bias_ridge: float, size: int) -> Matrix:
    """The points of an arm without rows, (count, d+1): the intercept at quantiles of its prior, the rest by signs."""
    points = _signs(arm, "prior", 0, count=count * size).reshape(count, size) / math.sqrt(ridge)
    order = sorted(range(count), key=lambda point: hashlib.blake2b(_name(arm, "intercept", point)).digest())
    points[order, 0] = np.array(_quantiles(count)) / math.sqrt(bias_ridge)
    points.flags.writeable = False
    return points


@functools.cache
def _quantiles(count: int) -> tuple[float, ...]:
    """The normal distribution at the middle of so many equal shares, of variance 1."""
    values = [round(NormalDist().inv_cdf((point + 0.5) / count), _DIGITS) for point in range(count)]
    scale = math.sqrt(math.fsum(value * value for value in values) / count)
    return tuple(value / scale for value in values)


def shares_of_points(values: Vector, deviations: Matrix, *, explore: float = 1.0) -> list[float]:
    """Of each arm the share of the points in which it is the best; arms that tie share. Shapes (arms,), (arms, points).

    Deviations count explore * min(_WIDEST, 1 / sqrt(2 ln K)) times, K arms.
    """
    width = explore * min(_WIDEST, 1.0 / math.sqrt(2.0 * math.log(max(len(values), 2))))
    moved = values[:, None] + width * deviations
    best = moved == moved.max(axis=0)
    shares: list[float] = (best / best.sum(axis=0)).mean(axis=1).tolist()
    return shares


def _signs(arm: str, kind: str, number: int, *, count: int) -> Vector:
    """So many numbers +1 or -1 that follow from the arm, the kind and the number."""
    stream = hashlib.shake_128(_name(arm, kind, number)).digest((count + 7) // 8)
    return np.unpackbits(np.frombuffer(stream, dtype=np.uint8))[:count].astype(np.float64) * 2.0 - 1.0


def _name(arm: str, kind: str, number: int) -> bytes:
    return f"{kind}\0{number}\0{arm}".encode("utf-8", "surrogatepass")
