"""Scores of answers by the judge or a check: a decision, from its claim in the database to a score, or a later try.

What neither can say is never a score: a reply that cannot be read, a crash or a time that is over is tried again and
given up at last, and a model that cannot be reached is waited for, decision by decision up to `judge.expire_s`. The
database says what is due, so a job that is lost or comes twice does no harm.
"""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from ragbandit.router.api.security.budgets import stopped_until
from ragbandit.router.storage.access.spending import book, spenders_of
from ragbandit.router.storage.judgements import JudgeClaim, Spent
from ragbandit.router.storage.rows.job_rows import CHECK_ATTEMPTS, Job, claim_check, drop_jobs, due_jobs
from ragbandit.router.telemetry.tracing import carrier_of, tell_evaluation
from ragbandit.shared.errors import StoreError
from ragbandit.shared.types import DecisionId, Feedback, FeedbackId, Json, Receipt
from ragbandit.workers.check_process import CheckFailed, CheckProcess
from ragbandit.workers.context import Context, Judging
from ragbandit.workers.judge.judge import NoVerdict, ServerFailed, Suspicious
from ragbandit.workers.threads import insist

if TYPE_CHECKING:
    from ragbandit.router.storage.decisions.store import DecisionRecord


log = logging.getLogger("ragbandit.judge")

#: how long a score is kept in hand that the database does not take
KEEP_S: Final = 60.0
#: an answer whose budget is spent is looked at again after that long, seconds: the budget may have been raised
LOOK_AGAIN_S: Final = 3600.0
#: answers to judge that are looked up at once
DUE: Final = 64


