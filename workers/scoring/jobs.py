"""Scores of answers by the judge or a check. A failure is never a score: the answer is tried again a few times."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from hashlib import sha256
from typing import Final

from ragbandit.router.api.security.budgets import stopped_until
from ragbandit.router.storage.access.shared_secrets import drawn_for
from ragbandit.router.storage.access.spending import book, spenders_of
from ragbandit.router.storage.decisions.store import DecisionRecord
from ragbandit.router.storage.judgements import Refused, ScoreJob, Spent
from ragbandit.router.telemetry.routines import insist
from ragbandit.shared.errors import StoreError
from ragbandit.shared.types import DecisionId, Feedback, FeedbackId, Json, Outcome
from ragbandit.strategies.base import Account
from ragbandit.workers.judge.judge import NoVerdict, ServerFailed, Suspicious, Verdict, spent_of
from ragbandit.workers.judge.reward_check import CheckFailed
from ragbandit.workers.running.context import Context
from ragbandit.workers.running.runs import ActiveRun
from ragbandit.workers.scoring.scorers import Checking, Judging, Scorer

log = logging.getLogger("ragbandit.judge")

#: time for which a write is tried again while the database fails, seconds
KEEP_S: Final = 60.0
#: longest wait of an answer whose dollar budget is spent, seconds; the budget may be raised meanwhile
LOOK_AGAIN_S: Final = 3600.0


def next_score(context: Context, scorer: Scorer | None) -> Callable[[], None] | None:
    """Claim the answer that has been due longest. Returns the function that scores it; None if no answer is due."""
    if scorer is None or scorer.paused:
        return None
    job = scorer.queue.claim(now=context.deadlines.now(), expiring=context.deadlines.for_deletion())
    if isinstance(job, ScoreJob):
        run = scorer.active.begin(ActiveRun(decision_id=job.decision_id, tries=job.attempt))
        return None if run is None else partial(score, context, scorer, job=job, run=run)
    return None if job is None else partial(_log_refusal, scorer, job)


def check_answers(context: Context, checking: Checking) -> None:
    """Check all due answers. Raises StoreError; an answer without a stored result is due again when its claim ends."""
    while not context.ending.is_set():
        work = next_score(context, checking)
        if work is None:
            return
        work()


def score(context: Context, scorer: Scorer, *, job: ScoreJob, run: ActiveRun) -> None:
    """Score a decision that this process has claimed. Raises StoreError; the decision is then tried again."""
    with scorer.active.ending(run):
        try:
            record = context.store.record(job.decision_id)
        except StoreError as error:
            if not isinstance(error.__cause__, ValueError | TypeError | KeyError):
                raise  # the database failed; the row itself may be fine
            _log(scorer, job, "the row of a decision cannot be read; it gets no score", reason=str(error))
            scorer.queue.withhold(job)
            return
        outcome = record.outcome
        if outcome is None or not record.decision.query.text.strip():  # the texts were erased
            scorer.queue.withhold(job)
            return
        if isinstance(scorer, Judging) and not context.rules.lets_read(record.decision.query, model="judge"):
            scorer.queue.withhold(job)
            return
        verdict: Verdict | None
        if outcome.answer is None or not outcome.answer.strip():
            verdict = Verdict(value=0.0, facts={"no_answer": outcome.stop_reason}, spent=Spent())
        elif isinstance(scorer, Judging):
            verdict = _judged(context, scorer, job, record=record, outcome=outcome)
        else:
            assert isinstance(scorer, Checking)
            verdict = _checked(scorer, job, record=record, outcome=outcome, now=context.deadlines.now())
        if verdict is not None:
            _keep(context, scorer, job, record=record, verdict=verdict)


def _keep(context: Context, scorer: Scorer, job: ScoreJob, *, record: DecisionRecord, verdict: Verdict) -> None:
    """Store a score, trying for KEEP_S seconds, because it may have cost money."""
    shared = dict[str, Json]()
    if isinstance(scorer, Judging):
        draw = drawn_for("judge", job.decision_id, secret=scorer.queue.store.secret)
        shared = {"draw": draw, "share": job.share}
    feedback = Feedback(
        id=feedback_id(scorer.queue.kind, job.decision_id, rule=scorer.rule),
        decision_id=job.decision_id,
        kind="rating",
        value=verdict.value,
        source=scorer.source,
        received_at=time.time(),
        rater=scorer.rater,
        facts={**scorer.facts, **shared, **verdict.facts},
    )
    arm = record.decision.arm if isinstance(scorer, Judging) else None
    keep = partial(scorer.queue.keep, job, feedback=feedback, spent=verdict.spent, arm=arm)
    if insist(keep, seconds=KEEP_S, ending=context.ending) is not None:
        log.info("scored", extra={"action": scorer.queue.kind, "decision": job.decision_id, "score": feedback.value})
        context.notifier.notify_learner()


def _judged(
    context: Context, judging: Judging, job: ScoreJob, *, record: DecisionRecord, outcome: Outcome
) -> Verdict | None:
    """The judge's verdict, with its cost booked. None if this attempt fails; the failure is stored."""
    query, queue = record.decision.query, judging.queue
    database = context.store.database
    now = context.deadlines.now()
    stopped = stopped_until(query, tenants=context.settings.tenants, database=database, now=now)
    if stopped is not None:
        extra = {"action": "judge", "decision": job.decision_id}
        log.info("a dollar budget is spent; the answer is judged later", extra=extra)
        queue.put_back(job, due_at=min(stopped, now + LOOK_AGAIN_S))
        return None
    assert context.loop is not None
    retry_s = judging.judge.settings.retry_s
    lost = Account()
    work = judging.judge.verdict(record.decision, outcome=outcome, attempt=job.attempt, lost=lost)
    verdict, spent = None, Spent()
    try:
        verdict = context.loop.run(work, timeout_s=judging.longest_s)
        judging.worked()
        spent = verdict.spent
    except Suspicious:
        _log(judging, job, "a text of the answer or its passages addresses the judge; it is not judged")
        queue.withhold(job, suspicious=record.decision.arm)
    except (ServerFailed, TimeoutError) as error:
        judging.failed(error)
        spent = error.spent if isinstance(error, ServerFailed) else spent_of(lost.cost)
        queue.put_back(job, due_at=context.deadlines.now(), spent=spent, pause_s=retry_s)
    except NoVerdict as error:
        judging.worked()
        spent = error.spent
        result = queue.fail(job, spent=spent, now=context.deadlines.now(), pause_s=retry_s)
        given_up = "; it is given up" if result == "given_up" else "; it is tried again"
        _log(judging, job, f"no score{given_up}", reason=str(error), attempt=job.attempt)
    except CancelledError:
        spent = spent_of(lost.cost)
        queue.put_back(job, due_at=context.deadlines.now(), spent=spent)
        if not context.ending.is_set():
            raise
    spenders = spenders_of(query.tenant, key=query.api_key)
    booked = partial(book, database, spenders, dollars=spent.dollars, now=database.clock.now())
    insist(booked, seconds=KEEP_S, ending=context.ending)
    return verdict


