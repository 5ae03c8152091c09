"""Worlds with known truth that are made to break intervals, and the intervals of a log of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import NormalDist
from typing import Any

import numpy as np

from ragbandit.router.comparison.intervals import Interval, Moments, cressie_read, extreme_rows, heavy_weight
from ragbandit.shared.types import Indices, Matrix, Vector

CONFIDENCE = 0.95
#: contexts of a world; rows are drawn from them, so that the truth is a plain mean
CONTEXTS, SIZE, ARMS = 4096, 5, 3
FOLDS = 5
#: the intervals that the product prints
PRINTED = (
    "Cressie-Read, IPS",
    "Cressie-Read, DR",
    "Cressie-Read, DR less logged",
    "Cressie-Read, two candidates",
)

#: name -> interval and the truth that it is of
Intervals = Mapping[str, tuple[Interval, float]]


def weight_powers(pmf: Matrix, *, candidate: Matrix) -> Vector:
    """What `heavy_weight` reads, of these rows; pmf (logged), candidate: shape (n, K)."""
    weight = np.divide(candidate, pmf, out=np.zeros(pmf.shape), where=pmf > 0.0)
    return np.array([(candidate * weight).sum(), (candidate * weight**2).sum()])


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A log of n rows; matrices of shape (n, ARMS)."""

    features: Matrix
    action: Indices
    reward: Vector
    pmf: Matrix
    candidate: Matrix
    rival: Matrix

    def drawn(self, values: Matrix) -> Vector:
        """The values of the arms that were drawn, shape (n,)."""
        picked: Vector = values[np.arange(len(self.action)), self.action]
        return picked


@dataclass(frozen=True, kw_only=True)
class World:
    """Contexts, what three policies do there, and what arms earn: 1 with a chance, less a price."""

    name: str
    #: declared least and largest reward
    rewards: Interval
    #: shape (CONTEXTS, SIZE)
    features: Matrix
    #: logging policy, candidate and another candidate; all arrays have the shape (CONTEXTS, ARMS)
    pmf: Matrix
    candidate: Matrix
    rival: Matrix
    chance: Matrix
    price: Matrix

    def log(self, count: int, *, seed: int) -> Rows:
        """Draw `rows` rows with this seed."""
        random = np.random.default_rng(seed)
        at = random.integers(CONTEXTS, size=count)
        action = (self.pmf[at].cumsum(axis=1)[:, :-1] < random.random((count, 1))).sum(axis=1)
        reward = (random.random(count) < self.chance[at, action]) - self.price[at, action]
        return Rows(
            features=self.features[at],
            action=action,
            reward=reward,
            pmf=self.pmf[at],
            candidate=self.candidate[at],
            rival=self.rival[at],
        )

    def value(self, policy: Matrix) -> float:
        return float((policy * (self.chance - self.price)).sum(axis=1).mean())

    @cached_property
    def truths(self) -> tuple[float, float, float]:
        """The candidate's value, and its lead on the logging policy and on the other candidate."""
        value = self.value(self.candidate)
        return value, value - self.value(self.pmf), value - self.value(self.rival)


def worlds() -> tuple[World, ...]:
    """Skewed weights, rewards less a price, rare successes, a few huge weights, all well, and hardly any difference."""
    random = np.random.default_rng(7)
    x = random.standard_normal((CONTEXTS, SIZE))
    a, b, c = (x @ random.standard_normal((SIZE, ARMS)) for _ in range(3))
    usual, never = (np.eye(ARMS)[np.full(CONTEXTS, arm)] for arm in range(2))
    steps = np.array([1, 3, 8]) + (x[:, :1] > 0) * np.array([0, 1, 3])
    made = partial(World, features=x, rewards=(0.0, 1.0), price=np.zeros((CONTEXTS, ARMS)))
    return (
        made(
            name="skewed",
            pmf=_greedy(a, epsilon=0.1),
            candidate=_greedy(a + 0.9 * b, epsilon=0.05),
            rival=_greedy(a + 0.6 * c, epsilon=0.05),
            chance=_logistic(1.2 + 0.3 * (a + b)),
        ),
        made(
            name="costly",
            rewards=(-1.0, 1.0),
            pmf=0.9 * _softmax(a) + 0.1 / ARMS,
            candidate=_greedy(c, epsilon=0.1),
            rival=_softmax(2.0 * b),
            chance=_logistic(-2.0 + 0.5 * c),
            price=0.05 * steps,
        ),
        made(
            name="rare",
            pmf=_greedy(a, epsilon=0.2),
            candidate=_greedy(a + b, epsilon=0.1),
            rival=_greedy(c, epsilon=0.1),
            chance=0.02 * np.exp(0.3 * b) / np.exp(0.3 * b).mean(axis=0),
        ),
        made(
            name="steep",
            pmf=0.98 * _softmax(a) + 0.02 / ARMS,
            candidate=_softmax(0.5 * a + b),
            rival=_softmax(a + 0.5 * c),
            chance=_logistic(0.5 * b),
        ),
        made(
            name="benign",
            pmf=np.full((CONTEXTS, ARMS), 1.0 / ARMS),
            candidate=_softmax(b),
            rival=_softmax(c),
            chance=np.clip(0.5 + 0.15 * b, 0.02, 0.98),
        ),
        *(  # the candidate is the logging policy without its exploration, and all arms are alike
            made(
                name=name,
                pmf=0.97 * usual + 0.03 / ARMS,
                candidate=usual,
                rival=0.9 * usual + 0.1 * never,
                chance=np.full((CONTEXTS, ARMS), chance),
            )
            for name, chance in (("near, rare", 0.03), ("near, sure", 0.97))
        ),
    )


