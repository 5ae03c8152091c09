"""Which questions of a run are asked at the same time, and when its budget ends it."""

import asyncio
from types import SimpleNamespace

import pytest

from ragbandit.shared.types import Cost
from ragbandit.strategies.base import Account
from ragbandit.workers.asking.admission import Admission
from ragbandit.workers.asking.question_run import in_parallel
from ragbandit.workers.asking.stop import Stop, planned_looks

QUESTIONS = 12


def ask(*, budget, expected=1.0, dollars=1.0, alone=()):
    """A run that asks four questions at a time. `together` has the questions in the order of their admission,
    each with the most that were open at the same time.
    """
    stop, is_open, together = Stop(budget=budget), set(), {}
    admission = Admission(stop)

    async def ask_one(number):
        async with admission.admit(expected=expected, is_alone=number in alone) as turn:
            if turn is None:
                return
            is_open.add(number)
            for one in is_open:
                together[one] = max(together.get(one, 0), len(is_open))
            await asyncio.sleep(0.001)
            admission.pay(turn, account=Account(cost=Cost(dollars=dollars)))
            is_open.discard(number)

    asyncio.run(in_parallel(range(QUESTIONS), ask_one, concurrency=4))
    return SimpleNamespace(together=together, spent=admission.spent, reason=stop.reason)


def test_without_a_budget_questions_are_asked_at_once():
    """Without a budget nothing waits, whatever the questions cost."""
    asked = ask(budget=None, dollars=1e6)
    assert (len(asked.together), asked.together[0], asked.reason) == (QUESTIONS, 4, None)


def test_the_first_question_of_a_budget_is_asked_by_itself():
    """With a budget the first question shows what a question costs; the next ones are asked at once."""
    asked = ask(budget=1000.0)
    assert (asked.together[0], asked.together[2], asked.reason) == (1, 4, None)


@pytest.mark.parametrize("dollars", [1.0, 100.0])
def test_a_budget_holds_whatever_questions_cost(dollars):
    """A run ends before the question that may pass its budget, by the estimate and by the most expensive one so far."""
    asked = ask(budget=5.5, dollars=dollars)
    assert asked.spent == max(5.0, dollars)
    assert len(asked.together) == asked.spent / dollars
    assert asked.reason == "the next question may pass the budget of 5.5 dollars"


def test_near_its_budget_a_run_asks_one_by_one():
    """Questions are asked at once only while twice their dollars are left."""
    in_order = [*ask(budget=9.0).together.values()]
    assert (in_order[0], max(in_order), in_order[-2:]) == (1, 4, [1, 1])


def test_a_question_alone_is_asked_alone():
    """While a question over which a process died is asked, no other one is."""
    asked = ask(budget=None, alone={5})
    assert (len(asked.together), asked.together[5]) == (QUESTIONS, 1)


def test_a_run_that_has_ended_admits_nothing():
    """After any reason to stop, no further question is asked, and the first reason stays."""
    stop = Stop(budget=1.0)
    stop.check_budget(0.99)
    assert stop.reason is None
    stop.end("the judge fails")
    stop.check_budget(1.0)
    assert stop.reason == "the judge fails"

    async def admits():
        async with Admission(stop).admit(expected=0.0, is_alone=False) as turn:
            return turn is not None

    assert not asyncio.run(admits())


def test_a_look_that_is_due_is_made_once():
    """Several looks that have become due are one look, and nobody looks again before the next one is due."""
    counts = []
    stop = Stop(is_known=lambda: counts.append(answered) or answered >= 200, looks=planned_looks(1000))
    for answered in (49, 50, 51, 160, 199, 200, 300):
        asyncio.run(stop.look(answered))
    assert (counts, stop.reason) == ([50, 160, 200], "the verdict is known after 200 questions")
