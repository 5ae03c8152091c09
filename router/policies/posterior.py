"""The posterior of the arms' weights: Bayesian linear regression with two heads, quality and cost.

Per arm: y = W z + noise, y = (quality, cost), z the design row of a question. On each head the weights theta of all
arms have the prior N(0, C x diag(v)), in units of the noise variance, v = RIDGE / precision:

    C_ab = [a = b] / RIDGE                                                  arms apart: a row informs its own arm only
    C_ab = COMMON + PART * (facts that a and b share) + OWN * [a = b]       arms that are made of parts

With facts a row of one arm also informs the arms that share a model, a retriever or a depth with it, and an arm
without rows begins at the estimate of its parts. An arm's knowledge is sums over its rows,

    G = sum w z z^T,    b = sum w y z^T,    u = sum sqrt(w) e z^T,

w what a row counts as, e one random sign per row and posterior sample. With A the prior's precision and the G of the
arms on its diagonal they give the mean b A^-1, the covariance A^-1, and posterior samples: the deviation
(prior precision * prior sample + u) A^-1 has the covariance A^-1 (perturbed observations: Papandreou and Yuille 2010;
ensemble sampling: Lu and Van Roy 2017). Signs come from a hash of the arm, the row's number and the sample: one sample
is one whole guess of what an arm is worth, the same for all questions. Samples come in pairs, the mean plus and minus
one deviation (antithetic variates: Hammersley and Morton 1956): half is stored, and their mean is exact. An arm without
rows has samples by Matheron's rule once others have rows: prior sample + C_n C^-1 (sample - prior sample).

The noise has one covariance S, shared by the arms, because one arm often has too few rows. A row adds
w e e^T / (1 + w z^T A^-1 z), e the error of the mean (Bishop, Pattern Recognition and Machine Learning, section 3.3).
A value quality - weight * cost at z has the posterior standard deviation

    width = sqrt((1, -weight) S (1, -weight)^T * z^T A^-1 z),    in units of reward.

Rows come in one by one (Sherman-Morrison), as vectors in addition to A^-1. Every `block` rows A is inverted again, and
older rows fade by what the new ones count as; the prior does not.
"""

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from ragbandit.router.policies.base import Arrays, Facts, checked_arrays
from ragbandit.router.policies.surrogates import PLAIN, TRUSTED, Scale
from ragbandit.shared.types import ArmName, Json, Matrix, Vector

#: prior covariance of two arms that are made of parts: what all share, what each fact adds, and what is an arm's own
COMMON: Final = 0.3
PART: Final = 0.1
OWN: Final = 0.1
#: the prior precision at which these hold
RIDGE: Final = 3.3
#: most rows until A is inverted again
_BLOCK: Final = 32
#: least memory, in rows: with less, the rows of one block would be all that is left
LEAST_MEMORY: Final = 50
#: a block has at most this share of the memory's rows: within a block rows count alike
_SHARE_OF_MEMORY: Final = 16
#: The noise before any row: quality in [0, 1] has a variance of at most 1/4; of cost nothing is known, not even its
#: unit. It counts as much as one row.
_FIRST_QUALITY: Final = 0.25
#: one row lets older ones fade by at most this share in the noise
_MOST_LOST: Final = 0.5
#: a prediction is never surer than this, in units of reward
LEAST_NOISE: Final = 1e-6

