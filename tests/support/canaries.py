"""Decisions of a canary and their rewards: by how much the candidate is better or worse is known."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ragbandit.router.rollouts.evidence import Draws, Judged
from ragbandit.shared.types import PolicyLabel, PolicyVersion

ARMS: Final = ("no_retrieval", "single_step", "multi_step")
EXPLORED: Final = 0.1
Generator = np.random.Generator


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """What a candidate is worth."""

    name: str
    #: reward of the candidate less that of the champion
    gap: float
    #: share of questions on which the two play different arms
    differing: float = 1 / 3
    #: rewards are 0 or 1; else spread over [0, 1] with a deviation of 0.25
    labels: bool = False
    #: mean reward of the champion
    usual: float = 0.5
    #: share of answers that fail, and that people rate
    failing: float = 0.01
    rated: float = 1.0
    #: correlation of a judge's scores of all answers with their rewards; 0: there is no judge
    judge: float = 0.0


def rows(world: World, *, weight: float, count: int, rng: Generator) -> tuple[Judged, dict[str, Any]]:
    """Decisions of this world, drawn from the mixture: with rewards, and the arguments of `Evidence.add`."""
    at = np.arange(count)
    best, differs = rng.integers(0, 3, count), rng.random(count) < world.differing
    other = (best + rng.integers(1, 3, count)) % 3
    champion = np.full((count, 3), EXPLORED / 3)
    candidate = champion.copy()
    champion[at, best] += 1.0 - EXPLORED
    candidate[at, np.where(differs, other, best)] += 1.0 - EXPLORED
    value = np.full((count, 3), world.usual)
    value[at, other] += np.where(differs, world.gap / (world.differing * (1.0 - EXPLORED)), 0.0)
    pmf = (1.0 - weight) * champion + weight * candidate
    arm = (pmf.cumsum(axis=1) > rng.random(count)[:, None]).argmax(axis=1)
    mean = value[at, arm]
    reward = (rng.random(count) < mean).astype(float) if world.labels else rng.beta(3.0 * mean, 3.0 * (1.0 - mean))
    rated = rng.random(count) < world.rated
    judge = np.where(rng.random(count) < world.judge, reward, rng.permutation(reward)) if world.judge else None
    draws = Draws(
        arms=ARMS,
        arm=arm,
        pmf=pmf,
        candidate=candidate,
        champion=champion,
        scores=np.full((count, 3), np.nan),
    )
    failed = (rng.random(count) < world.failing).astype(float)
    outcomes = {"draws": draws, "failed": failed, "cost": 1.0 + arm.astype(float)}
    if judge is not None:
        seen = np.where(rated, reward, np.nan)
        return Judged(draws=draws, reward=seen, judge=judge, minimum=-1.0, maximum=1.0), outcomes
    return Judged(draws=draws.cut(rated), reward=reward[rated], minimum=-1.0, maximum=1.0), outcomes


VERSION: Final = PolicyVersion(
    name="v1",
    base=PolicyLabel("main"),
    label=PolicyLabel("main.v1"),
    state="canary",
    weight=0.25,
    former=None,
    revision=1,
    reason="made",
    made_by="benchmark",
    made_at=0.0,
    since=0.0,
)
