"""Scores of answers by the judge or a check. A failure is never a score: the answer is tried again a few times."""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from typing import Final, NamedTuple

from ragbandit.router.operation.budgets import stopped_until
from ragbandit.router.storage.access.reservations import no_reservation, settle
from ragbandit.router.storage.access.shared_secrets import draw_number
from ragbandit.router.storage.access.spending import spenders_of
from ragbandit.router.storage.decisions.store import DecisionRecord
from ragbandit.router.storage.jobs.answers import ClaimedDecision
from ragbandit.router.storage.jobs.claims import ScoreKind
from ragbandit.router.storage.judgements import Refused, ScoreCost, ScoreJob
from ragbandit.router.telemetry.routines import retry_through_outage
from ragbandit.shared.errors import StoreError
from ragbandit.shared.types import DecisionId, Feedback, FeedbackId, Json, Outcome, own_feedback_id
from ragbandit.strategies.base import Account
from ragbandit.workers.judge.judge import AddressesJudge, JudgeFailed, NoVerdict, Verdict
from ragbandit.workers.judge.reward_check import CheckFailed
from ragbandit.workers.running.context import Context
from ragbandit.workers.scoring.scorers import Checking, Judging, QueueScorer

log = logging.getLogger("ragbandit.judge")

#: time for which a write is tried again while the database fails, seconds
KEEP_S: Final = 60.0
#: longest wait of an answer whose dollar budget is spent, seconds; the budget may be raised meanwhile
LOOK_AGAIN_S: Final = 3600.0


class AnswerScore(NamedTuple):
    #: the score, from 0 to 1
    value: float
    #: facts that are stored with the feedback
    facts: Mapping[str, Json]
    spent: ScoreCost = ScoreCost()


def next_score(context: Context, scorer: QueueScorer | None) -> Callable[[], None] | None:
    """Claim the answer due longest. Returns a function that scores or refuses it; None if none is due or in a pause."""
    if scorer is None or scorer.paused:
        return None
    job = scorer.queue.claim(now=context.deadlines.now(), expiring=context.deadlines.for_deletion())
    if isinstance(job, ScoreJob):
        run = scorer.active.begin(ClaimedDecision(decision_id=job.decision_id, tries=job.attempt))
        return None if run is None else partial(score, context, scorer, job=job, run=run)
    return None if job is None else partial(_log_refusal, scorer, job)


def check_answers(context: Context, checking: Checking) -> None:
    """Check all due answers. Raises StoreError; an answer without a stored result is due again when its claim ends."""
    while not context.ending.is_set():
        work = next_score(context, checking)
        if work is None:
            return
        work()


def score(context: Context, scorer: QueueScorer, *, job: ScoreJob, run: ClaimedDecision) -> None:
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
        if outcome is None or not record.decision.query.text.strip():  # the decision's texts were erased
            scorer.queue.withhold(job)
            return
        if isinstance(scorer, Judging) and not context.rules.may_read(record.decision.query, model="judge"):
            scorer.queue.withhold(job)
            return
        scored: AnswerScore | None
        if outcome.answer is None or not outcome.answer.strip():
            scored = AnswerScore(0.0, {"no_answer": outcome.stop_reason})
        elif isinstance(scorer, Judging):
            scored = _judge(context, scorer, job, record=record, outcome=outcome)
        else:
            assert isinstance(scorer, Checking)
            scored = _check(scorer, job, record=record, outcome=outcome, now=context.deadlines.now())
        if scored is not None:
            _store_score(context, scorer, job, record=record, scored=scored)


def _store_score(
    context: Context, scorer: QueueScorer, job: ScoreJob, *, record: DecisionRecord, scored: AnswerScore
) -> None:
    """Store a score, trying for KEEP_S seconds, because it may have cost money."""
    shared = dict[str, Json]()
    if isinstance(scorer, Judging):
        draw = draw_number("judge", job.decision_id, secret=scorer.queue.store.secret)
        shared = {"draw": draw, "share": job.share}
    feedback = Feedback(
        id=feedback_id(scorer.queue.kind, job.decision_id, rule=scorer.rule),
        decision_id=job.decision_id,
        kind="rating",
        value=scored.value,
        source=scorer.source,
        received_at=time.time(),
        rater=scorer.rater,
        facts={**scorer.facts, **shared, **scored.facts},
    )
    arm = record.decision.arm if isinstance(scorer, Judging) else None
    keep = partial(scorer.queue.store_score, job, feedback=feedback, cost=scored.spent, arm=arm)
    if retry_through_outage(keep, seconds=KEEP_S, ending=context.ending) is not None:
        log.info("scored", extra={"action": scorer.queue.kind, "decision": job.decision_id, "score": feedback.value})
        context.notifier.notify_learner()