ArmFacts = Mapping[ArmName, Mapping[str, Json]]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the ledger as heads learn it."""

    arm: ArmName
    #: quality and cost less the arm's prior means
    target: tuple[float, float]
    #: weight of cost
    weight: float
    #: number of rows that it counts as, > 0
    rows: float
    #: source of the quality: a source of scores, or any trusted rater
    source: str = TRUSTED


class Noise:
    """The covariance of (quality, cost) about their means, one of all arms; old rows fade."""

    def __init__(self, *, memory: float | None) -> None:
        self.memory = memory
        #: sums of quality^2, quality * cost and cost^2 about the means, and what their rows count as, all faded
        self.scatter = 0.0, 0.0, 0.0
        self.rows = 0.0

    def at(self, weight: float) -> float:
        """Standard deviation of quality - weight * cost around its mean, in units of reward, >= 0."""
        (quality, both, cost), rows = self.scatter, 1.0 + self.rows
        variance = (_FIRST_QUALITY + quality) / rows - 2.0 * weight * (both / rows) + weight * weight * (cost / rows)
        return math.sqrt(max(variance, 0.0))  # rounding can take it below 0

    def learn(self, row: Row, *, rows: float, missed: Vector, spread: float) -> tuple[float, float]:
        """Take in the error of a row's mean, (2,); returns as `Heads.learn`. spread: z^T A^-1 z before the row.

        rows: number of rows that it counts as. Below 1, its quality has 1 / rows times the variance of a whole row.
        """
        if rows == 0.0:
            return 0.0, 0.0
        expected = self.at(row.weight) * math.sqrt((1.0 + rows * spread) / rows)
        quality, cost = missed.tolist()
        value: float = quality - row.weight * cost
        quality *= min(math.sqrt(rows), 1.0)
        fade = 1.0 if self.memory is None else 1.0 - min(rows / self.memory, _MOST_LOST)
        (first, both, last), left = self.scatter, 1.0 + rows * spread
        self.scatter = (
            fade * first + rows * (quality * quality) / left,
            fade * both + rows * (quality * cost) / left,
            fade * last + rows * (cost * cost) / left,
        )
        self.rows = fade * self.rows + rows
        return value, value / max(expected, LEAST_NOISE)


@dataclass(slots=True)
class _Sums:
    """Sums of the rows of one arm by one source: G (p, p), b (2, p), u (pairs, p); without its part's newest."""

    gram: Matrix
    moment: Matrix
    noise: Matrix

    def scaled(self, scale: Scale) -> "_Sums":
        """The sums with the scores of the source converted to the scale of trusted raters."""
        moment = self.moment.copy()
        moment[0] = (moment[0] - scale.offset * self.gram[0]) / scale.slope
        return _Sums(scale.share * self.gram, scale.share * moment, math.sqrt(scale.share) * self.noise)


@dataclass(slots=True)
class _Arm:
    """The rows of one arm, by source."""

    sums: dict[str, _Sums] = field(default_factory=dict)
    #: rows of it, ever, the newest among them; and what those since the last fading count as
    number: int = 0
    fresh: float = 0.0

    def fade(self, share: float) -> None:
        """Let all rows keep this share of their weight."""
        for one in self.sums.values():
            one.gram *= share
            one.moment *= share
            one.noise *= math.sqrt(share)


@dataclass(frozen=True, slots=True)
class _Newest:
    """A row that the posterior has and the sums do not: number of the arm's earlier rows, z (p,), the row's values."""

    arm: ArmName
    source: str
    number: int
    z: Vector
    target: tuple[float, float]
    rows: float
    signs: Vector


@dataclass(slots=True)
class _Part:
    """Weights that are solved together: of one arm, or of all arms if there are facts."""

    #: in the order of their names
    arms: list[ArmName]
    #: where they are among the weights of all arms
    place: slice
    #: inverse of the sums, (n, n), and a vector g per newest row, (block, n): A^-1 = covariance - sum of g g^T
    covariance: Matrix
    gains: Matrix
    newest: list[_Newest] = field(default_factory=list)

    def own(self, arm: ArmName, *, size: int) -> slice:
        """Where an arm's weights are in the part."""
        at = self.arms.index(arm)
        return slice(at * size, (at + 1) * size)

    def gain(self, z: Vector, *, own: slice) -> Vector:
        """A^-1 z, (n,), for a row of the arm that is there."""
        gain: Vector = self.covariance[:, own] @ z
        gains = self.gains[: len(self.newest)]
        gain -= (gains[:, own] @ z) @ gains
        return gain


