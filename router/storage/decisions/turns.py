"""Turns: requests that belong to an earlier decision. Each has its own id, and its own rows in `decisions` and
`outcomes`, where the column `turn_of` names the decision.

The arm of a turn is not drawn, so no ledger has a row for it. Its cost is added to the outcome of the decision.
Feedback on a turn counts for the decision.

Results of tool calls are always turns: they go to the arm that made the calls. The loop that the decision began has one
answer, so the decision's outcome gets the newest answer of this loop. All other turns belong to tasks (see `tasks`),
and a task's decision keeps the answer to its own question. `continuing` finds the turn that a request continues.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final

from sqlalchemy import select, update

from ragbandit.router.storage.rows.conversion import canonical, client_records_of
from ragbandit.router.storage.rows.outcome_rows import (
    LATER,
    outcome_row,
    outcome_value,
    with_added,
    with_late,
)
from ragbandit.router.storage.sql.bulk_insert import Row, run_statement
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.json_columns import json_object
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.model_servers.failures import failure_of
from ragbandit.shared.types import (
    Branch,
    Continues,
    Cost,
    DecisionId,
    Loop,
    Outcome,
    TraceEvent,
    call_ids,
    continues_of,
)

#: rules in the trace of a decision for a turn in its loop of tools, and for another turn of its task
TOOL_TURN: Final = "tool_turn"
TASK_TURN: Final = "task_turn"
_TURNS: Final = (TOOL_TURN, TASK_TURN)
#: maximum number of events in the trace of a decision with turns; each turn has its own trace
_MOST_EVENTS: Final = 500
#: columns of the drawn decision's outcome that a later turn changes
_STATE: Final = ("status", "answer", "stop_reason", "error", "sources")
_CHANGED: Final = (*_STATE, "trace", "cost", "steps")


def read_continues(request: str | None) -> Continues:
    """The `Continues` of a stored decision; empty if it is unreadable. request: the column `decisions.request`"""
    return continues_of(client_records_of(request))


def loop_of(connection: Connection, request: str | None) -> Loop | None:
    """The loop of a turn, or of the failed turn that it replaces; None if the turn has no results of calls."""
    continues = read_continues(request)
    if continues.failed is not None:
        rows = run_statement(connection, "SELECT request FROM decisions WHERE id = ?", continues.failed.first)
        continues = read_continues(rows[0]["request"] if rows else None)
    return continues.loop


def firsts_of(connection: Connection, ids: Iterable[str]) -> dict[str, DecisionId]:
    """Id of a turn -> id of its decision; ids of decisions are left out."""
    rows = run_statement(
        connection, "SELECT id, turn_of FROM decisions WHERE id IN ? AND turn_of IS NOT NULL", list(ids)
    )
    return {row["id"]: row["turn_of"] for row in rows}


def own_events(trace: Sequence[TraceEvent]) -> tuple[TraceEvent, ...]:
    """The events of a decision's own answer, without the events of later turns, which follow them in the trace."""
    return tuple(takewhile(lambda event: not (isinstance(event, Branch) and event.rule in _TURNS), trace))


def earlier_turns(
    connection: Connection, ids: Sequence[str], *, excluded: Collection[str]
) -> list[tuple[Outcome, Row, DecisionId]]:
    """Turns of these decisions whose outcomes were stored before the decision had one, as `add_turns` takes them.

    excluded: turns whose outcomes are stored together with their decisions' outcomes
    """
    if not ids:
        return []
    query = select(outcomes, *decisions.c["turn_of", "request"])
    query = query.join(decisions, decisions.c.id == outcomes.c.decision_id)
    rows = connection.execute(query.where(decisions.c.turn_of.in_(ids)).order_by(outcomes.c.made_at)).mappings()
    new = [row for row in rows if row["decision_id"] not in excluded]
    return [(outcome_value(row), row, DecisionId(row["turn_of"])) for row in new]


def add_turns(
    connection: Connection, turns: Sequence[tuple[Outcome, Row, DecisionId]], *, unlearned: Collection[str]
) -> list[Outcome]:
    """Add the outcome of each turn to its decision's outcome. Returns the outcomes of decisions whose loop has ended.

    turns: (outcome, its row with `decisions.request`, id of the decision)
    unlearned: decisions that a ledger has not closed yet. A turn of another decision comes too late: only its cost is
        added, to the part LATE of the decision's cost.
    """
    finished = []
    for outcome, turn_row, first in sorted(turns, key=lambda turn: turn[2]):  # locks as `take_answers`
        query = select(outcomes).where(outcomes.c.decision_id == first).with_for_update()
        row = connection.execute(query).mappings().first()
        if row is None:
            continue
        if first not in unlearned:
            late = with_late(row["cost"], turn=outcome)
            connection.execute(update(outcomes).where(outcomes.c.decision_id == first).values(cost=late))
            continue
        before, failure = outcome_value(row), failure_of(outcome.made_by)
        loop = loop_of(connection, turn_row["request"])
        is_in_loop = loop is not None and loop.begun_by is None
        # A refused turn does not change the result of the loop, and other turns of a task have results of their own.
        is_result = is_in_loop and not (failure is not None and failure.is_unable)
        rule = TOOL_TURN if is_in_loop else TASK_TURN
        note = Branch(rule=rule, value=f"{outcome.decision_id}: {outcome.stop_reason}")
        whole = replace(
            outcome,
            decision_id=first,
            trace=(*before.trace, note, *outcome.trace)[:_MOST_EVENTS],
            cost=replace(before.cost + outcome.cost + Cost(turns=1), price=before.cost.price),
            steps=before.steps + outcome.steps,
        )
        if not is_result:
            same = {name: getattr(before, name) for name in _STATE}
            whole = replace(whole, **same)
        changed = {name: value for name, value in outcome_row(whole).items() if name in _CHANGED}
        if turn_row["trace"] is None:  # NULL if texts are not stored
            changed |= dict.fromkeys(("answer", "trace", "error", "sources"))
        stored = {**json_object(row["cost"]), **json_object(changed["cost"])}  # keeps the parts LATER and LATE
        changed["cost"] = with_added(canonical(stored), key=LATER, added=outcome.cost + Cost(turns=1))
        connection.execute(update(outcomes).where(outcomes.c.decision_id == first).values(**changed))
        if before.stop_reason == "tool_calls" and not call_ids(outcome) and is_result:
            finished.append(whole)
    return finished
