"""Runs one arm for one question and says what became of it. A failing arm is an outcome, never an exception."""

import asyncio
import logging
import time
from dataclasses import dataclass, replace

from router.errors import ArmFailed, RagBanditError
from router.types import Budget, DecisionId, Outcome, OutcomeStatus, count_steps
from strategies.base import Answer, Generator, OutOfBudget, Retriever, Run, Strategy

__all__ = ["GRACE_SECONDS", "run_strategy"]

logger = logging.getLogger(__name__)

#: How long after the deadline a hanging arm is cut off. A generator that heeds its deadline returns within it and
#: can still report the tokens it used; one that is cut off cannot.
GRACE_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class _End:
    status: OutcomeStatus
    answer: str | None
    stop_reason: str
    error: str | None = None


async def run_strategy(
    strategy: Strategy,
    *,
    decision_id: DecisionId,
    question: str,
    budget: Budget,
    retriever: Retriever,
    generator: Generator,
) -> Outcome:
    """The outcome of the arm for the question, with the cost it really had.

    "answered": the arm ended by itself. "exhausted": a cap of the budget ended it; the answer is its draft or None
    and the stop reason "budget_<cap>". "failed": it raised; the stop reason is "error" and `error` the message.
    Seconds are enforced twice: by the Run before and during every call, and here, GRACE_SECONDS late, for an arm
    that hangs elsewhere. Code that blocks the event loop cannot be cut off.
    Raises nothing but cancellation (asyncio.CancelledError), which passes through.
    """
    run = Run(retriever=retriever, generator=generator, budget=budget)
    end = await _end_of(strategy, question=question, run=run)
    trace = tuple(run.trace)
    return Outcome(
        decision_id=decision_id,
        status=end.status,
        answer=end.answer,
        trace=trace,
        cost=replace(run.cost, seconds_total=time.monotonic() - run.started),
        steps=float(count_steps(trace)),
        stop_reason=end.stop_reason,
        error=end.error,
        source="worker",
        made_at=time.time(),
    )


async def _end_of(strategy: Strategy, *, question: str, run: Run) -> _End:
    seconds = run.budget.seconds
    limit = asyncio.timeout(None if seconds is None else max(0.0, seconds) + GRACE_SECONDS)
    try:
        async with limit:
            answer = await strategy.answer(question, run=run)
            if not isinstance(answer, Answer):
                raise ArmFailed(
                    f"the arm {strategy.name} returned {type(answer).__name__}",
                    remedy="return a strategies.base.Answer",
                )
            return _End(status="answered", answer=answer.text, stop_reason=answer.stop_reason)
    except OutOfBudget as error:
        return _exhausted(run, cap=error.cap)
    except RagBanditError as error:
        return _End(status="failed", answer=None, stop_reason="error", error=str(error))
    except Exception as error:
        # A TimeoutError of the arm's own, from a socket say, is a failure like any other.
        if isinstance(error, TimeoutError) and limit.expired():
            return _exhausted(run, cap="seconds")
        logger.exception("an arm raised", extra={"action": "arm_failed", "arm": strategy.name})
        return _End(status="failed", answer=None, stop_reason="error", error=f"{type(error).__name__}: {error}")


def _exhausted(run: Run, *, cap: str) -> _End:
    return _End(status="exhausted", answer=run.draft, stop_reason=f"budget_{cap}")
