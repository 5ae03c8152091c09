"""Sums of sessions and tasks that have a limit: their turns, and the dollars of their answers.

A sum is two rows of `counters`, DOLLARS and TURNS, with the label of its Spender. The transaction that stores a
decision adds its turn and its estimate. The transaction that stores the outcome replaces the estimate by the cost, and
subtracts the turn if no model was asked (`is_turn`). Both transactions change existing sums and create none.

If a sum is missing, the next question under a limit computes it from the rows of decisions and outcomes, and from the
dollars that no outcome explains (spending.OTHER). Locks prevent lost changes. So sums may be deleted at any time:
retention and erasure delete the sums of removed decisions, a correction of prices deletes all sums, and so does
`ragbandit migrate`, because a process of an older release may have stored turns without counting.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ragbandit.router.storage.access.corrections import corrections_of, hold_corrections
from ragbandit.router.storage.access.spending import DOLLARS, MOST_DOLLARS, PREFIX, TURNS, UNIT, Spender
from ragbandit.router.storage.rows.outcome_rows import own_cost
from ragbandit.router.storage.sql.bulk_insert import Row, insert_rows, run_statement
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Increments, day_of
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.tables import counters
from ragbandit.shared.errors import LimitReached
from ragbandit.shared.model_servers.failures import successor_of
from ragbandit.shared.types import DIED, TURN_KINDS, Cost, Decision, DecisionId, SpenderKind, SpendLimit, TurnKind

#: maximum number of turns in a sum; in longer sessions only the newest turns count
MOST_TURNS: Final = 10_000
#: `field` of the error if a limit was reached while the question was decided. The service decides it again. A turn with
#: results of tools may then get another arm.
REACHED: Final = "limit"
_OF_TASK: Final = "id IN (SELECT id FROM decisions WHERE turn_of = ? UNION ALL SELECT ?)"
_OF_SESSION: Final = "session = ? AND tenant = ? AND api_key = ?"
_OF_SESSION_WITHOUT_KEY: Final = "session = ? AND tenant = ? AND api_key IS NULL"
_IDS: Final = "SELECT id FROM decisions WHERE {} ORDER BY made_at DESC LIMIT ?"
_LOCK: Final = "SELECT id FROM decisions WHERE id IN ? ORDER BY id FOR NO KEY UPDATE"
_LOCK_JOBS: Final = (
    "SELECT decision_id FROM jobs WHERE kind = 'answer' AND decision_id IN ? ORDER BY decision_id FOR NO KEY UPDATE"
)
_ENDED: Final = (
    "SELECT d.id AS id, d.arm AS arm, d.made_at AS made_at, o.made_at AS ended_at, o.status AS status, "
    "o.stop_reason AS stop_reason, o.cost AS cost, o.made_by AS made_by, j.reserved AS reserved "
    "FROM decisions d LEFT JOIN outcomes o ON o.decision_id = d.id "
    "LEFT JOIN jobs j ON j.kind = 'answer' AND j.decision_id = d.id WHERE d.id IN ?"
)
_SUMS: Final = "SELECT label, name, value FROM counters WHERE label IN ? AND name IN ('dollars', 'turns') AND shard = 0"
#: query for the dollars since a day that no outcome explains; a session or task has no other sums of days
_OTHER: Final = "SELECT value FROM counters WHERE label = ? AND name >= ? AND name NOT IN ('dollars', 'turns')"
_LABELS: Final = (
    "SELECT label FROM counters WHERE label > ? AND label < ? AND name = 'turns' AND shard = 0 ORDER BY label LIMIT ?"
)
_REACHED: Final = (
    "SELECT DISTINCT label FROM counters WHERE label > ? AND label < ? AND shard = 0 "
    "AND (name = 'turns' AND value >= ? OR name = 'dollars' AND value >= ?) LIMIT ?"
)
_SPENDERS: Final = "SELECT id, tenant, api_key, session, turn_of FROM decisions WHERE id IN ?"
#: end of the range of labels of spenders
_END: Final = PREFIX[:-1] + ";"
#: a limit that no sum reaches
_NEVER: Final = 2**62
#: maximum number of sums that `verify` compares
MOST_AT_ONCE: Final = 1_000_000


def refusal_of(limit: SpendLimit, *, limits: Sequence[SpendLimit], field: str = "session_id") -> LimitReached:
    """The error for a turn beyond a limit. limits: all limits of the question."""
    setting = f"conversation.{limit.kind}_limit.{limit.unit}"
    end = "end the task (POST /v1/sessions/ID/end)" if limit.kind == "task" else "begin another session"
    error = LimitReached(str(limit), field=field, remedy=f"{end}, or have the setting {setting} raised")
    error.limits = limits
    return error


class TurnSum(NamedTuple):
    """Amounts that a session or task has used; answers without an outcome yet count by their estimates."""

    turns: int = 0
    #: billionths of a dollar
    units: int = 0

    def of(self, limit: SpendLimit) -> float:
        return self.turns if limit.unit == "turns" else round(self.units * UNIT, 9)


NOTHING: Final = TurnSum()


def session_spender(tenant: str, *, key: str | None, session: str) -> Spender:
    """The spender of a session. It depends on the key: keys of a tenant may use the same id for different sessions."""
    return Spender("session", json.dumps([tenant, key, session]))


def turn_spenders(row: Row, *, kinds: Collection[SpenderKind] = TURN_KINDS) -> list[Spender]:
    """The session and the task of a decision. row: its columns id, tenant, api_key, session, turn_of"""
    spenders = list[Spender]()
    if "session" in kinds and row["session"] is not None:
        spenders.append(session_spender(row["tenant"], key=row["api_key"], session=row["session"]))
    if "task" in kinds:
        spenders.append(Spender("task", row["turn_of"] or row["id"]))
    return spenders


def spending_row(decision: Decision) -> Row:
    """The columns of a decision for `turn_spenders`."""
    query = decision.query
    columns = {"tenant": query.tenant, "api_key": query.api_key, "session": query.session}
    return {"id": decision.id, "turn_of": decision.turn_of, **columns}


def spending_rows(connection: Connection, ids: Collection[str]) -> list[Row]:
    """The columns of stored decisions for `turn_spenders`."""
    return [*run_statement(connection, _SPENDERS, sorted(ids))] if ids else []


def is_turn(*, status: str | None, cost: Cost, stop_reason: str | None, is_replaced: bool) -> bool:
    """Whether a decision counts as a turn: it has no outcome yet, or a model was asked. A failed answer counts if it
    cost something, or if its processes died. status: None without an outcome. is_replaced: whether another decision
    answers instead, which is counted in its place
    """
    if status != "failed":
        return True
    paid = cost.dollars > 0.0 or cost.prompt_tokens + cost.completion_tokens > 0
    return not is_replaced and (paid or stop_reason == DIED)


def read_sums(connection: Connection, spenders: Collection[Spender]) -> dict[Spender, TurnSum]:
    """The sums of these spenders. A missing sum is computed, and not stored."""
    stored = stored_sums(connection, spenders)
    return {spender: stored.get(spender) or _computed_sum(connection, spender) for spender in spenders}


def ensure_sums(connection: Connection, spenders: Collection[Spender]) -> dict[Spender, TurnSum]:
    """The sums of these spenders. A missing sum is computed and stored. Lock the spenders first (`spending.lock`)."""
    sums = stored_sums(connection, spenders)
    missing = [spender for spender in spenders if spender not in sums]
    if not missing:
        return sums
    ids = {key for spender in missing for key in _ids(connection, spender)}
    if ids:  # transactions that store outcomes or charge lost runs find no sum to change: let them end first
        run_statement(connection, _LOCK, sorted(ids))
        run_statement(connection, _LOCK_JOBS, sorted(ids))
        hold_corrections(connection)
    rows = []
    for spender in missing:
        sums[spender] = counted = _computed_sum(connection, spender)
        for name, value in ((DOLLARS, counted.units), (TURNS, counted.turns)):
            rows.append({"label": spender.label, "name": name, "shard": 0, "value": value})
    insert_rows(connection, counters, sorted(rows, key=lambda row: (row["label"], row["name"])))
    return sums


def stored_sums(connection: Connection, spenders: Collection[Spender]) -> dict[Spender, TurnSum]:
    """The stored sums; a spender without a stored sum is missing."""
    if not spenders:
        return {}
    by_label = {spender.label: spender for spender in spenders}
    values: dict[str, dict[str, int]] = {}
    for row in run_statement(connection, _SUMS, sorted(by_label)):
        values.setdefault(row["label"], {})[row["name"]] = row["value"]
    return {
        by_label[label]: TurnSum(turns=max(0, of[TURNS]), units=max(0, of.get(DOLLARS, 0)))
        for label, of in values.items()
        if TURNS in of
    }


def _ids(connection: Connection, spender: Spender) -> list[str]:
    """The newest MOST_TURNS decisions of a session or task."""
    if spender.kind == "task":
        where, values = _OF_TASK, [spender.name, spender.name]
    else:
        tenant, key, session = json.loads(spender.name)
        where = _OF_SESSION_WITHOUT_KEY if key is None else _OF_SESSION
        values = [session, tenant, *([] if key is None else [key])]
    return [row["id"] for row in run_statement(connection, _IDS.format(where), *values, MOST_TURNS)]


def _computed_sum(connection: Connection, spender: Spender) -> TurnSum:
    """The sum of a session or task, counted from the rows of its decisions."""
    ids = _ids(connection, spender)
    if not ids:
        return NOTHING
    turns, units, oldest = 0, 0, math.inf
    corrections = corrections_of(connection)
    for row in run_statement(connection, _ENDED, ids):
        made_by = object_or_empty(row["made_by"])
        facts = {"decision_id": row["id"], "arm": row["arm"], "made_by": made_by, "made_at": row["ended_at"]}
        cost = Cost() if row["cost"] is None else corrections.cost(own_cost(row["cost"]), **facts)
        is_replaced = successor_of(made_by) is not None
        ended = {"status": row["status"], "stop_reason": row["stop_reason"]}
        turns += is_turn(cost=cost, is_replaced=is_replaced, **ended)
        units += round(min(cost.charged_dollars, MOST_DOLLARS) / UNIT) + (row["reserved"] or 0)
        oldest = min(oldest, row["made_at"])
    units += sum(row["value"] for row in run_statement(connection, _OTHER, spender.label, day_of(oldest)))
    return TurnSum(turns=turns, units=units)


def add_turns_of(
    tally: Increments, new: Iterable[Decision], *, reserved: Mapping[DecisionId, int], kinds: Collection[TurnKind]
) -> None:
    """Count new decisions. reserved: id -> estimate, billionths of a dollar"""
    for decision in new:
        for spender in turn_spenders(spending_row(decision), kinds=kinds):
            tally.change_sum(TURNS, 1, label=spender.label)
            tally.change_sum(DOLLARS, reserved.get(decision.id, 0), label=spender.label)


def forget_sums(connection: Connection, ids: Collection[str], *, tally: Increments) -> None:
    """Delete the sums of these decisions' sessions and tasks."""
    for row in spending_rows(connection, ids):
        for spender in turn_spenders(row):
            tally.forget_sum(spender.label)


