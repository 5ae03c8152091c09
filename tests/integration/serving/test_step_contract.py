"""The contract of steps of deciding: the core's steps follow it, and the check names what a step does wrong."""

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from ragbandit.router.rollouts import verbs
from ragbandit.router.serving.deciding.steps import STEPS
from ragbandit.router.serving.deciding.steps.step import Step
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName, Decision, Fact, Query, Sent
from ragbandit.testing.steps import check_step
from tests.support.rollouts import BASE, add, do

HURRY = Query(text="Who signs?", context={"hurry": True})


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut(Fact):
    key: ClassVar[str] = "left_out"
    arms: tuple[ArmName, ...]
    reason: str = ""


class Good(Step):
    """Leaves out the last arm for callers in a hurry."""

    follows = "Tasks"

    def before(self, batch):
        for question in batch.questions:
            if question.is_drawn and question.query.context.get("hurry") and len(question.arms) > 1:
                question.add(LeftOut(arms=question.arms[-1:], reason="a hurry"))
                question.arms = question.arms[:-1]

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        if (fact := LeftOut.of(decision.facts)) is not None:
            yield f"Left out: {', '.join(fact.arms)}."


class Lost(Good):
    follows = "Task"


class Raising(Good):
    def check(self, question):
        if question.query.context.get("hurry"):
            raise KeyError("hurry")


class Vague(Good):
    def asks(self, question, *, live):
        return question.query.text


class Slow(Good):
    def asks(self, question, *, live):
        time.thread_time()
        return True


class Down(Good):
    def asks(self, question, *, live):
        return True

    async def prepare(self, question, *, live):
        raise ConnectionError("the service is down")


class Widening(Good):
    """Offers an arm that the caller does not allow."""

    def before(self, batch):
        for question in batch.questions:
            question.arms = (ArmName("first"), ArmName("second"), ArmName("third"))


class Emptying(Good):
    def before(self, batch):
        for question in batch.questions:
            question.arms = ()


class Pinning(Good):
    def before(self, batch):
        for question in batch.questions:
            question.certain_arm = ArmName("third")


class Breaking(Good):
    def before(self, batch):
        raise ValueError("arms")


class Reading(Good):
    """Reads the store for each question."""

    def before(self, batch):
        super().before(batch)
        for _ in batch.questions:
            with self.database.connection() as connection:
                connection.exec_driver_sql("SELECT 1").fetchall()


class Redrawing(Good):
    """Replaces the drawn arm, but not the probabilities of the draw."""

    def after(self, batch):
        for question in batch.questions:
            other = next((arm for arm in question.decision.arms if arm != question.decision.arm), None)
            if other is not None:
                question.decision = replace(question.decision, arm=other)