class Heads:
    """Weights of all arms in one model of the question.

    facts: parts of each arm; an arm without facts shares only what is common to all. None: arms apart.
    ridge, bias_ridge: prior precision of the weights and of the intercept, in units of 1 / noise variance, > 0. memory:
    rows of an arm after which an older one counts 1/e, >= 50; None keeps all alike. pairs: of posterior samples, > 0.
    """

    def __init__(
        self, facts: ArmFacts | None, *, ridge: float, bias_ridge: float, memory: float | None, pairs: int
    ) -> None:
        self.facts, self.ridge, self.bias_ridge = facts, ridge, bias_ridge
        self.memory, self.pairs, self.noise = memory, pairs, Noise(memory=memory)
        self._block = _BLOCK if memory is None else max(1, min(_BLOCK, int(memory) // _SHARE_OF_MEMORY))
        #: arms with rows, in the order of their places
        self._arms: dict[ArmName, _Arm] = {}
        #: source whose scores differ from those of trusted raters -> its scale
        self._scales: dict[str, Scale] = {}
        #: p, 0 before any row
        self._size = 0
        self._places: dict[ArmName, int] = {}
        self._parts: dict[ArmName, _Part] = {}
        #: arms with rows: posterior means (2, arms, p) and pairs' deviations (pairs, arms, p)
        self._mean = self._drawn = np.zeros((0, 0, 0))

    def sampled(self, z: Vector, *, arms: Sequence[ArmName], weight: float, which: slice) -> tuple[Matrix, Matrix]:
        """Posterior means of quality and cost above the prior means, (2, arms), and deviations of the value, (n, arms).

        z: (p,). which: n pairs of samples, whose values are the mean plus and minus the deviation, in units of reward.
        """
        noise, places = max(self.noise.at(weight), LEAST_NOISE), self._places
        if not places:
            return np.zeros((2, len(arms))), noise * self._prior_values(arms, z=z)[which]
        means = (self._mean.reshape(-1, z.size) @ z).reshape(2, -1)
        drawn = (self._drawn[which].reshape(-1, z.size) @ z).reshape(-1, len(places))
        if list(arms) == list(places):
            return means, noise * drawn
        if others := [arm for arm in arms if arm not in places]:
            known = list(places)
            shares = np.linalg.solve(self._kernel(known, known), self._kernel(known, others))
            above = drawn - self._prior_values(known, z=z)[which]
            means = np.concatenate([means, means @ shares], axis=1)
            drawn = np.concatenate([drawn, self._prior_values(others, z=z)[which] + above @ shares], axis=1)
            places = {arm: place for place, arm in enumerate([*known, *others])}
        order = [places[arm] for arm in arms]
        return means[:, order], noise * drawn[:, order]

    def learn(self, z: Vector, row: Row) -> tuple[float, float]:
        """Take in one row: by how much the reward was above its prediction, in reward and in standard deviations.

        z: its design row, (p,), finite.
        """
        if row.arm not in self._arms:
            self._size = z.size
            self._place({**self._arms, row.arm: _Arm()})
        part, arm = self._parts[row.arm], self._arms[row.arm]
        scale = self._scales.get(row.source, PLAIN)
        missed, spread = self._take(part, self._newest(row.arm, row.source, arm.number, z, row.target, row.rows))
        arm.number, arm.fresh = arm.number + 1, arm.fresh + row.rows
        if sum(self._arms[name].number for name in part.arms) % self._block == 0:
            self._add(part)
            for one in (self._arms[name] for name in part.arms):
                one.fade(1.0 if self.memory is None else math.exp(-one.fresh / self.memory))
                one.fresh = 0.0
            self._solve(part)
        return self.noise.learn(row, rows=scale.share * row.rows, missed=missed, spread=spread)

    def rescale(self, source: str, scale: Scale) -> None:
        """Read the scores of a source so, its earlier rows too."""
        parts = {id(part): part for part in self._parts.values()}.values()
        for part in parts:
            self._add(part)
        self._scales[source] = scale
        for part in parts:
            self._solve(part)

    def fade(self, arm: ArmName, *, share: float) -> None:
        """Let all rows of an arm keep this share of their weight, in (0, 1].

        What was learned stays the best guess, and new rows soon outweigh it.
        """
        if arm in self._arms:
            self._add(self._parts[arm])
            self._arms[arm].fade(share)
            self._solve(self._parts[arm])

    def _newest(self, arm: ArmName, source: str, number: int, *of: Any) -> _Newest:
        return _Newest(arm, source, number, *of, signs_of(arm, "row", number, count=self.pairs))

    def _take(self, part: _Part, row: _Newest) -> tuple[Vector, float]:
        """Take a row into the posterior; what the mean missed, (2,), and z^T A^-1 z before it."""
        own = part.own(row.arm, size=row.z.size)
        gain = part.gain(row.z, own=own)
        spread = float(gain[own] @ row.z)
        scale = self._scales.get(row.source, PLAIN)
        rows, target = scale.share * row.rows, np.array(row.target)
        target[0] = scale.quality(target[0])
        left = 1.0 + rows * spread
        mean, drawn = (stack.reshape(len(stack), -1)[:, part.place] for stack in (self._mean, self._drawn))
        missed = target - mean[:, own] @ row.z
        mean += missed[:, None] * (gain * (rows / left))
        drawn += (math.sqrt(rows) * row.signs - rows * (drawn[:, own] @ row.z))[:, None] * (gain / left)
        part.gains[len(part.newest)] = gain * math.sqrt(rows / left)
        part.newest.append(row)
        return missed, spread

    def _add(self, part: _Part) -> None:
        """Take the newest rows into the sums of their arms."""
        for arm, source in sorted({(row.arm, row.source) for row in part.newest}):
            newest = [row for row in part.newest if (row.arm, row.source) == (arm, source)]
            z, rows = np.array([row.z for row in newest]), np.array([row.rows for row in newest])
            nothing = _Sums(*(np.zeros((rows, self._size)) for rows in (self._size, 2, self.pairs)))
            sums = self._arms[arm].sums.setdefault(source, nothing)
            signs = np.array([row.signs for row in newest])
            weighted = rows[:, None] * z
            gram = z.T @ weighted
            sums.gram += 0.5 * (gram + gram.T)  # a snapshot holds one triangle
            sums.moment += np.array([row.target for row in newest]).T @ weighted
            sums.noise += (np.sqrt(rows)[:, None] * signs).T @ z
        part.newest = []

    def _place(self, rows: Mapping[ArmName, _Arm]) -> None:
        """Give these arms their places, by name; the posterior of a part that has the same arms as before stays."""
        size, before, mean, drawn = self._size, self._parts, self._mean, self._drawn
        self._arms, self._parts = {arm: rows[arm] for arm in sorted(rows)}, {}
        arms = list(self._arms)
        self._places = {arm: place for place, arm in enumerate(arms)}
        self._mean, self._drawn = np.zeros((2, len(arms), size)), np.zeros((self.pairs, len(arms), size))
        for together in [arms] if self.facts is not None else [[arm] for arm in arms]:
            first, last = self._places[together[0]], self._places[together[-1]] + 1
            known = next((before[arm] for arm in together if arm in before), None)
            place = slice(first * size, last * size)
            if known is not None and known.arms == together:
                part = replace(known, place=place)
                for now, then in ((self._mean, mean), (self._drawn, drawn)):
                    now.reshape(len(now), -1)[:, place] = then.reshape(len(then), -1)[:, known.place]
            else:
                if known is not None:
                    self._add(known)
                gains = np.empty((self._block, len(together) * size))
                part = _Part(together, place, np.zeros((0, 0)), gains)
                self._solve(part)
            self._parts |= dict.fromkeys(together, part)

    def _solve(self, part: _Part) -> None:
        """The posterior of the sums."""
        size = self._size
        precision = np.kron(np.linalg.inv(self._kernel(part.arms, part.arms)), np.diag(1.0 / self._variances(size)))
        drawn = np.concatenate([self._prior_samples(arm, size=size) for arm in part.arms], axis=1) @ precision
        moment = np.zeros((2, len(precision)))
        for at, arm in enumerate(part.arms):
            own = slice(at * size, (at + 1) * size)
            for source, sums in self._arms[arm].sums.items():
                scaled = sums.scaled(self._scales[source]) if source in self._scales else sums
                precision[own, own] += scaled.gram
                drawn[:, own] += scaled.noise
                moment[:, own] += scaled.moment
        inverse = np.linalg.inv(precision)
        part.covariance = 0.5 * (inverse + inverse.T)
        self._mean.reshape(2, -1)[:, part.place] = moment @ part.covariance
        self._drawn.reshape(self.pairs, -1)[:, part.place] = drawn @ part.covariance

    def _kernel(self, some: Sequence[ArmName], others: Sequence[ArmName]) -> Matrix:
        """C of these arms, shape (some, others)."""
        return np.array([[self._covariance(one, other) for other in others] for one in some])

    def _covariance(self, one: ArmName, other: ArmName) -> float:
        if self.facts is None:
            return (one == other) / RIDGE
        mine, theirs = self.facts.get(one, {}), self.facts.get(other, {})
        shared = sum(key in theirs and theirs[key] == value for key, value in mine.items())
        return COMMON + PART * shared + OWN * (one == other)

    def _variances(self, size: int) -> Vector:
        """v, shape (p,)."""
        return RIDGE / np.array([self.bias_ridge] + [self.ridge] * (size - 1))

    def _prior_values(self, arms: Sequence[ArmName], *, z: Vector) -> Matrix:
        """Samples of the arms' values before any row, (samples, arms)."""
        return np.array([self._prior_samples(arm, size=z.size) @ z for arm in arms]).T

    def _prior_samples(self, arm: ArmName, *, size: int) -> Matrix:
        """Samples of an arm's weights before any row, (samples, p)."""
        if self.facts is None:
            return _samples_apart(arm, self.pairs, size) * np.sqrt(self._variances(size) / RIDGE)
        own = self.facts.get(arm, {})
        return _samples_of_parts(arm, tuple(f"{key}={value!r}" for key, value in own.items()), self.pairs, size) * (
            np.sqrt(self._variances(size))
        )

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """Per arm and source its sums, G as its upper triangle row by row; the newest rows by part.

        The posterior follows from them.
        """
        quality, both, cost = self.noise.scatter
        arrays: Arrays = {"scatter": np.array([[quality, both], [both, cost]])}
        newest = {part.arms[0]: part.newest for part in self._parts.values()}
        for name, arm in self._arms.items():
            for source, sums in arm.sums.items():
                arrays[f"gram/{source}/{name}"] = sums.gram[np.triu_indices(self._size)]
                arrays |= {f"moment/{source}/{name}": sums.moment, f"noise/{source}/{name}": sums.noise}
        for name, rows in newest.items():
            numbers = [[row.number, row.rows, *row.target, *row.z] for row in rows]
            arrays[f"newest/{name}"] = np.array(numbers, dtype=np.float64).reshape(-1, 4 + self._size)
        facts: dict[str, Json] = {"rows": self.noise.rows, "size": self._size}
        facts["arms"] = {name: [arm.number, arm.fresh, *arm.sums] for name, arm in self._arms.items()}
        return arrays, facts | {"newest": {name: [[r.arm, r.source] for r in rows] for name, rows in newest.items()}}

    def restore(self, arrays: Arrays, facts: Facts, *, scales: Mapping[str, Scale]) -> None:
        """Take over a saved state. scales: how the scores of sources are read."""
        size = self._size = facts["size"]
        shapes: dict[str, tuple[int, ...]] = {"scatter": (2, 2)}
        for name, (_, _, *sources) in facts["arms"].items():
            for source in sources:
                shapes |= {f"gram/{source}/{name}": (size * (size + 1) // 2,), f"moment/{source}/{name}": (2, size)}
                shapes[f"noise/{source}/{name}"] = (self.pairs, size)
        shapes |= {f"newest/{name}": (len(rows), 4 + size) for name, rows in facts["newest"].items()}
        own = checked_arrays(arrays, shapes=shapes)
        (quality, both), (_, cost) = own["scatter"].tolist()
        self.noise.scatter, self.noise.rows, self._scales = (quality, both, cost), facts["rows"], dict(scales)
        self._arms, self._places, self._parts, arms = {}, {}, {}, dict[ArmName, _Arm]()
        for name, (number, fresh, *sources) in facts["arms"].items():
            arms[name] = _Arm({}, number, fresh)
            for source in sources:
                gram = np.zeros((size, size))
                gram[np.triu_indices(size)] = own[f"gram/{source}/{name}"]
                gram += np.triu(gram, 1).T
                key = f"{source}/{name}"
                arms[name].sums[source] = _Sums(gram, own[f"moment/{key}"], own[f"noise/{key}"])
        if arms:
            self._place(arms)
        for name, rows in facts["newest"].items():
            for (arm, source), numbers in zip(rows, own[f"newest/{name}"].tolist(), strict=True):
                number, count, quality, cost, *z = numbers
                row = self._newest(arm, source, int(number), np.array(z), (quality, cost), count)
                self._take(self._parts[arm], row)


def design(features: Vector) -> Vector:
    """The row z = (1, x / sqrt(d)), shape (d+1,), float64."""
    return np.concatenate([[1.0], features.astype(np.float64) / math.sqrt(features.size)])


@functools.lru_cache(maxsize=256)
def _samples_apart(arm: str, count: int, size: int) -> Matrix:
    """Deviations of N(0, I), (count, size), of an arm apart: signs, the intercept's times the upper quantiles."""
    samples = signs_of(arm, "prior", 0, count=count * size).reshape(count, size)
    order = sorted(range(count), key=lambda sample: hashlib.blake2b(_name(arm, "intercept", sample)).digest())
    values = np.array([NormalDist().inv_cdf(0.5 + (sample + 0.5) / (2 * count)) for sample in range(count)])
    samples[order, 0] *= values / math.sqrt(float((values * values).mean()))
    samples.flags.writeable = False
    return samples


@functools.lru_cache(maxsize=256)
def _samples_of_parts(arm: str, parts: tuple[str, ...], count: int, size: int) -> Matrix:
    """Samples whose covariance between arms is C, (count, size): signs of what all share, of each fact, of the arm."""
    samples = math.sqrt(OWN) * signs_of(arm, "prior", 0, count=count * size)
    for name, variance in [("common", COMMON), *((part, PART) for part in parts)]:
        samples += math.sqrt(variance) * signs_of(name, "part", 0, count=count * size)
    samples.flags.writeable = False
    return samples.reshape(count, size)


def signs_of(name: str, kind: str, number: int, *, count: int) -> Vector:
    """`count` numbers +1 or -1 that follow from the name, the kind and the number."""
    stream = hashlib.shake_128(_name(name, kind, number)).digest((count + 7) // 8)
    return np.unpackbits(np.array(bytearray(stream), dtype=np.uint8))[:count].astype(np.float64) * 2.0 - 1.0


def _name(name: str, kind: str, number: int) -> bytes:
    return f"{kind}\0{number}\0{name}".encode("utf-8", "surrogatepass")
