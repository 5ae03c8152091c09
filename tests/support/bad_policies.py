"""Policies that break their contract, each in one way, for tests of candidates."""

import threading
import time
from dataclasses import replace

from ragbandit.router.policies.algorithms.fixed import Uniform
from ragbandit.router.policies.base import PolicyOutput
from ragbandit.shared.errors import PolicyFault

#: lets a hanging policy go on
RELEASED = threading.Event()


class Raises(Uniform):
    """Raises for every question."""

    def pmf(self, queries, *, features, arms):
        raise ValueError("a bug")


class OddFacts(Uniform):
    """Has facts that no row can keep."""

    def pmf(self, queries, *, features, arms):
        return [replace(output, facts={"x": object()}) for output in super().pmf(queries, features=features, arms=arms)]


class Exits(Uniform):
    """Asks the process to end."""

    def pmf(self, queries, *, features, arms):
        raise SystemExit(3)


class Slow(Uniform):
    """Takes a fifth of a second."""

    def pmf(self, queries, *, features, arms):
        time.sleep(0.2)
        return super().pmf(queries, features=features, arms=arms)


class Hangs(Uniform):
    """Does not come back before RELEASED is set."""

    def pmf(self, queries, *, features, arms):
        RELEASED.wait(60)
        return super().pmf(queries, features=features, arms=arms)


class WrongPmf(Uniform):
    """Gives numbers that do not add up to 1."""

    def pmf(self, queries, *, features, arms):
        return [PolicyOutput(pmf=(0.9,) * len(offered)) for offered in arms]


class NotMade(Uniform):
    """Cannot be made: its encoder is not there."""

    def __init__(self, **params):
        raise PolicyFault("the encoder of this model is not there")


class CannotLearn(Uniform):
    """Fails in a way that no policy may while it learns."""

    def learn(self, update):
        raise RuntimeError("a bug in learning")


class HangsMade(Uniform):
    """Is not made before RELEASED is set."""

    def __init__(self, **params):
        RELEASED.wait(60)
        super().__init__(**params)
