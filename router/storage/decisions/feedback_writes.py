"""What one group of feedback changes: rows, flags of decisions that wait, and counters.

Every step writes in the transaction that `DecisionStore.add_feedback` has opened. Locks are taken in one order:
rows of `waiting` by id, feedback by id, counters last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Literal

from sqlalchemy import Connection, select

from ragbandit.router.storage.decisions.tool_turns import firsts_of
from ragbandit.router.storage.rows.conversion import feedback_row
from ragbandit.router.storage.rows.outcome_rows import drop_jobs
from ragbandit.router.storage.sql.bulk_insert import Row, insert_new
from ragbandit.router.storage.sql.counters import Moves
from ragbandit.router.storage.sql.tables import decisions, feedback
from ragbandit.router.storage.sql.waiting import flag_waiting, lock_waiting, number_transaction
from ragbandit.shared.errors import Conflict, NotFound, RagBanditError
from ragbandit.shared.types import Feedback, Outcome, Receipt


def is_foreign(outcome: Outcome, run_by: Mapping[str, str]) -> bool:
    """Whether a caller reports this outcome for a decision that our workers run. run_by: of decisions, by id."""
    return outcome.run_by == "caller" and run_by[outcome.decision_id] == "worker"


def outcome_reply(
    outcome: Outcome, body_hash: str, *, known: Mapping[str, str], standing: Mapping[str, str]
) -> Literal[False] | RagBanditError:
    """The reply to an outcome that is not new: False if the same is kept already, or a worker brings another one.

    known: who runs each decision; standing: hashes of what is stored.
    """
    if outcome.decision_id not in known:
        return unknown_decision()
    if standing.get(outcome.decision_id) == body_hash:
        return False
    if is_foreign(outcome, known):
        return Conflict(
            "our workers run this decision and report its outcome",
            field="decision_id",
            remedy="wait for it (GET /v1/decisions/{id}, or POST /v1/answer again), or cancel it; report outcomes of "
            "decisions that /v1/route made",
        )
    if outcome.run_by == "worker":
        return False
    return Conflict(
        "this decision has another outcome already",
        field="decision_id",
        remedy="the first outcome stays; route the question again to run it again",
    )


def unknown_decision() -> NotFound:
    """The error for an id that no decision has."""
    return NotFound(
        "no decision has this id", field="decision_id", remedy="use the decision id that route or answer gave"
    )


@dataclass(kw_only=True, slots=True)
class _Item:
    """One feedback of the group, on its way into the store."""

    feedback: Feedback
    row: dict[str, Any]
    #: waiting row of its decision; None if the decision is closed, so the feedback is late
    waits: Row | None
    #: it was inserted by this group
    is_new: bool = False

    @property
    def can_be_learned(self) -> bool:
        return self.feedback.value is not None

    @property
    def needs_outcome(self) -> bool:
        """Whether it cannot be learned before the caller reports the outcome of the decision."""
        if self.waits is None or not self.can_be_learned or self.feedback.kind == "reward":
            return False
        return bool(self.waits["run_by"] == "caller" and not self.waits["has_outcome"])

    def reply(self, standing: Row | None) -> Receipt | RagBanditError:
        """The receipt, or an error. standing: the stored row of its id; None if the feedback is not stored."""
        if standing is None:
            return unknown_decision()
        if standing["body_hash"] != self.row["body_hash"]:
            remedy = "use a new id for new feedback"
            return Conflict("this feedback id was used with another body", field="feedback_id", remedy=remedy)
        waiting_for: Literal["outcome"] | None = "outcome" if self.needs_outcome else None
        duplicate, late = not self.is_new, standing["late"]
        return Receipt(feedback_id=self.feedback.id, duplicate=duplicate, late=late, waiting_for=waiting_for)


def write_feedback(
    connection: Connection, group: Sequence[Feedback], *, moves: Moves
) -> list[Receipt | RagBanditError]:
    """Insert the group and update the rows that depend on it; a receipt or an error per item."""
    number_transaction(connection)
    firsts = firsts_of(connection, {item.decision_id for item in group})
    group = [replace(item, decision_id=firsts.get(item.decision_id, item.decision_id)) for item in group]
    made = select(decisions.c.id, decisions.c.policy).where(decisions.c.id.in_({item.decision_id for item in group}))
    policies = {row.id: row.policy for row in connection.execute(made)}
    open_rows = lock_waiting(connection, set(policies))
    items = []
    for one in group:
        waits = open_rows.get((one.decision_id, policies.get(one.decision_id, "")))
        items.append(_Item(feedback=one, row=feedback_row(one) | {"late": waits is None}, waits=waits))
    known = [item for item in items if item.feedback.decision_id in policies]
    new = list(compress(known, insert_new(connection, feedback, [item.row for item in known], key="id")))
    for item in new:
        item.is_new = True
    if labelled := [item.feedback.decision_id for item in new if item.feedback.source == "label"]:
        drop_jobs(connection, labelled, kind="label", moves=moves)
    _flag(connection, new, open_rows=open_rows, moves=moves)
    moves.add("feedback", len(new))
    moves.add("late_feedback", sum(item.row["late"] for item in new))
    kept = select(*feedback.c["id", "body_hash", "late"]).where(feedback.c.id.in_([item.row["id"] for item in items]))
    standing = {row["id"]: row for row in connection.execute(kept).mappings()}
    return [item.reply(standing.get(item.row["id"])) for item in items]


def _flag(
    connection: Connection, new: Sequence[_Item], *, open_rows: Mapping[tuple[str, str], Row], moves: Moves
) -> None:
    """Say of decisions that wait, in whatever ledger, that they have feedback, and whether a reward is among it."""
    fed = {item.feedback.decision_id for item in new if item.can_be_learned}
    rewarded = {item.feedback.decision_id for item in new if item.can_be_learned and item.feedback.kind == "reward"}
    rows = [row for (key, _), row in open_rows.items() if key in fed]
    with_reward = [row for row in rows if row["decision_id"] in rewarded]
    flag_waiting(connection, with_reward, moves=moves, has_feedback=True, has_reward=True)
    others = [row for row in rows if row["decision_id"] not in rewarded]
    flag_waiting(connection, others, moves=moves, has_feedback=True)
