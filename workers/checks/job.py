"""Checks of answers that wait for one: from the claim in the database to a stored score, or a later try.

What a check cannot say is never a score: a crash, a wrong value and a time that is over are tried again when the claim
has ended, and given up at last.
"""

import logging
import time
from hashlib import sha256
from typing import Final

from ragbandit.router.storage.rows.check_rows import claim_check, drop_check
from ragbandit.router.telemetry.tracing import carrier_of, tell_evaluation
from ragbandit.shared.types import DecisionId, Feedback, FeedbackId, Json, Receipt
from ragbandit.workers.checks.process import CheckFailed, CheckProcess
from ragbandit.workers.context import Context

log = logging.getLogger("ragbandit.check")

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
            key = claim_check(database, now=time.time(), for_s=self._settings.check_s + CLAIM_MARGIN_S)
            if key is None:
                return
            self._check(key)

    def close(self) -> None:
        """End the check's process."""
        self._process.close()

    def _check(self, key: DecisionId) -> None:
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
                log.warning("the check gives no score; an answer is tried three times", extra=details)
                return
        if value is None:
            with store.database.write() as connection:
                drop_check(connection, [key])
            return
        facts["seconds"] = round(time.monotonic() - began, 3)
        feedback = self._feedback(key, value=value, facts=facts)
        # A score of a decision that was erased meanwhile has no text in it.
        (reply,) = store.add_feedback([feedback], beside=lambda connection, _: drop_check(connection, [key]))
        if isinstance(reply, Receipt) and not reply.duplicate:
            carrier = carrier_of(record.decision.query.request)
            tell_evaluation(self._context.tracing, feedback, late=reply.late, carrier=carrier)
            log.info("checked", extra={"action": "check", "decision": key, "score": value})
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
