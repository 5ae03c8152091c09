"""From an arm's run to an Outcome."""

import asyncio
import logging
import time
from types import MappingProxyType

import pytest

from router.errors import ArmFailed
from router.types import Budget, DecisionId, count_steps
from strategies.base import Answer, Prompt
from strategies.runner import run_strategy
from strategies.scripted import MemoryRetriever, ScriptedGenerator


class Arm:
    """Two rounds, one search and one call, then whatever the test wants."""

    name = "arm"
    needs = frozenset()
    params = MappingProxyType({})

    def __init__(self, end):
        self._end = end

    async def answer(self, question, *, run):
        run.begin_round(cap=2)
        await run.search(question, k=1)
        run.begin_round(cap=2)
        await run.complete(Prompt(instructions="", body="two words"), purpose="p", max_tokens=3)
        run.draft = "draft"
        return await self._end()


def run(end, **budget):
    return asyncio.run(
        run_strategy(
            Arm(end),
            decision_id=DecisionId("d7"),
            question="q",
            budget=Budget(**budget),
            retriever=MemoryRetriever([]),
            generator=ScriptedGenerator({"": "one"}),
        )
    )


def raising(error):
    async def end():
        raise error

    return end


async def good():
    return Answer(text="yes", stop_reason="rule")


def test_a_normal_end_is_answered():
    """The Outcome carries the arm's answer and rule, the decision's id and the true account."""
    before = time.time()
    outcome = run(good)

    assert (outcome.decision_id, outcome.status, outcome.answer) == ("d7", "answered", "yes")
    assert (outcome.stop_reason, outcome.error, outcome.source) == ("rule", None, "worker")
    assert outcome.steps == count_steps(outcome.trace) == 2
    assert (outcome.cost.llm_calls, outcome.cost.retriever_calls) == (1, 1)
    assert (outcome.cost.prompt_tokens, outcome.cost.completion_tokens) == (2, 1)
    assert outcome.cost.seconds_total > 0
    assert before <= outcome.made_at <= time.time()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ArmFailed("no luck", field="question", remedy="try again"), "question: no luck (try again)"),
        (ValueError("bad"), "ValueError: bad"),
        (TimeoutError("socket"), "TimeoutError: socket"),
        (KeyError("k"), "KeyError: 'k'"),
    ],
)
def test_any_exception_is_a_failed_outcome_with_its_cost(error, message):
    """Whatever the arm raises becomes status failed with its message, no answer, and the cost and steps so far."""
    outcome = run(raising(error), seconds=60)

    assert (outcome.status, outcome.answer, outcome.stop_reason, outcome.error) == ("failed", None, "error", message)
    assert (outcome.cost.llm_calls, outcome.steps) == (1, 2)


def test_an_unexpected_exception_is_logged_with_its_traceback(caplog):
    """A bug in an arm leaves its traceback in the log; a failure that was foreseen does not."""
    with caplog.at_level(logging.ERROR):
        run(raising(ArmFailed("foreseen")))
        assert caplog.records == []
        run(raising(ZeroDivisionError("bug")))

    assert caplog.records[0].exc_info
    assert caplog.records[0].action == "arm_failed"


def test_an_arm_that_returns_something_else_has_failed():
    """Only an Answer is an answer."""

    async def text():
        return "just text"

    assert "returned str" in run(text).error


def test_an_arm_that_hangs_outside_any_call_is_cut_off():
    """Seconds are enforced over the whole arm; the draft is the answer."""

    async def hang():
        await asyncio.sleep(60)

    began = time.monotonic()
    outcome = run(hang, seconds=0.02)

    assert (outcome.status, outcome.answer, outcome.stop_reason) == ("exhausted", "draft", "budget_seconds")
    assert time.monotonic() - began < 2


def test_a_budget_of_no_seconds_is_used_up_at_once():
    """With zero seconds nothing is searched or generated."""
    outcome = run(good, seconds=0)

    assert (outcome.status, outcome.answer) == ("exhausted", None)
    assert (outcome.cost.llm_calls, outcome.cost.retriever_calls) == (0, 0)


def test_a_slow_retriever_is_cut_off():
    """A search beyond the seconds ends as exhausted, and the search is in the cost."""
    outcome = asyncio.run(
        run_strategy(
            Arm(good),
            decision_id=DecisionId("d"),
            question="q",
            budget=Budget(seconds=0.02),
            retriever=MemoryRetriever([], seconds=30),
            generator=ScriptedGenerator([]),
        )
    )

    assert (outcome.stop_reason, outcome.cost.retriever_calls, outcome.cost.llm_calls) == ("budget_seconds", 1, 0)


def test_a_timeout_of_the_retriever_itself_is_a_failure():
    """A retriever that raises TimeoutError within the budget has failed; the budget did not run out."""

    class Unreachable(MemoryRetriever):
        async def search(self, query, *, k):
            raise TimeoutError("no server")

    outcome = asyncio.run(
        run_strategy(
            Arm(good),
            decision_id=DecisionId("d"),
            question="q",
            budget=Budget(seconds=30),
            retriever=Unreachable([]),
            generator=ScriptedGenerator([]),
        )
    )

    assert (outcome.status, outcome.error) == ("failed", "TimeoutError: no server")
