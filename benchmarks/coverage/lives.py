"""Lives: decisions of made services with a known truth, in the ways in which a log may be too little or mislead."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ragbandit.shared.types import Matrix, Vector

#: from the usual one to the rarest
ARMS: Final = ("usual", "other", "rarest")
#: decisions of a life, and columns of features
DECISIONS, SIZE = 2_000, 4
#: what all policies explore
_FLOOR: Final = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Life:
    """n decisions over K arms, in their order; matrices of shape (n, K), vectors of shape (n,)."""

    #: which question was asked; the same number: the same question
    question: npt.NDArray[np.intp]
    features: Matrix
    #: pmf of the serving policy, from which the arm is drawn, and of another one
    pmf: Matrix
    candidate: Matrix
    action: npt.NDArray[np.intp]
    #: the reward of the arm drawn, 0 or 1, whether anybody rated it or not, and its chance to be 1 for every arm
    reward: Vector
    chance: Matrix
    #: whether it was rated
    rated: npt.NDArray[np.bool_]
    #: number of the rater and the question: ratings with the same number are one judgement of each arm, given again
    cluster: npt.NDArray[np.intp]

    def part(self, rows: npt.NDArray[Any] | slice) -> "Life":
        """These decisions alone."""
        return Life(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})

    def value(self, policy: Matrix) -> Vector:
        """What the policy earns on each of these questions, in expectation."""
        earned: Vector = (policy * self.chance).sum(axis=1)
        return earned


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A way of living."""

    #: probability of each arm on half of the questions; on the others the first two change places
    usual: tuple[float, float, float] = (0.5, 0.3, 0.2)
    #: share of the answers of each arm that are rated
    rated: tuple[float, float, float] = (0.3, 0.3, 0.3)
    #: different questions; None: every one is new
    questions: int | None = None
    #: the policy learns from its ratings while it serves, and what arms are worth changes
    drifts: bool = False
    #: one rater rates the same questions again, popular ones often, and gives an arm's answer the same rating again
    again: bool = False
    #: on half of the questions, which differ from the others, the rarest arm has no chance
    partly: bool = False


KINDS: Final[Mapping[str, Kind]] = {
    "all tried": Kind(),
    "rare arms": Kind(usual=(0.935, 0.04, 0.025)),
    "untried": Kind(usual=(0.9994, 0.0004, 0.0002)),
    "5 % rated": Kind(rated=(0.05, 0.05, 0.05)),
    "rated by arm": Kind(rated=(0.5, 0.25, 0.1)),
    "by arm, a little": Kind(rated=(0.33, 0.3, 0.27)),
    "drifting": Kind(drifts=True),
    "repeated": Kind(questions=40),
    "rated again": Kind(questions=100, again=True),
    "no chance on half": Kind(partly=True),
}


def life(kind: Kind, *, seed: int, decisions: int = DECISIONS) -> Life:
    """A life of this kind."""
    random = np.random.default_rng(seed)
    count = kind.questions or decisions
    x = random.standard_normal((count, SIZE))
    chance = 1.0 / (1.0 + np.exp(-(random.normal(0.6, 0.8, 3) + x @ random.normal(0.0, 0.5, (SIZE, 3)))))
    if (
        kind.questions is not None and not kind.again
    ):  # every question has its own answers, which its features do not determine
        chance = random.random((count, 3))
    question = np.arange(decisions) if kind.questions is None else random.integers(count, size=decisions)
    if kind.again:
        question = (count * random.random(decisions) ** 2).astype(np.intp)
        right = (random.random((count, 3)) < chance)[question].astype(float)
    x, chance = x[question], chance[question]
    usual = np.where(x[:, :1] > 0.0, kind.usual, (kind.usual[1], kind.usual[0], kind.usual[2]))
    if min(kind.usual) < _FLOOR:  # what is rare is rare on every question
        usual = np.tile(kind.usual, (decisions, 1))
    if kind.partly:
        usual = np.where(x[:, 1:2] > 0.0, usual, np.array([1.0, 1.0, 0.0]) * usual / usual[:, :2].sum(axis=1)[:, None])
    liked = (chance + random.normal(0.0, 0.3, chance.shape)).argmax(axis=1)
    made = Life(
        question=question,
        features=x,
        candidate=_FLOOR + (1.0 - 3 * _FLOOR) * np.eye(3)[liked],
        pmf=usual,
        action=np.zeros(decisions, dtype=np.intp),
        reward=np.zeros(decisions),
        chance=chance,
        rated=np.zeros(decisions, dtype=np.bool_),
        cluster=question if kind.again else np.arange(decisions),
    )
    drawn = _learned(made, random=random) if kind.drifts else _drawn(made, kind, random)
    return replace(drawn, reward=right[np.arange(decisions), drawn.action]) if kind.again else drawn


def _drawn(made: Life, kind: Kind, random: np.random.Generator) -> Life:
    pmf = made.pmf
    rows = np.arange(len(pmf))
    action = (pmf.cumsum(axis=1)[:, :-1] < random.random((len(pmf), 1))).sum(axis=1)
    reward = (random.random(len(pmf)) < made.chance[rows, action]).astype(float)
    rated = random.random(len(pmf)) < np.array(kind.rated)[action]
    return replace(made, action=action, reward=reward, rated=rated)


def _learned(made: Life, *, random: np.random.Generator) -> Life:
    """A policy that prefers the arms whose ratings so far are best, in batches of 50; the first arm becomes worse."""
    right, count = np.ones(3), np.full(3, 2.0)
    parts = []
    for first in range(0, len(made.action), 50):
        here = made.part(slice(first, first + 50))
        means = np.exp(8.0 * right / count)
        chance = here.chance * np.array([1.0 - 0.6 * first / len(made.action), 1.0, 1.0])
        pmf = np.tile(_FLOOR + (1.0 - 3 * _FLOOR) * means / means.sum(), (len(here.action), 1))
        part = _drawn(replace(here, pmf=pmf, chance=chance), Kind(), random)
        np.add.at(right, part.action[part.rated], part.reward[part.rated])
        np.add.at(count, part.action[part.rated], 1.0)
        parts.append(part)
    return Life(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in Life.__dataclass_fields__})
