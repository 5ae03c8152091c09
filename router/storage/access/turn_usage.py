"""What a task and a session have used: the number of their turns, and the dollars of their answers."""

from dataclasses import dataclass
from typing import Any, Final

from ragbandit.router.storage.access.spending import UNIT
from ragbandit.router.storage.rows.outcome_rows import own_cost
from ragbandit.router.storage.sql.bulk_insert import run_statement
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.shared.types import DecisionId

#: maximum number of turns that are read; of longer sessions the newest count
MOST_TURNS: Final = 10_000
_USED: Final = (
    "SELECT d.id AS id, o.status AS status, o.cost AS cost, j.reserved AS reserved FROM decisions d "
    "LEFT JOIN outcomes o ON o.decision_id = d.id LEFT JOIN jobs j ON j.kind = 'answer' AND j.decision_id = d.id "
    "WHERE {} ORDER BY d.made_at DESC LIMIT ?"
)
_OF_TASK: Final = _USED.format("d.id IN (SELECT id FROM decisions WHERE turn_of = ? UNION ALL SELECT ?)")
_OF_SESSION: Final = _USED.format("d.session = ? AND d.tenant = ? AND d.api_key = ?")
_OF_SESSION_WITHOUT_KEY: Final = _USED.format("d.session = ? AND d.tenant = ? AND d.api_key IS NULL")


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnUsage:
    #: number of turns that have an answer or wait for one
    turns: int
    #: dollars of all answers, also of failed ones; those that wait or run count by their estimates
    dollars: float
    #: ids of the turns
    ids: frozenset[str]


def used_by_task(connection: Connection, first: DecisionId) -> TurnUsage:
    """What a decision with its turns has used. Raises StoreError."""
    return _usage(run_statement(connection, _OF_TASK, first, first, MOST_TURNS))


def used_by_session(connection: Connection, session: str, *, tenant: str, api_key: str | None) -> TurnUsage:
    """What all decisions of a session have used. Keys of a tenant may use the same id for different sessions.

    Raises StoreError.
    """
    if api_key is None:
        return _usage(run_statement(connection, _OF_SESSION_WITHOUT_KEY, session, tenant, MOST_TURNS))
    return _usage(run_statement(connection, _OF_SESSION, session, tenant, api_key, MOST_TURNS))


def _usage(rows: list[dict[str, Any]]) -> TurnUsage:
    dollars = sum(own_cost(row["cost"]).dollars for row in rows if row["cost"] is not None)
    dollars += sum(row["reserved"] or 0 for row in rows) * UNIT
    turns = sum(row["status"] != "failed" for row in rows)
    return TurnUsage(turns=turns, dollars=dollars, ids=frozenset(row["id"] for row in rows))