class Inventing(Good):
    def after(self, batch):
        for question in batch.questions:
            question.decision = replace(question.decision, arm=ArmName("fourth"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Mistyped(Fact):
    """A fact with a value of another type than its field has."""

    key: ClassVar[str] = "nested"
    at: int
    why: str = ""


class Unread(Good):
    def before(self, batch):
        for question in batch.questions:
            question.add(Mistyped(at="first", why="x"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Same(Fact):
    key: ClassVar[str] = "left_out"
    arms: tuple[ArmName, ...]
    reason: str = ""


class Colliding(Good):
    """Stores two facts under one key."""

    def before(self, batch):
        super().before(batch)
        for question in batch.questions:
            question.add(Same(arms=("first",)))


class Careless(Good):
    """Reads the stored fact itself, so that a damaged row has no explanation."""

    @classmethod
    def explain(cls, decision):
        if "left_out" in decision.facts:
            yield f"Left out: {', '.join(decision.facts['left_out']['arms'])}."


class Silent(Good):
    @classmethod
    def explain(cls, decision):
        yield from [""] if "left_out" in decision.facts else []


class Forgetful(Good):
    def note_committed(self, decisions, *, now):
        raise KeyError("decisions")


class Restless(Good):
    def refresh(self, *, arms, now):
        raise KeyError("arms")


class Unready(Good):
    """Can be configured once only."""

    def configure(self, served):
        assert not hasattr(self, "served")
        self.served = served


class Random(Good):
    """Gives a repeated id another query, which is a conflict."""

    def check(self, question):
        question.query = replace(question.query, context={**question.query.context, "n": random.random()})


class Once(Good):
    """Refuses an id that it has seen, also if its decision is stored."""

    seen: ClassVar[set[str]] = set()

    def check(self, question):
        if question.query.id in self.seen:
            raise InvalidInput("this id was used")
        self.seen.add(str(question.query.id))


class Misnamed(Good):
    def counters(self):
        yield "hurry", "Questions in a hurry.", {"left out": 1}


class Uncounted(Good):
    def counters(self):
        yield "ragbandit_hurry", "Questions in a hurry.", {"left out": 0.5}


class Idle(Step):
    """Does nothing."""


def pin(router):
    """Turn the kill switch on with an arm that not every question allows."""
    offered, actor = router.service.arms, "cli:ann@host"
    verbs.kill(router.database, base=BASE, arm="third", offered=offered, actor=actor, reason="smoke", now=3.0)
    router.refresh()


def fail(router):
    """Let the answers of an arm fail."""
    for _ in range(6):
        decision = router.route(Query(text="Who?", arms=("first",), arm_by="caller"))
        router.outcome(decision.id, status="failed", error="down")
    router.service.refresh_steps()


def shadow(router):
    """Let a version in shadow be asked too."""
    name = add(router.database, policy={"name": "fixed", "params": {"arm": "second"}}).name
    do(router.database, "shadow", name)
    router.refresh()


SERVER = {"name": "openai", "model": "m", "openai": {"base_url": "http://127.0.0.1:9/v1"}}
CHATS = {"arms": {"chats": {"class": "model"}, "other": {"run_by": "caller"}, "third": {"run_by": "caller"}}}
#: class of a step of the core -> what it needs to do something
GIVEN = {
    "Prices": {"questions": [Query(text="Who?", cost_weight=0.2)]},
    "Rules": {
        "settings": {"rules": [{"name": "eu", "when": {"door": ["route"]}, "arms": ["first", "second"]}]},
        "questions": [Query(text="Who?", arms=("third",))],  # refused
    },
    "Needs": {
        "settings": CHATS | {"generator": SERVER},
        "questions": [Query(text="Who?", sent=Sent(needs=("tools",)))],
    },
    "KillSwitch": {"begin": pin},
    "Labels": {"settings": {"learning": {"labels_per_day": 5}}},
    "Breaker": {"begin": fail},
    "Tasks": {"questions": [Query(text=f"{turn}?", session="s", unit="task") for turn in range(3)]},
    "TurnLimits": {
        "settings": {"conversation": {"at_limit": "cheapest", "session_limit": {"turns": 1}}},
        "questions": [Query(text=f"{turn}?", session="s") for turn in range(3)],
    },
    "Candidates": {"begin": shadow},
}
#: steps that need a judge, or a policy that is learned again: they have tests of their own
ELSEWHERE = {"JudgeShare", "RebuildingStep"}


@pytest.mark.parametrize(
    "kind", [step for step in STEPS if step.__name__ not in ELSEWHERE], ids=lambda kind: kind.__name__
)
def test_the_steps_of_the_core_follow_the_contract(kind):
    """Each step of the core that two settings, a question or a row can make do something follows the contract."""
    check_step(kind, **GIVEN[kind.__name__])


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (object, "is no subclass of Step"),
        (Lost, "the step has no place"),
        (Raising, r"`check` raised KeyError\('hurry'\)"),
        (Vague, "`asks` returned 'Who wrote Dracula"),
        (Down, "`prepare` raised ConnectionError"),
        (Widening, "`before` left the arms .*not among the allowed ones"),
        (Emptying, r"`before` left \(\)"),
        (Pinning, "`before` chose 'third', which is not among the allowed ones"),
        (Breaking, "`before` raised ValueError"),
        (Reading, "`before` read the store . times for . questions"),
        (Redrawing, "the draw cannot be repeated"),
        (Inventing, "`after` left a decision whose arm was not offered"),
        (Unread, "was stored, and is read as"),
        (Colliding, "two facts have the key 'left_out'"),
        (Careless, "`explain` raised"),
        (Silent, "`explain` gave '', not a sentence"),
        (Forgetful, "`note_committed` raised KeyError"),
        (Restless, r"no router starts with the step: KeyError\('arms'\)"),
        (Unready, r"no router starts with the step: AssertionError"),
        (Random, r"a question was not decided \(Conflict"),
        (Once, "the same id was refused"),
        (Misnamed, "the metric 'hurry' has another name"),
        (Uncounted, "not the number of a result"),
        (Idle, "the step did nothing"),
    ],
    ids=lambda value: getattr(value, "__name__", "fault"),
)
def test_a_step_that_breaks_the_contract_is_named(kind, fault):
    """The check says what a step does wrong."""
    with pytest.raises(AssertionError, match=fault):
        check_step(kind, questions=[HURRY])


def test_a_slow_look_is_named(monkeypatch):
    """`asks` is asked for each question, so a tenth of a second of processor time is too much."""
    monkeypatch.setattr(time, "thread_time", itertools.count(0.0, 0.06).__next__)
    with pytest.raises(AssertionError, match=r"`asks` took 0.12 s of processor time"):
        check_step(Slow, questions=[HURRY])
