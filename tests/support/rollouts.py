"""Versions of the policy and what moves them."""

import itertools
from typing import Any

from ragbandit.router.config.sections import RolloutSettings
from ragbandit.router.rollouts import verbs
from ragbandit.shared.types import PolicyLabel

BASE = PolicyLabel("main")
NOW = itertools.count(2.0)


def add(database, name=None, *, base=BASE, now=1.0, **changes):
    """A draft with these changes."""
    return verbs.add(database, base=base, name=name, changes=changes, actor="cli:ann@host", reason="tried", now=now)


def do(database, verb, name="v1", *, settings=None, **more):
    """Carry out an action, later than all before it."""
    values: dict[str, Any] = {"actor": "cli:ann@host", "reason": "because", "now": next(NOW)} | more
    act = verbs.Act(verb=verb, name=name, base=BASE, **values)
    return verbs.perform(database, act, settings=settings or RolloutSettings())


def shadow(world, *, name=None, **changes):
    """The name of a new version in shadow, which the world's router asks."""
    name = add(world.database, name, **changes).name
    do(world.database, "shadow", name)
    world.router.refresh()
    return name
