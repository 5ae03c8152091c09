import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ragbandit.shared.errors import ArmFailed, InvalidInput, RagBanditError
from ragbandit.shared.model_servers.failures import FAILURE, Failure, ServerFailed
from ragbandit.shared.texts.redaction import without_credentials
from ragbandit.shared.types import (
    CANCELLED,
    CUT,
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
from ragbandit.strategies.answer_stream import AnswerReader, AnswerStream
from ragbandit.strategies.base import Account, Generator, Passage, Retriever
from ragbandit.strategies.failures import (
    OutOfBudget,
    QuestionTooLong,
    RequestRefused,
    UnreadableReply,
    error_text,
    log_exception,
    logger,
)
from ragbandit.strategies.prompting.prompts import templates_digest
from ragbandit.strategies.registry import registered_name
from ragbandit.strategies.run import NO_SPANS, Answer, Run, Spans, Strategy

#: seconds from the deadline to the cancellation of an arm that still runs. Meanwhile generators report their tokens
GRACE_SECONDS = 0.25
SOURCE_CHARS = 2000  #: maximum number of characters that are stored of a source's title, and by default of its text
MAX_STOP_REASON = 64
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
    account: Account | None = None,
) -> Outcome:
    """Run the arm on the query. A failing arm gives an outcome, not an exception. The outcome has a status:

    answered: the arm returned an answer.
    exhausted: a cap of the budget ended the arm; stop reason "budget_<cap>". The answer is a late one, a draft or None.
    failed: the arm raised an error, or its answer has more than MAX_TEXT characters. The stop reason is "error",
    "question_too_long" if no prompt has room for the question, "request_refused" if the model's server refuses a chat,
    "unreadable" if its reply exceeds a cap, or CANCELLED if the caller cancelled the arm by `stop`.

    stop: complete this future, from any thread, to cancel the arm.
    reader: receives notes, and the answer while it is written.
    source_chars: maximum number of characters that are stored of a source's text.
    named: see `made_by`. budget, spans, has_successor, account: see `Run`.
    Raises InvalidInput for a query without an id, and asyncio.CancelledError.
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
        account=account or Account(),
    )
    end = await _run_until_stopped(_run_to_end(strategy, question=query.text, run=run), stop=stop)
    end = _checked_end(end, sent=str(stream.sent), arm=strategy.name)
    trace = tuple(run.trace)
    return Outcome(
        decision_id=DecisionId(query.id),
        status=end.status,
        answer=end.answer,
        trace=trace,
        cost=replace(run.cost, seconds_total=time.monotonic() - run.started),
        steps=float(count_steps(trace)),
        stop_reason=end.stop_reason[:MAX_STOP_REASON],
        error=end.error,
        run_by="worker",
        made_by={
            **made_by(strategy, budget=budget, retriever=retriever, generator=generator, named=named),
            **({} if end.failure is None else {FAILURE: end.failure.facts}),
        },
        made_at=time.time(),
        reply=run.reply if end.status == "answered" else {},
        sources=tuple(
            _source(passage, score=run.scores.get(key), chars=source_chars) for key, passage in run.shown.items()
        ),
    )


def _source(passage: Passage, *, score: float | None, chars: int) -> Source:
    title, text = passage.title[:SOURCE_CHARS], passage.text[:chars]
    return Source(id=passage.id, title=title, text=text, url=passage.url, score=score)


def made_by(
    strategy: Strategy,
    *,
    budget: Budget,
    retriever: Retriever,
    generator: Generator,
    named: Mapping[str, Json] = MappingProxyType({}),
) -> Mapping[str, Json]:
    """`Outcome.made_by`: JSON values that differ between two versions of an arm.

    "params" has no secrets, because outcomes are stored and exported. "templates" is a digest of the templates' texts.
    named: the arm's generator and retriever in the settings; they are added to "params".
    """
    kind, digest, params = type(strategy), templates_digest(strategy), {**strategy.params, **named}
    return {
        "arm": registered_name(kind),
        "params": without_credentials(params) if "://" in repr(params) else params,
        **({} if digest is None else {"templates": digest}),
        "generator": generator.name,
        "retriever": retriever.name,
        "budget": {cap: value for cap in Budget.__slots__ if (value := getattr(budget, cap)) is not None},
    }


async def _run_to_end(strategy: Strategy, *, question: str, run: Run) -> _End:
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
        late_s = 0.0 if run.deadline is None else time.monotonic() - run.deadline
        if late_s > GRACE_SECONDS:
            # The arm blocked the event loop, or caught its cancellation.
            extra = {"action": "arm_late", "arm": strategy.name, "late_s": round(late_s, 2)}
            logger.warning("an arm returned after its time limit; it must not block the event loop", extra=extra)
            return _End(status="exhausted", answer=answer.text, stop_reason="budget_seconds")
        text, cut = answer.text.rstrip(), run.cut_text.rstrip()
        reason = CUT if text and cut.endswith(text) else answer.stop_reason
        return _End(status="answered", answer=answer.text, stop_reason=reason)
    except OutOfBudget as error:
        return _exhausted(run, cap=error.cap)
    except RagBanditError as error:
        return _failed(error)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # the caller, or the end of the process, cancels the run
        message = f"the arm {strategy.name} raised CancelledError, and nobody cancelled its run"
        return _failed(ArmFailed(message, remedy="catch the CancelledError of a task that the arm cancels"))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # a signal interrupts the main thread; in another thread, only an arm raises this error
        # A TimeoutError before the end of the budget's time, for example of a socket, is a failure of the arm.
        if isinstance(error, TimeoutError) and limit.expired():
            return _exhausted(run, cap="seconds")
        log_exception(error, code=f"the arm {strategy.name}", action="arm_failed", arm=strategy.name)
        return _failed(error)


async def _run_until_stopped(ending: Coroutine[Any, Any, _End], *, stop: "Future[None] | None") -> _End:
    if stop is None:
        return await ending
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    is_running, is_stopped = True, False

    def cancel() -> None:
        nonlocal is_stopped
        if is_running:
            is_stopped = task.cancel()

    stop.add_done_callback(lambda _: loop.call_soon_threadsafe(cancel))
    try:
        return await ending
    except asyncio.CancelledError:
        if task.cancelling() == is_stopped:
            return _End(status="failed", answer=None, stop_reason=CANCELLED, error=CANCELLED_ERROR)
        raise  # the end of the process cancels the run
    finally:
        is_running = False
        if is_stopped:
            task.uncancel()


def _checked_end(end: _End, *, sent: str, arm: str) -> _End:
    """Fail an answer that is too long. If the budget ran out, the answer is at least `sent`, the streamed text."""
    if end.status == "exhausted" and not (end.answer or "").startswith(sent):
        end = replace(end, answer=sent)
    answer = end.answer or ""
    if end.status == "answered" and not answer.startswith(sent):
        extra = {"action": "answer_changed", "arm": arm, "given": len(sent)}
        logger.error("an arm's answer does not begin with its streamed text; see `final` of Run.complete", extra=extra)
    if len(answer) <= MAX_TEXT:
        return end
    message = f"the answer of the arm {arm} has {len(answer)} characters"
    return _failed(ArmFailed(message, remedy=f"answer with at most {MAX_TEXT}"))


def _exhausted(run: Run, *, cap: str) -> _End:
    return _End(status="exhausted", answer=run.draft, stop_reason=f"budget_{cap}")


def _failed(error: BaseException) -> _End:
    reason = "request_refused" if isinstance(error, RequestRefused) else "error"
    reason = "question_too_long" if isinstance(error, QuestionTooLong) else reason
    reason = "unreadable" if isinstance(error, UnreadableReply) else reason
    text = error_text(error)
    text = text if len(text) <= MAX_ERROR else f"{text[: MAX_ERROR - 3]}..."
    failure = error.failure if isinstance(error, ServerFailed) else None
    return _End(status="failed", answer=None, stop_reason=reason, error=text, failure=failure)