def forget_all_sums(connection: Connection) -> None:
    """Delete all sums. It locks `counters`, so the transaction may lock no rows of other tables afterwards."""
    if not connection.is_sqlite:
        run_statement(connection, "SET LOCAL statement_timeout = 0")
        run_statement(connection, "LOCK TABLE counters IN EXCLUSIVE MODE")
    run_statement(connection, "DELETE FROM counters WHERE name IN ('dollars', 'turns') AND shard = 0")


def turn_sum_labels(connection: Connection) -> set[str]:
    """Labels of all sums."""
    return {row["label"] for row in run_statement(connection, _LABELS, PREFIX, _END, MOST_AT_ONCE)}


def reached_labels(connection: Connection, *, dollars: float | None, turns: int | None) -> set[str]:
    """Labels of sums that have reached the limit of dollars or of turns."""
    most = _NEVER if turns is None else turns, _NEVER if dollars is None else math.ceil(round(dollars / UNIT, 3))
    return {row["label"] for row in run_statement(connection, _REACHED, PREFIX, _END, *most, MOST_AT_ONCE)}


def turn_difference(connection: Connection, spender: Spender) -> str | None:
    """How a stored sum differs from its decisions; None if both agree. The transaction must read one snapshot."""
    stored = stored_sums(connection, [spender]).get(spender)
    found = _computed_sum(connection, spender)
    if stored is None or found.turns >= MOST_TURNS:
        return None
    if found.turns != stored.turns:
        return f"{stored.turns} turns are counted, its decisions have {found.turns}"
    if found.units != stored.units:
        return f"{stored.units * UNIT:.6g} dollars are counted, its answers and lost runs cost {found.units * UNIT:.6g}"
    return None