def _judge(
    context: Context, judging: Judging, job: ScoreJob, *, record: DecisionRecord, outcome: Outcome
) -> AnswerScore | None:
    """The judge's score; its cost is booked. None if this attempt gives none; the queue then stores the next step."""
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
    bill, began, scored = Account(), time.monotonic(), None
    work = judging.verdict(query.text, outcome=outcome, attempt=job.attempt, bill=bill)
    try:
        verdict, origin = context.loop.run(work, timeout_s=judging.longest_s)
        judging.note_success()
        scored = _answer_score(verdict, origin=origin, cost=_score_cost(bill), seconds=time.monotonic() - began)
    except AddressesJudge:
        _log(judging, job, "a text of the answer or its passages gives the judge instructions; it is not judged")
        queue.withhold(job, suspicious=record.decision.arm)
    except (JudgeFailed, TimeoutError) as error:
        judging.note_failure(error)
        queue.put_back(job, due_at=context.deadlines.now(), cost=_score_cost(bill), pause_s=retry_s)
    except NoVerdict as error:
        judging.note_success()
        result = queue.fail(job, cost=_score_cost(bill), now=context.deadlines.now(), pause_s=retry_s)
        given_up = "; it is given up" if result == "given_up" else "; it is tried again"
        _log(judging, job, f"no score{given_up}", reason=str(error), attempt=job.attempt)
    except CancelledError:
        queue.put_back(job, due_at=context.deadlines.now(), cost=_score_cost(bill))
        if not context.ending.is_set():
            raise
    call = no_reservation(spenders_of(query.tenant, key=query.api_key), at=database.clock.now())
    retry_through_outage(
        partial(settle, database, call, dollars=_score_cost(bill).dollars), seconds=KEEP_S, ending=context.ending
    )
    return scored


def _score_cost(bill: Account) -> ScoreCost:
    cost = bill.cost
    return ScoreCost(prompt_tokens=cost.prompt_tokens, completion_tokens=cost.completion_tokens, dollars=cost.dollars)


def _answer_score(verdict: Verdict, *, origin: str | None, cost: ScoreCost, seconds: float) -> AnswerScore:
    facts: dict[str, Json] = {
        "scores": {name: score.score for name, score in verdict.scores.items()},
        "reasons": {name: score.reason for name, score in verdict.scores.items()},
        "passages": verdict.passages,
        "passages_from": origin,
        **asdict(cost),
        "seconds": round(seconds, 3),
    }
    return AnswerScore(verdict.value, facts, cost)


def _check(
    checking: Checking, job: ScoreJob, *, record: DecisionRecord, outcome: Outcome, now: float
) -> AnswerScore | None:
    """The check's score; None if the check fails or returns no score; the queue stores either case."""
    question, began = record.decision.query.text, time.monotonic()
    try:
        value = checking.process.score(answer=outcome.answer, question=question, sources=outcome.sources)
    except CheckFailed as error:
        _log(checking, job, "the check gives no score; an answer is tried three times", reason=error.message)
        checking.queue.fail(job, cost=ScoreCost(), now=now, pause_s=60.0)
        return None
    if value is None:
        checking.queue.withhold(job)
        return None
    return AnswerScore(value, {"seconds": round(time.monotonic() - began, 3)})


def feedback_id(kind: ScoreKind, decision_id: DecisionId, *, rule: str) -> FeedbackId:
    """Id of a score: one per decision and `rule`, which is the rubric's hash or the path of the check."""
    return own_feedback_id(kind, digest=sha256(f"{rule}:{decision_id}".encode("utf-8", "replace")).hexdigest()[:32])


def _log_refusal(scorer: QueueScorer, refused: Refused) -> None:
    extra = {"action": scorer.queue.kind, "decision": refused.decision_id}
    if refused.why == "budget":
        log.info("the day's budget for judging is spent; waiting answers are judged tomorrow (UTC)", extra=extra)
    elif refused.why == "given_up":
        log.error("workers died over an answer that they scored; it is not tried again", extra=extra)
    else:
        log.warning("an answer waited too long for a score, and gets none", extra=extra)


def _log(scorer: QueueScorer, job: ScoreJob, message: str, **details: object) -> None:
    log.warning(message, extra={"action": scorer.queue.kind, "decision": job.decision_id, **details})