def _checked(
    checking: Checking, job: ScoreJob, *, record: DecisionRecord, outcome: Outcome, now: float
) -> Verdict | None:
    """The check's score as a verdict; None if the check fails or returns no score, which is stored."""
    question, began = record.decision.query.text, time.monotonic()
    try:
        value = checking.process.score(answer=outcome.answer, question=question, sources=outcome.sources)
    except CheckFailed as error:
        _log(checking, job, "the check gives no score; an answer is tried three times", reason=error.message)
        checking.queue.fail(job, spent=Spent(), now=now, pause_s=60.0)
        return None
    if value is None:
        checking.queue.withhold(job)
        return None
    return Verdict(value=value, facts={"seconds": round(time.monotonic() - began, 3)}, spent=Spent())


def feedback_id(kind: str, decision_id: DecisionId, *, rule: str) -> FeedbackId:
    """Id of a score: one per decision and `rule`, which is the rubric's hash or the path of the check."""
    return FeedbackId(f"{kind}-" + sha256(f"{rule}:{decision_id}".encode("utf-8", "replace")).hexdigest()[:32])


def _log_refusal(scorer: Scorer, refused: Refused) -> None:
    extra = {"action": scorer.queue.kind, "decision": refused.decision_id}
    if refused.why == "budget":
        log.info("the day's budget for judging is spent; what waits is judged tomorrow (UTC)", extra=extra)
    elif refused.why == "given_up":
        log.error("workers died over an answer that they scored; it is not tried again", extra=extra)
    else:
        log.warning("an answer waited too long for a score, and gets none", extra=extra)


def _log(scorer: Scorer, job: ScoreJob, message: str, **details: object) -> None:
    log.warning(message, extra={"action": scorer.queue.kind, "decision": job.decision_id, **details})
