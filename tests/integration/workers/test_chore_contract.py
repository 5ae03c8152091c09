"""The contract of chores: every chore of the core follows it, and the check names what a chore does wrong."""

import pytest

from ragbandit.hooks import Chore
from ragbandit.testing.chores import check_chore
from ragbandit.workers.chores import CHORES

#: chores that settings turn on -> the settings
SETTINGS = {"OldDecisions": {"retention": {"days": 30.0}}}
#: chores that need a running arm, a service or a function: they have tests of their own
ELSEWHERE = {"BlockedLoop", "RewardChecks"}
KINDS = [kind for kind in CHORES if kind.__name__ not in ELSEWHERE]


class Good(Chore):
    """Does nothing, at once and for ever; the examples below differ from it in what they do wrong."""

    title = "do nothing"
    every_s = 1.0

    def do(self) -> float | None:
        return 0.5


class Untitled(Good):
    title = ""


class Restless(Good):
    every_s = 0.0


class Boolean(Good):
    def do(self):
        return True


class Twins(Good):
    @classmethod
    def of(cls, context):
        return [cls(context), cls(context)]


class Absent(Good):
    @classmethod
    def of(cls, context):
        return []


class EndsOnce(Good):
    """Holds what only a run makes, so that it cannot end before the first one."""

    def do(self):
        self.held = object()

    def end(self):
        assert self.held is not None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_chore_follows_the_contract(kind):
    """A chore has a title and a pause, returns seconds or None, and ends also before its first run."""
    check_chore(kind, settings=SETTINGS.get(kind.__name__))


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (Untitled, "a chore has a title"),
        (Restless, "every_s is 0.0"),
        (Boolean, "`do` returned True"),
        (Twins, "two chores have one title"),
        (Absent, "`of` returns no chore"),
        (EndsOnce, "held"),
    ],
)
def test_a_chore_that_breaks_the_contract_is_named(kind, fault):
    """The check says what a chore does wrong; it also ends one that never ran, as a process does that ends at once."""
    with pytest.raises((AssertionError, AttributeError), match=fault):
        check_chore(kind)
