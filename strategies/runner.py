"""Runner: one arm, one question, one outcome. A failing arm is an outcome, never an exception."""

import asyncio
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from ragbandit.shared.errors import ArmFailed, InvalidInput, RagBanditError
from ragbandit.shared.failures import FAILURE, Failure, ServerFailed
from ragbandit.shared.redaction import without_credentials
from ragbandit.shared.types import (
    CANCELLED,
    MAX_ERROR,
    MAX_TEXT,
    Budget,
    DecisionId,
    Json,
    Outcome,
    OutcomeStatus,
    Query,
    Source,
    count_steps,
)
from ragbandit.strategies.base import (
    Generator,
    OutOfBudget,
    QuestionTooLong,
    RequestRefused,
    Retriever,
    error_text,
    log_exception,
    logger,
)
from ragbandit.strategies.prompting.prompts import templates_digest
from ragbandit.strategies.registry import registered_name
from ragbandit.strategies.run import NO_SPANS, Answer, AnswerReader, AnswerStream, Run, Spans, Strategy

#: How long after the deadline a hanging arm is cut off. A generator that heeds its deadline returns within it and
#: can still report the tokens it used; one that is cut off cannot.
GRACE_SECONDS = 0.25
#: characters of a source's text that are kept unless told otherwise, and of its title
SOURCE_CHARS = 2000
#: characters of a stop reason that are kept
STOP_REASON_LENGTH = 64
#: the error of an arm whose caller did not want the answer any more
CANCELLED_ERROR = "cancelled by the caller"


@dataclass(frozen=True, kw_only=True, slots=True)
class _End:
    status: OutcomeStatus
    answer: str | None
    stop_reason: str
    error: str | None = None
    failure: Failure | None = None


async def run_strategy(
    strategy: Strategy,
    *,
    query: Query,
    budget: Budget,
    retriever: Retriever,
    generator: Generator,
    stop: "Future[None] | None" = None,
    reader: AnswerReader | None = None,
    source_chars: int = SOURCE_CHARS,
    spans: Spans = NO_SPANS,
    named: Mapping[str, Json] = MappingProxyType({}),
    has_successor: bool = False,
) -> Outcome:
    """The outcome of the arm for the query, with the cost it really had; `budget` is the caps in force.

    "answered": the arm ended by itself. "exhausted": a cap of the budget ended it; the answer is its draft or None and
    the stop reason "budget_<cap>". "failed": it raised, or its answer has more than MAX_TEXT characters; `error` is the
    message, the stop reason is "error", or "question_too_long" where no prompt has room for the question,
    "request_refused" where the model's server refuses a chat that was passed on. Or somebody, in whichever thread,
    completed `stop`: the arm is cut off where it is, the stop reason is CANCELLED. Seconds are enforced twice: by the
    Run before and during every call, and here, GRACE_SECONDS late, for an arm that hangs elsewhere. Code that blocks
    the event loop cannot be cut off: what it brings so late is an answer of status "exhausted", with the stop reason
    "budget_seconds" and a warning in the log. reader: is given the answer while it is written, as far as the arm can
    say it, and notes on what the arm does; what it was given is a beginning of the outcome's answer. An arm for which
    that is not so is told of in the log. source_chars: characters of a passage's text that the outcome's sources keep.
    spans: told of every call. named: see `made_by`. has_successor: see `Run`. Raises InvalidInput for a query without
    an id; of the arm's run nothing but cancellation (asyncio.CancelledError), which passes through.
    """
    if query.id is None:
        raise InvalidInput("the query has no id", field="id", remedy="give the query the id of its decision")
    stream = AnswerStream(reader)
    run = Run(
        query=query,
        retriever=retriever,
        generator=generator,
        budget=budget,
        spans=spans,
        stream=stream,
        has_successor=has_successor,
    )
    end = await _unless_stopped(_end_of(strategy, question=query.text, run=run), stop=stop)
    end = _as_kept(end, given=stream.given, arm=strategy.name)
    trace = tuple(run.trace)
    return Outcome(
        decision_id=DecisionId(query.id),
        status=end.status,
        answer=end.answer,
        trace=trace,
        cost=replace(run.cost, seconds_total=time.monotonic() - run.started),
        steps=float(count_steps(trace)),
        stop_reason=end.stop_reason[:STOP_REASON_LENGTH],
        error=end.error,
        run_by="worker",
        made_by={
            **made_by(strategy, budget=budget, retriever=retriever, generator=generator, named=named),
            **({} if end.failure is None else {FAILURE: end.failure.facts}),
        },
        made_at=time.time(),
        reply=run.reply if end.status == "answered" else {},
        sources=tuple(
            Source(
                id=each.id,
                title=each.title[:SOURCE_CHARS],
                text=each.text[:source_chars],
                url=each.url,
                score=run.scores.get(each.id),
            )
            for each in run.shown.values()
        ),
    )


