"""Stores a group of feedback. Rows are locked in LOCK_ORDER of `rows/waiting.py`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Literal

from sqlalchemy import select

from ragbandit.router.storage.decisions.turns import firsts_of
from ragbandit.router.storage.jobs.claims import drop_jobs
from ragbandit.router.storage.rows.conversion import erased_feedback, feedback_row, id_of_tenant
from ragbandit.router.storage.rows.waiting import LOCK_WAITING, flag_waiting, number_transaction
from ragbandit.router.storage.sql.bulk_insert import Row, insert_new, run_statement
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Increments
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.tables import decisions, feedback
from ragbandit.shared.errors import Conflict, NotFound, RagBanditError
from ragbandit.shared.types import ERASED, DecisionId, Feedback, Receipt


def decision_of_feedback(
    connection: Connection, feedback_id: str, *, session: str, tenant: str
) -> tuple[DecisionId, float] | None:
    """Returns (decision, time received) of the feedback with this id on a decision of the session, or None."""
    other_id = id_of_tenant({"id": feedback_id, "facts": None}, tenant=tenant)["id"]
    query = select(*feedback.c["decision_id", "received_at"]).join(decisions, decisions.c.id == feedback.c.decision_id)
    query = query.where(feedback.c.id.in_([feedback_id, other_id]))
    row = connection.execute(query.where(decisions.c.session == session, decisions.c.tenant == tenant)).first()
    return None if row is None else (DecisionId(row.decision_id), row.received_at)


def unknown_decision() -> NotFound:
    remedy = "use the decision id that route or answer returned"
    return NotFound("no decision has this id", field="decision_id", remedy=remedy)


@dataclass(kw_only=True, slots=True)
class _Item:
    feedback: Feedback
    row: dict[str, Any]
    #: the decision's row of `waiting` in the ledger that decided; None if the ledger has learned or closed it
    waiting_row: Row | None
    is_new: bool = False

    def reply(self, stored: Row | None) -> Receipt | RagBanditError:
        """stored: the stored row with the feedback's id; None if nothing was stored, since the decision is unknown"""
        if stored is None:
            return unknown_decision()
        if stored["body_hash"] != self.row["body_hash"]:
            remedy = "use a new id for new feedback"
            return Conflict("this feedback id was used with another body", field="feedback_id", remedy=remedy)
        waiting_for: Literal["outcome"] | None = None
        if self.waiting_row is not None and self.feedback.value is not None and self.feedback.kind != "reward":
            needs_outcome = self.waiting_row["run_by"] == "caller" and not self.waiting_row["has_outcome"]
            waiting_for = "outcome" if needs_outcome else None
        duplicate, late = not self.is_new, bool(stored["late"])
        return Receipt(feedback_id=self.feedback.id, duplicate=duplicate, late=late, waiting_for=waiting_for)


def write_feedback(
    connection: Connection, group: Sequence[Feedback], *, tally: Increments
) -> list[Receipt | RagBanditError]:
    """Insert the feedback, in the transaction of `DecisionStore.add_feedback`. Returns a reply for each item."""
    number_transaction(connection)
    firsts = firsts_of(connection, {item.decision_id for item in group})
    group = [replace(item, decision_id=firsts.get(item.decision_id, item.decision_id)) for item in group]
    query = "SELECT id, policy, tenant, facts FROM decisions WHERE id IN ?"
    decided = {row["id"]: row for row in run_statement(connection, query, [item.decision_id for item in group])}
    policies = {key: row["policy"] for key, row in decided.items()}
    open_rows = {
        (row["decision_id"], row["policy"]): row for row in run_statement(connection, LOCK_WAITING, sorted(policies))
    }
    items = []
    for given in group:
        waiting_row = open_rows.get((given.decision_id, policies.get(given.decision_id, "")))
        row = feedback_row(given) | {"late": waiting_row is None}
        # `body_hash` stays the hash of the whole feedback, so repeated feedback is a duplicate.
        if ERASED in object_or_empty(decided.get(given.decision_id, {}).get("facts")):
            row |= erased_feedback(row)
        items.append(_Item(feedback=given, row=row, waiting_row=waiting_row))
    tenants = {key: row["tenant"] for key, row in decided.items()}
    new, stored = _insert(connection, items, tenants=tenants)
    for item in new:
        item.is_new = True
    labelled = [item.feedback.decision_id for item in new if item.feedback.source == "label"]
    if labelled:
        drop_jobs(connection, labelled, kind="label", tally=tally)
    _flag(connection, new, open_rows=open_rows, tally=tally)
    tally.add("feedback", len(new))
    tally.add("late_feedback", sum(item.row["late"] for item in new))
    return [item.reply(stored.get(item.row["id"])) for item in items]


def _insert(
    connection: Connection, items: Sequence[_Item], *, tenants: Mapping[str, str]
) -> tuple[list[_Item], dict[str, Row]]:
    """Insert feedback of known decisions. Returns the new items, and the stored rows by id.

    Ids are unique within a tenant: if another tenant has used an id, `id_of_tenant` replaces it. tenants: decision
    id -> tenant.
    """
    known = [item for item in items if item.feedback.decision_id in tenants]
    new = list(compress(known, insert_new(connection, feedback, [item.row for item in known], key="id")))
    stored = _stored(connection, items)
    owners = {key: row["tenant"] for key, row in stored.items()}
    taken = [item for item in known if owners.get(item.row["id"]) not in (None, tenants[item.feedback.decision_id])]
    if not taken:
        return new, stored
    for item in taken:
        item.row |= id_of_tenant(item.row, tenant=tenants[item.feedback.decision_id])
    new += compress(taken, insert_new(connection, feedback, [item.row for item in taken], key="id"))
    return new, _stored(connection, items)


def _stored(connection: Connection, items: Sequence[_Item]) -> dict[str, Row]:
    query = """
        SELECT feedback.id, feedback.body_hash, feedback.late, decisions.tenant
        FROM feedback JOIN decisions ON decisions.id = feedback.decision_id WHERE feedback.id IN ?
    """
    return {row["id"]: row for row in run_statement(connection, query, [item.row["id"] for item in items])}


def _flag(
    connection: Connection, new: Sequence[_Item], *, open_rows: Mapping[tuple[str, str], Row], tally: Increments
) -> None:
    usable = [item.feedback for item in new if item.feedback.value is not None]
    rewarded = {item.decision_id for item in usable if item.kind == "reward"}
    unrewarded = {item.decision_id for item in usable} - rewarded
    with_reward = [row for (key, _), row in open_rows.items() if key in rewarded]
    flag_waiting(connection, with_reward, tally=tally, has_feedback=True, has_reward=True)
    without_reward = [row for (key, _), row in open_rows.items() if key in unrewarded]
    flag_waiting(connection, without_reward, tally=tally, has_feedback=True)