def _greedy(scores: Matrix, *, epsilon: float) -> Matrix:
    return np.asarray(epsilon / ARMS + (1.0 - epsilon) * np.eye(ARMS)[scores.argmax(axis=1)])


def _softmax(scores: Matrix) -> Matrix:
    power = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(power / power.sum(axis=1, keepdims=True))


def _logistic(scores: Matrix) -> Matrix:
    return np.asarray(1.0 / (1.0 + np.exp(-scores)))


def crossed(rows: Rows, *, rewards: Interval) -> Matrix:
    """Predictions of each fold by a ridge per arm of the other folds, shape (n, ARMS)."""
    fold = np.arange(len(rows.action)) % FOLDS
    sums = [_sums(rows, fold == number) for number in range(FOLDS)]
    total = [sum(one[part] for one in sums) for part in range(2)]
    guess = np.empty(rows.pmf.shape)
    for number, one in enumerate(sums):
        guess[fold == number] = _design(rows.features[fold == number]) @ _solved(total[0] - one[0], total[1] - one[1])
    return np.clip(guess, *rewards)


def _design(features: Matrix) -> Matrix:
    return np.concatenate([np.ones((len(features), 1)), features], axis=1)


def _sums(rows: Rows, part: Any) -> tuple[Any, Any]:
    """Per arm the design's squares, shape (ARMS, d, d), and its products with the rewards, shape (ARMS, d)."""
    design, action, reward = _design(rows.features[part]), rows.action[part], rows.reward[part]
    own = [design[action == arm] for arm in range(ARMS)]
    cross = [z.T @ reward[action == arm] for arm, z in enumerate(own)]
    return np.stack([z.T @ z for z in own]), np.stack(cross)


def _solved(precision: Any, cross: Any) -> Matrix:
    """Coefficients, shape (d, ARMS)."""
    return np.asarray(np.linalg.solve(precision + np.eye(SIZE + 1), cross[..., None])[..., 0].T)


def fixed(world: World, rows: Rows) -> Intervals:
    """Every interval of a log of fixed length."""
    value, lead, ahead = world.truths
    reward, guess = rows.reward, crossed(rows, rewards=world.rewards)
    weight, other = (rows.drawn(policy) / rows.drawn(rows.pmf) for policy in (rows.candidate, rows.rival))
    left = reward - rows.drawn(guess)
    plain, robust = weight * reward, (rows.candidate * guess).sum(axis=1) + weight * left
    against = robust - (rows.rival * guess).sum(axis=1) - other * left
    share = plain.sum() / weight.sum()
    spread = float(np.sqrt(((weight * (reward - share)) ** 2).sum()) / weight.sum())
    heavy = [heavy_weight(weight_powers(rows.pmf, candidate=policy)) for policy in (rows.candidate, rows.rival)]
    seen = float((rows.candidate * guess).sum(axis=1).mean())

    def likely(*columns: Vector, **more: Any) -> Interval:
        extremes = extreme_rows(heavy[: len(columns) - 1], rewards=world.rewards, **more)
        point = float(columns[0].mean())
        return cressie_read(Moments.of(*columns), confidence=CONFIDENCE, extremes=extremes, value=point)

    return {
        "Cressie-Read, IPS": (likely(plain, weight), value),
        "Cressie-Read, DR": (likely(robust, weight, baseline=seen), value),
        "Cressie-Read, DR less logged": (likely(robust - reward, weight, baseline=seen, minus_logged=True), lead),
        "Cressie-Read, two candidates": (likely(against, weight, other, baseline=seen), ahead),
        "normal, IPS": (_normal(plain), value),
        "delta method, SNIPS": (_around(float(share), error=spread), value),
        "normal, DR": (_normal(robust), value),
    }


def _normal(scores: Vector) -> Interval:
    error = float(scores.std(ddof=1)) / len(scores) ** 0.5
    return _around(float(scores.mean()), error=error)


def _around(value: float, *, error: float) -> Interval:
    """Value and so many standard errors to both sides."""
    reach = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * error
    return value - reach, value + reach


def shares(number: int, *, count: int, seeds: Sequence[int]) -> Mapping[str, list[tuple[bool, float]]]:
    """(holds the truth, width) in every run of world `number`."""
    world, runs = worlds()[number], dict[str, list[tuple[bool, float]]]()
    for seed in seeds:
        rows = world.log(count, seed=seed)
        for name, ((low, high), truth) in fixed(world, rows).items():
            runs.setdefault(name, []).append((low <= truth <= high, high - low))
    return runs