def made_by(
    strategy: Strategy,
    *,
    budget: Budget,
    retriever: Retriever,
    generator: Generator,
    named: Mapping[str, Json] = MappingProxyType({}),
) -> Mapping[str, Json]:
    """The facts that tell two versions of an arm apart, as plain JSON values: `Outcome.made_by`.

    "arm": the registered name of one of ours, else "module:Class"; "params", addresses in them without user, password
    and secrets of the query, since outcomes are stored, exported and backed up; of an arm with templates "templates", a
    digest of their texts, so that an edited file is another version; the names of "generator" and "retriever";
    "budget": the caps in force, by name. named: the generator and the retriever of the settings that the arm names,
    which stand among its params.
    """
    kind, digest = type(strategy), templates_digest(strategy)
    return {
        "arm": registered_name(kind),
        "params": without_credentials({**strategy.params, **named}),
        **({} if digest is None else {"templates": digest}),
        "generator": generator.name,
        "retriever": retriever.name,
        "budget": {cap: value for cap, value in asdict(budget).items() if value is not None},
    }


async def _end_of(strategy: Strategy, *, question: str, run: Run) -> _End:
    seconds = run.budget.seconds
    limit = asyncio.timeout(None if seconds is None else max(0.0, seconds) + GRACE_SECONDS)
    try:
        async with limit:
            answer = await strategy.answer(question, run=run)
            if not (
                isinstance(answer, Answer) and isinstance(answer.text, str) and isinstance(answer.stop_reason, str)
            ):
                raise ArmFailed(
                    f"the arm {strategy.name} returned {answer!r:.200}",
                    remedy="return a ragbandit.strategies.run.Answer of two strings",
                )
        if run.deadline is not None and (late := time.monotonic() - run.deadline) > GRACE_SECONDS:
            # It was not cut off above: nobody could while the event loop stood still, or it would not be cut off.
            facts = {"action": "arm_late", "arm": strategy.name, "late_s": round(late, 2)}
            logger.warning(
                "an arm returned after its time limit; it must await, and not block the event loop", extra=facts
            )
            return _End(status="exhausted", answer=answer.text, stop_reason="budget_seconds")
        return _End(status="answered", answer=answer.text, stop_reason=answer.stop_reason)
    except OutOfBudget as error:
        return _exhausted(run, cap=error.cap)
    except RagBanditError as error:
        return _failed(error)
    except (Exception, SystemExit) as error:
        # A TimeoutError of the arm's own, from a socket say, is a failure like any other.
        if isinstance(error, TimeoutError) and limit.expired():
            return _exhausted(run, cap="seconds")
        log_exception(error, of=f"the arm {strategy.name}", action="arm_failed", arm=strategy.name)
        return _failed(error)


async def _unless_stopped(ending: Coroutine[Any, Any, _End], *, stop: "Future[None] | None") -> _End:
    """The end of the arm, which is cut off where it is once `stop` is done, or whoever waits here is cancelled."""
    if stop is None:
        return await ending
    work = asyncio.ensure_future(ending)
    either: list[asyncio.Future[Any]] = [work, asyncio.wrap_future(stop)]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        work.cancel()
        await asyncio.wait([work])
    if work.cancelled():
        return _End(status="failed", answer=None, stop_reason=CANCELLED, error=CANCELLED_ERROR)
    return work.result()


def _as_kept(end: _End, *, given: str, arm: str) -> _End:
    """The end as it is stored: too long an answer is a failure.

    given: to a reader; where time ran out in mid-answer, that is the answer.
    """
    if end.status == "exhausted" and not (end.answer or "").startswith(given):
        end = replace(end, answer=given)
    answer = end.answer or ""
    if end.status == "answered" and not answer.startswith(given):
        facts = {"action": "answer_changed", "arm": arm, "given": len(given)}
        logger.error(
            "an arm gave out text that its answer does not begin with; see `final` of Run.complete", extra=facts
        )
    if len(answer) <= MAX_TEXT:
        return end
    message = f"the answer of the arm {arm} has {len(answer)} characters"
    return _failed(ArmFailed(message, remedy=f"answer with at most {MAX_TEXT}"))


def _exhausted(run: Run, *, cap: str) -> _End:
    return _End(status="exhausted", answer=run.draft, stop_reason=f"budget_{cap}")


def _failed(error: BaseException) -> _End:
    reason = "request_refused" if isinstance(error, RequestRefused) else "error"
    reason = "question_too_long" if isinstance(error, QuestionTooLong) else reason
    text = error_text(error)
    text = text if len(text) <= MAX_ERROR else f"{text[: MAX_ERROR - 3]}..."
    failure = error.failure if isinstance(error, ServerFailed) else None
    return _End(status="failed", answer=None, stop_reason=reason, error=text, failure=failure)
