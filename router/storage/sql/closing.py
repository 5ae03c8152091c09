"""Closing rule: when a waiting decision is learned or closed, as a condition on rows and as a test of one decision.

A decision is learnable when it has feedback that can be used. A label, a rating and an event need the outcome, for the
answer and for its cost. A raw reward has its cost inside, so it needs none where the caller's own stack ran the arm;
where our workers run it, the outcome is awaited in any case. An event without a value is no feedback here.

- wait_s = 0: the first usable feedback closes the decision.
- wait_s > 0: feedback collects until made_at + wait_s; what comes later is not used. Then the decision is closed if it
  has an outcome or a raw reward, or if neither feedback nor a worker's outcome is to be expected.
- Whatever it has, a decision is closed at made_at + wait_s + expire_s.

The learner asks SQL for the rows (`Ledger.ready`) and tests each of them once more (`learning.examples.join`). Both
forms stand here; tests/unit/router/storage/test_closing.py holds them together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, RowMapping, and_, exists, false, or_

from ragbandit.router.storage.sql.tables import feedback, waiting
from ragbandit.shared.types import Feedback, JoinedDecision

_CALLER: Final = waiting.c.run_by == "caller"

#: rows whose arm our workers have not answered yet
UNANSWERED: Final = and_(waiting.c.run_by == "worker", ~waiting.c.has_outcome)

#: rows that have feedback and cannot be learned before the caller reports the outcome
MISSING_OUTCOME: Final = and_(_CALLER, waiting.c.has_feedback, ~waiting.c.has_outcome, ~waiting.c.has_reward)


def is_missing_outcome(row: RowMapping | Mapping[str, Any]) -> bool:
    """MISSING_OUTCOME of one row of `waiting`."""
    return bool(row["run_by"] == "caller" and row["has_feedback"] and not (row["has_outcome"] or row["has_reward"]))


def is_unanswered(row: RowMapping | Mapping[str, Any]) -> bool:
    """UNANSWERED of one row of `waiting`."""
    return bool(row["run_by"] == "worker" and not row["has_outcome"])


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosingRule:
    """The rule with its two times, both in seconds (>= 0): `learning.wait_s` and `learning.expire_s`."""

    wait_s: float
    expire_s: float

    # ------------------------------------------------------------------------------ as conditions on rows of `waiting`

    def complete_rows(self, *, now: float) -> ColumnElement[bool]:
        """Rows that may be closed before they expire."""
        silent = false() if self.wait_s == 0 else and_(_CALLER, ~waiting.c.has_feedback)
        fed = waiting.c.has_feedback if self.wait_s == 0 else waiting.c.decided_at <= now - self.wait_s
        return and_(fed, or_(waiting.c.has_outcome, self._rewarded(), silent))

    def complete_ranges(self, *, now: float) -> list[ColumnElement[bool]]:
        """`complete_rows` in parts, each a range of an index: waiting_ready, or waiting_age where wait_s > 0."""
        if self.wait_s > 0:
            return [self.complete_rows(now=now)]
        flags = [
            (waiting.c.has_outcome, waiting.c.has_reward),
            (waiting.c.has_outcome, ~waiting.c.has_reward),
            (~waiting.c.has_outcome, waiting.c.has_reward),
        ]
        return [and_(*both, self.complete_rows(now=now)) for both in flags]

    def expired_rows(self, *, now: float) -> ColumnElement[bool]:
        """Rows that are closed whatever they have."""
        return waiting.c.decided_at <= now - self.wait_s - self.expire_s

    def learnable_ranges(self, *, now: float) -> list[ColumnElement[bool]]:
        """Rows that have feedback to learn from and are complete, in parts: the learner is late for the oldest."""
        return [and_(waiting.c.has_feedback, part) for part in self.complete_ranges(now=now)]

    def _rewarded(self) -> ColumnElement[bool]:
        """Rows that need no outcome: the caller ran the arm, and a raw reward came in time."""
        flagged = and_(_CALLER, waiting.c.has_reward)
        if self.wait_s == 0:
            return flagged
        in_time = exists().where(
            feedback.c.decision_id == waiting.c.decision_id,
            feedback.c.kind == "reward",
            feedback.c.received_at <= waiting.c.decided_at + self.wait_s,
        )
        return and_(flagged, in_time)

    # ------------------------------------------------------------------------------ as tests of one decision

    def usable(self, joined: JoinedDecision) -> tuple[Feedback, ...]:
        """The feedback that can be learned from now, in the order received; with wait_s = 0 the first one alone."""
        alone = joined.decision.run_by == "caller"
        usable = tuple(
            item
            for item in joined.feedback
            if item.value is not None and (joined.outcome is not None or (alone and item.kind == "reward"))
        )
        if self.wait_s == 0:
            return usable[:1]
        return tuple(item for item in usable if item.received_at <= joined.decision.made_at + self.wait_s)

    def is_expired(self, joined: JoinedDecision, *, now: float) -> bool:
        """True if it is closed whatever it has."""
        return joined.decision.made_at <= now - self.wait_s - self.expire_s

    def is_closable(self, joined: JoinedDecision, *, now: float) -> bool:
        """True if it is learned or closed now, instead of waiting on."""
        if self.is_expired(joined, now=now):
            return True
        if self.wait_s == 0:
            return bool(self.usable(joined))
        if joined.decision.made_at > now - self.wait_s:
            return False
        fed = any(item.value is not None for item in joined.feedback)
        silent = joined.decision.run_by == "caller" and not fed
        return joined.outcome is not None or silent or bool(self.usable(joined))
