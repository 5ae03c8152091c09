"""Rows of `paired_answers`: answers of two arms to the same stored questions, judged by one judge, and never learned.

A pair has one row for each arm. Rows are found by the sha256 of the arm's definition and of the judge's, so a changed
arm is asked again, and another judge judges again.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import case, func, select

from ragbandit.router.storage.rows.conversion import Form, TableRows
from ragbandit.router.storage.rows.outcome_rows import KNOWN_REASONS, cost_json, cost_value, erased_reason, storable
from ragbandit.router.storage.sql.bulk_insert import put_rows
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.tables import decisions, paired_answers, reading_positions
from ragbandit.shared.types import ERASED, ArmName, Cost, DecisionId, OutcomeStatus

#: number of ids per statement
_BATCH: Final = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedAnswer:
    """The answer of one arm to a stored question, with its score."""

    decision_id: DecisionId
    arm: ArmName
    #: sha256 of the arm's definition and of the limits of its answers, 43 digits
    version: str
    #: sha256 of the judge's definition, 43 digits
    judge: str
    #: name of the judge, or path of the check
    rater: str
    #: whether this is the stored answer of the decision's outcome, so that the arm was not asked again
    is_stored: bool
    status: OutcomeStatus
    #: text of the answer; None without an answer, and if `is_stored`
    answer: str | None
    cost: Cost
    steps: float
    stop_reason: str
    error: str | None
    #: score in [0, 1]; None if the judge gave no score, or was not asked yet
    quality: float | None
    #: why the judge gave no score
    unjudged: str | None
    #: dollars for asking and judging
    dollars: float
    #: who bought the answer, and was charged
    actor: str
    made_at: float


_ROWS: Final = TableRows(
    paired_answers,
    PairedAnswer,
    answer=Form(write=storable),
    error=Form(write=storable),
    unjudged=Form(write=storable),
    cost=Form(write=cost_json, read=cost_value),
)


def store_answer(database: Database, answer: PairedAnswer) -> bool:
    """Store an answer, or replace its stored row, for example to add the score. Returns False if the decision has
    left the store.

    An answer to a question that was erased meanwhile is stored without its texts. Raises StoreError.
    """
    with database.write() as connection:
        erased = is_erased(connection, answer.decision_id)
        if erased is None:
            return False
        put_rows(connection, paired_answers, [_ROWS.row(_blank(answer) if erased else answer)])
    return True


def is_erased(connection: Connection, key: DecisionId) -> bool | None:
    """Whether the texts of a decision were erased; None if it has left the store. The row is locked until the
    transaction ends, so an erasure finds all rows that this transaction writes.
    """
    facts = select(decisions.c.facts).where(decisions.c.id == key).with_for_update(read=True)
    found = connection.execute(facts).scalar()
    return None if found is None else ERASED in object_or_empty(found)


def _blank(answer: PairedAnswer) -> PairedAnswer:
    error, unjudged = (None if text is None else ERASED for text in (answer.error, answer.unjudged))
    reason = answer.stop_reason if answer.stop_reason in KNOWN_REASONS else ERASED
    return replace(answer, answer=None, error=error, unjudged=unjudged, stop_reason=reason)


def asked_arms(connection: Connection) -> set[str]:
    """Names of all arms that a paired comparison of this store has asked."""
    is_pairing = reading_positions.c.reader.startswith(pairing_key(""), autoescape=True)
    texts = connection.scalars(select(reading_positions.c.position).where(is_pairing))
    return {name for text in texts for name in json.loads(text).get("asked", ())}


def pairing_key(label: str) -> str:
    """Key in `reading_positions` of the paired comparison that the reports of a ledger show."""
    return f"decide:{label}"


def answers_to(connection: Connection, ids: Sequence[DecisionId]) -> Iterator[PairedAnswer]:
    """The answers to the questions of these decisions, the oldest first within a batch of decisions."""
    for start in range(0, len(ids), _BATCH):
        chosen = paired_answers.c.decision_id.in_(ids[start : start + _BATCH])
        query = select(paired_answers).where(chosen).order_by(paired_answers.c.made_at)
        yield from map(_ROWS.value, connection.execute(query).mappings())


def answer_dollars(connection: Connection, ids: Sequence[DecisionId]) -> dict[DecisionId, float]:
    """Dollars of all stored answers to each of these questions, of any arm and judge."""
    table = paired_answers
    sums = select(table.c.decision_id, func.sum(table.c.dollars)).where(table.c.decision_id.in_(ids))
    return {DecisionId(key): float(total) for key, total in connection.execute(sums.group_by(table.c.decision_id))}


def erase_answers(connection: Connection, ids: Collection[str]) -> None:
    """Blank the texts of the answers to these questions. Costs and scores stay."""
    table = paired_answers
    blanks = {name: case((table.c[name].is_not(None), ERASED)) for name in ("error", "unjudged")}
    reason = erased_reason(table.c.stop_reason)
    blank = table.update().where(table.c.decision_id.in_(ids))
    connection.execute(blank.values(answer=None, stop_reason=reason, **blanks))
