"""Means and claims of both units in a world."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.tasks.claims import Claim, claims
from benchmarks.tasks.passes import always, played
from benchmarks.tasks.served import Agreement, agreement
from benchmarks.tasks.worlds import ARMS, made_world, questions
from ragbandit.shared.types import DecisionUnit, Vector

UNITS: Final[tuple[DecisionUnit, ...]] = ("task", "turn")
#: first task of the second part of a pass
LATER: Final = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """Means of a pass per task, and means of its parts above the best fixed arm."""

    dollars: float
    solved: float
    reward: float
    first: float
    later: float  #: NaN if the pass is too short
    changes: float = 0.0  #: share of the later turns with another arm than the turn before

    @classmethod
    def of(cls, *, dollars: Vector, chance: Vector, weight: float, best: Vector, changes: float = 0.0) -> "Means":
        """best: expected rewards of the best fixed arm, shape (tasks,)."""
        reward = chance - weight * dollars
        gain = reward - best
        return cls(
            dollars=float(dollars.mean()),
            solved=float(chance.mean()),
            reward=float(reward.mean()),
            first=float(gain[:LATER].mean()),
            later=float(gain[LATER:].mean()) if len(gain) > LATER else float("nan"),
            changes=changes,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A world: means of each played unit and of always each arm, and claims of each played unit."""

    means: Mapping[str, Means]
    claims: Mapping[str, Mapping[str, Claim]]


def measured(
    seed: int, *, tasks: int, units: Sequence[DecisionUnit], one_kind: bool, same_weight: bool, encoder: str | None
) -> Measured:
    """Play a world with these units."""
    known = questions(encoder)
    world = made_world(seed, tasks=tasks, known=known, one_kind=one_kind, same_weight=same_weight)
    dollars, chance = always(world)
    worth = chance - world.weight * dollars
    best = worth[:, worth.mean(axis=0).argmax()]
    means = {
        f"always {arm}": Means.of(dollars=dollars[:, place], chance=chance[:, place], weight=world.weight, best=best)
        for place, arm in enumerate(ARMS)
    }
    found: dict[str, Mapping[str, Claim]] = {}
    for unit in units:
        one = played(world, unit=unit, known=known)
        means[unit] = Means.of(
            dollars=one.dollars, chance=one.chance, weight=world.weight, best=best, changes=float(one.changes.mean())
        )
        found[unit] = claims(one)
    return Measured(means=means, claims=found)


def served_alike(*, tasks: int, one_kind: bool, same_weight: bool, encoder: str | None) -> Agreement:
    """Serve the first tasks of world 0 by a service too."""
    known = questions(encoder)
    world = made_world(0, tasks=tasks, known=known, one_kind=one_kind, same_weight=same_weight)
    return agreement(played(world, unit="task", known=known), tasks=tasks, encoder=encoder, known=known)
