"""The rule that decides when a decision may be closed, as conditions on `waiting` and for decisions in memory."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, and_, exists, func, or_

from ragbandit.router.storage.rows.waiting import OPEN_TURNS, TURN_OF
from ragbandit.router.storage.sql.counters import IS_CALLERS
from ragbandit.router.storage.sql.tables import feedback, waiting
from ragbandit.shared.types import Feedback, JoinedDecision

#: condition on `waiting`: workers still have to answer a later turn, whose cost is missing
_HAS_OPEN_TURN: Final = exists().select_from(OPEN_TURNS).where(waiting.c.decision_id == TURN_OF)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosingRule:
    """When decisions may be closed: the settings `learning.wait_s` and `learning.expire_s`, both in seconds (>= 0).

    A decision is learned with the cost of all its turns. So unless it expires, it is not learned before its task has
    ended, nor while workers have still to answer one of its turns. Turns that a caller runs have `wait_s` from the end
    of the task, since their outcomes may never come.
    """

    wait_s: float
    expire_s: float

    def closable_ranges(self, *, now: float) -> list[ColumnElement[bool]]:
        """Conditions on `waiting` for rows that may be closed before they expire; each is a range of an index.

        A decision that its caller runs needs no outcome if a raw reward came in time, or if it has no feedback.
        """
        fed, ended = waiting.c.has_feedback, waiting.c.has_outcome
        rewarded, until = waiting.c.has_reward, waiting.c.open_until
        is_over = or_(until.is_(None), until <= now - self.wait_s)  # the task has ended, or its unit is one turn
        if self.wait_s == 0:
            ready = [and_(fed, ended, rewarded), and_(fed, ended, ~rewarded), and_(fed, ~ended, rewarded, IS_CALLERS)]
            return [and_(condition, is_over, ~_HAS_OPEN_TURN) for condition in ready]
        in_time = exists().where(
            feedback.c.decision_id == waiting.c.decision_id,
            feedback.c.kind == "reward",
            feedback.c.received_at <= func.coalesce(waiting.c.open_until, waiting.c.decided_at) + self.wait_s,
        )
        needs_no_outcome = and_(IS_CALLERS, or_(~fed, and_(rewarded, in_time)))
        complete = waiting.c.decided_at <= now - self.wait_s, or_(ended, needs_no_outcome), is_over
        return [and_(*complete, ~_HAS_OPEN_TURN)]

    def expired_rows(self, *, now: float) -> ColumnElement[bool]:
        """Condition on `waiting` for rows that are closed even if their outcome or feedback is missing."""
        return waiting.c.decided_at <= now - self.wait_s - self.expire_s

    def usable_feedback(self, joined: JoinedDecision) -> tuple[Feedback, ...]:
        """The feedback that can be learned now, in the order received. With wait_s = 0, only the first feedback counts
        for a decision of one turn, and all feedback for a task.
        """
        usable = tuple(item for item in joined.feedback if item.value is not None)
        if joined.outcome is None:
            is_by_caller = joined.decision.run_by == "caller"
            usable = tuple(item for item in usable if is_by_caller and item.kind == "reward")
        if self.wait_s == 0:
            return usable[:1] if joined.open_until is None else usable
        begin = joined.decision.made_at if joined.open_until is None else joined.open_until
        return tuple(item for item in usable if item.received_at <= begin + self.wait_s)

    def is_expired(self, joined: JoinedDecision, *, now: float) -> bool:
        """Whether the decision is closed even if its outcome or feedback is missing."""
        return joined.decision.made_at <= now - self.wait_s - self.expire_s

    def is_closable(self, joined: JoinedDecision, *, now: float) -> bool:
        """Whether the decision may be learned or closed now."""
        if self.is_expired(joined, now=now):
            return True
        if joined.has_open_turn or (joined.open_until is not None and joined.open_until > now - self.wait_s):
            return False
        if self.wait_s == 0:
            return bool(self.usable_feedback(joined))
        if joined.decision.made_at > now - self.wait_s:
            return False
        fed = any(item.value is not None for item in joined.feedback)
        silent = joined.decision.run_by == "caller" and not fed
        return joined.outcome is not None or silent or bool(self.usable_feedback(joined))