class DueJudgements:
    """Finds answers that the judge may begin. The database says who judges which: two may find the same."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._due: list[DecisionId] = []
        self._seen: set[DecisionId] = set()

    def look(self, woken: bool) -> Callable[[], None] | None:  # noqa: FBT001 - as Consumer.look
        """Judging of the next one, if one is due that was not among those found before."""
        del woken
        if not self._due:
            due = due_jobs(self._context.store.database, kind="judge", now=time.time(), limit=DUE)
            self._due = [key for key in reversed(due) if key not in self._seen]
            self._seen = set(self._due)
        return partial(judge, self._context, self._due.pop()) if self._due else None


def judge(context: Context, decision_id: str) -> None:
    """Judge a decision if it is due, and keep its score. Raises StoreError: it is due again when its claim ends."""
    judging = context.judging
    if judging is None or not judging.wait(context.ending):
        return
    claim = judging.store.claim(DecisionId(decision_id), now=time.time(), for_s=judging.claim_s)
    if not isinstance(claim, JudgeClaim):
        _log_refusal(decision_id, claim)
        return
    try:
        record = context.store.record(claim.decision_id)
    except StoreError as error:
        if not isinstance(error.__cause__, ValueError | TypeError | KeyError):
            raise  # the database failed, not the row
        _log(claim, "the row of a decision cannot be read; it is not judged", reason=str(error))
        judging.store.withhold(claim, suspicious=False)
        return
    if record.outcome is None or not record.decision.query.text.strip():
        judging.store.withhold(claim, suspicious=False)
        return
    query, database = record.decision.query, context.store.database
    stopped = stopped_until(query, settings=context.settings, database=database, now=time.time())
    if stopped is not None:
        log.info(
            "a dollar budget is spent; the answer is judged later", extra={"action": "judge", "decision": decision_id}
        )
        judging.store.postpone(claim, due_at=min(stopped, time.time() + LOOK_AGAIN_S))
        return
    feedback, spent = _judged(context, judging, claim, record=record)
    spenders = spenders_of(query.tenant, key=query.api_key)
    booked = partial(book, database, spenders, dollars=spent.dollars, now=time.time())
    insist(booked, seconds=KEEP_S, ending=context.ending)
    if feedback is None:
        return
    # It was paid for, so that it is offered for a while.
    keep = partial(judging.store.keep, claim, feedback=feedback, spent=spent)
    if insist(keep, seconds=KEEP_S, ending=context.ending):
        carrier = carrier_of(record.decision.query.request)
        tell_evaluation(context.tracing, feedback, late=False, carrier=carrier)
        log.info("judged", extra={"action": "judge", "decision": claim.decision_id, "score": feedback.value})
        context.notifier.notify_learner()


def _judged(
    context: Context, judging: Judging, claim: JudgeClaim, *, record: "DecisionRecord"
) -> tuple[Feedback | None, Spent]:
    """The feedback, None where this try gives none, which is stored then; and what the try cost."""
    outcome, settings = record.outcome, judging.judge.settings
    assert outcome is not None
    assert context.loop is not None
    if outcome.answer is None or not outcome.answer.strip():
        return _feedback(judging, claim, value=0.0, facts={"no_answer": outcome.stop_reason}), Spent()
    labels = [item.value for item in record.feedback if isinstance(item.value, tuple)]
    work = judging.judge.verdict(
        record.decision, outcome=outcome, reference=labels[0] if labels else (), attempt=claim.attempt
    )
    try:
        verdict = context.loop.run(work, timeout_s=judging.claim_s)
    except Suspicious:
        _log(claim, "a text of the answer or its passages addresses the judge; it is not judged")
        judging.store.withhold(claim, suspicious=True)
    except (ServerFailed, TimeoutError) as error:
        judging.failed(error)
        spent = error.spent if isinstance(error, ServerFailed) else Spent()
        judging.store.put_back(claim, spent=spent, now=time.time(), pause_s=settings.retry_s)
        return None, spent
    except NoVerdict as error:
        judging.worked()
        result = judging.store.fail(claim, spent=error.spent, now=time.time(), pause_s=settings.retry_s)
        given_up = "; it is given up" if result == "given_up" else "; it is tried again"
        _log(claim, f"no score{given_up}", reason=str(error), attempt=claim.attempt)
        return None, error.spent
    except CancelledError:
        judging.store.put_back(claim, spent=Spent(), now=time.time(), pause_s=0)
        if not context.ending.is_set():
            raise
    else:
        judging.worked()
        return _feedback(judging, claim, value=verdict.value, facts=verdict.facts), verdict.spent
    return None, Spent()


def feedback_id(decision_id: str, *, rubric: str) -> FeedbackId:
    """The id of a score: a decision has one by each rubric, whoever judges it and however often."""
    return FeedbackId("judge-" + sha256(f"{rubric}:{decision_id}".encode("utf-8", "replace")).hexdigest()[:32])


def _feedback(judging: Judging, claim: JudgeClaim, *, value: float, facts: Mapping[str, Json]) -> Feedback:
    by = judging.judge
    return Feedback(
        id=feedback_id(claim.decision_id, rubric=by.rubric),
        decision_id=claim.decision_id,
        kind="rating",
        value=value,
        source="judge",
        received_at=time.time(),
        rater=by.rater,
        facts={"model": by.rater, "rubric": by.rubric, "share": claim.share, **facts},
    )


def _log_refusal(decision_id: str, why: str) -> None:
    facts = {"action": "judge", "decision": decision_id}
    if why == "budget":
        log.info("the day's budget for judging is spent; what waits is judged tomorrow (UTC)", extra=facts)
    elif why == "given_up":
        log.error("workers died over a decision that they judged; it is not tried again", extra=facts)
    elif why == "expired":
        log.warning("an answer waited for the judge for longer than judge.expire_s, and is not judged", extra=facts)


def _log(claim: JudgeClaim, message: str, **facts: object) -> None:
    log.warning(message, extra={"action": "judge", "decision": claim.decision_id, **facts})


check_log = logging.getLogger("ragbandit.check")

#: a claim lasts that much longer than the check may: a process may have to be started
CLAIM_MARGIN_S: Final = 90.0
#: how often answers are looked for, seconds
LOOK_S: Final = 1.0
#: longest name of a rater that a feedback has
_LONGEST_RATER: Final = 64


class AnswerChecks:
    """Checks one answer after the other."""

    def __init__(self, context: Context) -> None:
        self._context, self._settings = context, context.settings.reward
        self._process = CheckProcess(self._settings)

    def run(self) -> None:
        """Check all that is due. Raises StoreError: what was not stored is due again when its claim ends."""
        database = self._context.store.database
        while not self._context.ending.is_set():
            due = due_jobs(database, kind="check", now=time.time(), limit=DUE)
            if not due:
                return
            for key in due:
                if self._context.ending.is_set():
                    return
                claim = claim_check(database, key, now=time.time(), for_s=self._settings.check_s + CLAIM_MARGIN_S)
                if isinstance(claim, Job):
                    self._check(key, attempt=claim.attempts + 1)
                elif claim == "given_up":
                    facts = {"action": "check", "decision": key}
                    check_log.error("workers died over an answer that they checked; it is not tried again", extra=facts)

    def close(self) -> None:
        """End the check's process."""
        self._process.close()

    def _check(self, key: DecisionId, *, attempt: int) -> None:
        store, began = self._context.store, time.monotonic()
        record = store.record(key)
        facts: dict[str, Json] = {"check": self._settings.check}
        value: float | None = 0.0
        if record.outcome is None or not record.decision.query.text.strip():  # erased
            value = None
        elif record.outcome.answer is None or not record.outcome.answer.strip():
            facts["no_answer"] = record.outcome.stop_reason
        else:
            sources = [{n: getattr(s, n) for n in ("id", "title", "text", "url")} for s in record.outcome.sources]
            given = {"answer": record.outcome.answer, "question": record.decision.query.text, "sources": sources}
            try:
                value = self._process.score(**given)
            except CheckFailed as error:
                details = {"action": "check", "decision": key, "reason": str(error)}
                check_log.warning("the check gives no score; an answer is tried three times", extra=details)
                if attempt < CHECK_ATTEMPTS:
                    return
                value = None
        if value is None:
            with store.database.write() as connection:
                drop_jobs(connection, [key], kind="check")
            return
        facts["seconds"] = round(time.monotonic() - began, 3)
        feedback = self._feedback(key, value=value, facts=facts)
        # A score of a decision that was erased meanwhile has no text in it.
        (reply,) = store.add_feedback(
            [feedback], beside=lambda connection, _: drop_jobs(connection, [key], kind="check")
        )
        if isinstance(reply, Receipt) and not reply.duplicate:
            carrier = carrier_of(record.decision.query.request)
            tell_evaluation(self._context.tracing, feedback, late=reply.late, carrier=carrier)
            check_log.info("checked", extra={"action": "check", "decision": key, "score": value})
            self._context.notifier.notify_learner()

    def _feedback(self, key: DecisionId, *, value: float, facts: dict[str, Json]) -> Feedback:
        check = str(self._settings.check)
        return Feedback(
            id=FeedbackId("check-" + sha256(f"{check}:{key}".encode("utf-8", "replace")).hexdigest()[:32]),
            decision_id=key,
            kind="rating",
            value=value,
            source="code",
            received_at=time.time(),
            rater=check[-_LONGEST_RATER:],
            facts=facts,
        )
