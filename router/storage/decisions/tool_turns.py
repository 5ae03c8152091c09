"""Tool turns: requests that bring the results of tools to the arm that called them; one decision, whatever their
number.

Each turn is a row of its own among decisions and outcomes, with an id that its caller may use. Its arm is not drawn, so
that nothing is learned of it. What it used is added to the outcome of the decision that drew the arm, which has the
newest answer; feedback on a turn is feedback on that decision.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, select, update

from ragbandit.router.storage.rows.conversion import body_hash, canonical, json_object, object_or_empty, of_known
from ragbandit.router.storage.rows.outcome_rows import LATER, outcome_row, outcome_value
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.types import ArmName, Branch, Cost, DecisionId, Json, Outcome, calls_of

#: the key of a query's `request` with the turn: {"first": the decision that drew the arm, "turn": its number, from 2}
TOOL_TURN: Final = "tool_turn"
#: columns of an outcome that a later turn changes
_CHANGED: Final = ("status", "answer", "trace", "cost", "steps", "stop_reason", "error", "sources")


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolTurn:
    """The next turn of a loop of tools."""

    #: the decision that drew the arm
    first: DecisionId
    arm: ArmName
    #: of this turn; the drawn one is 1
    number: int
    #: when the arm was drawn, seconds since 1970
    began_at: float

    @property
    def facts(self) -> dict[str, Json]:
        """As a query's `request` has it under TOOL_TURN."""
        return {"first": self.first, "turn": self.number}


def call_key(call: str, *, tenant: str) -> str:
    """What a call of a tool is found by: of one tenant alone."""
    return body_hash([tenant, call])


def next_turn(database: Database, calls: Collection[str], *, tenant: str) -> ToolTurn | None:
    """The turn that brings the results of these calls; None where nothing here asked for them. Raises StoreError."""
    keys = [call_key(call, tenant=tenant) for call in calls]
    asked = select(decisions.c.id, decisions.c.arm, decisions.c.request, decisions.c.made_at)
    asked = asked.join(outcomes, outcomes.c.decision_id == decisions.c.id).where(outcomes.c.call.in_(keys))
    with database.read() as connection:
        row = connection.execute(asked.order_by(decisions.c.made_at.desc()).limit(1)).first()
        if row is None:
            return None
        turn = _turn_of(row.request) or {"first": row.id, "turn": 1}
        began_at = connection.execute(select(decisions.c.made_at).where(decisions.c.id == turn["first"])).scalar()
    began_at = row.made_at if began_at is None else began_at
    return ToolTurn(first=turn["first"], arm=row.arm, number=int(turn["turn"]) + 1, began_at=began_at)


def _turn_of(request: str | None) -> Mapping[str, Any] | None:
    """The turn that a row of `decisions` is; None: none."""
    if request is None or f'"{TOOL_TURN}"' not in request:
        return None
    turn: Mapping[str, Any] | None = object_or_empty(request).get("edge", {}).get(TOOL_TURN)
    return turn


def first_of(request: str | None) -> DecisionId | None:
    """The decision that drew the arm of a turn; None: the row is none. request: its column."""
    turn = _turn_of(request)
    return None if turn is None else DecisionId(turn["first"])


def firsts_of(connection: Connection, ids: Iterable[str]) -> dict[str, DecisionId]:
    """Turn -> the decision that drew its arm, of those among these decisions that are turns."""
    here = decisions.c.id.in_(list(ids)), decisions.c.request.contains(f'"{TOOL_TURN}"')
    rows = connection.execute(select(decisions.c.id, decisions.c.request).where(*here))
    return {row.id: first for row in rows if (first := first_of(row.request)) is not None}


def add_turns(connection: Connection, turns: Sequence[tuple[Outcome, DecisionId]]) -> list[Outcome]:
    """Add the outcomes of turns to those of their decisions; of these the ones that have their last answer now.

    turns: each outcome with the decision that drew its arm.
    """
    ended = []
    for outcome, first in turns:
        known = connection.execute(select(outcomes).where(outcomes.c.decision_id == first).with_for_update()).mappings()
        if (row := known.first()) is None:
            continue
        before = outcome_value(row)
        note = Branch(rule=TOOL_TURN, value=f"{outcome.decision_id}: {outcome.stop_reason}")
        whole = replace(
            outcome,
            decision_id=first,
            trace=(*before.trace, note, *outcome.trace),
            cost=before.cost + outcome.cost,
            steps=before.steps + outcome.steps,
        )
        changed = {name: value for name, value in outcome_row(whole).items() if name in _CHANGED}
        changed["cost"] = _with_later(changed["cost"], before=row["cost"], added=outcome.cost)
        connection.execute(update(outcomes).where(outcomes.c.decision_id == first).values(**changed))
        if before.stop_reason == "tool_calls" and not calls_of(outcome):
            ended.append(whole)
    return ended


def _with_later(cost: str, *, before: str, added: Cost) -> str:
    """The JSON of a cost, which says how much of it later turns added. before: the one that is stored."""
    known = of_known(Cost, json_object(before).get(LATER, {})) + added
    return canonical({**json_object(cost), LATER: {name: value for name, value in asdict(known).items() if value}})


def called(outcome: Outcome, *, tenant: str) -> str | None:
    """What the first call of a tool in an outcome is found by, for its column `call`."""
    calls = calls_of(outcome)
    return call_key(calls[0], tenant=tenant) if calls else None
