"""Facts of decisions that queries need. Each is a column of `decisions`, written when the decision is inserted.

The columns `facts` and `request` have the same facts as JSON, together with values of callers and models. A release
before schema 1006 inserts rows without these columns, and one with schema 1006 without `arm_by`, which then has its
default. The facts of such a row are read from its JSON, until it is filled (rows/filling.py).
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, cast

from sqlalchemy import Column, ColumnElement, case, or_

from ragbandit.router.storage.sql.bulk_insert import Row
from ragbandit.router.storage.sql.json_columns import list_or_empty, object_at, object_or_empty
from ragbandit.router.storage.sql.tables import QUERIED_FACTS, UNFILLED_ARM_BY, decisions
from ragbandit.shared.types import (
    IMPORTED,
    ArmBy,
    Continues,
    Decision,
    Loop,
    MovedTurn,
    PinnedArm,
    Sent,
    StickyTurn,
    TaskTurn,
    Terms,
    continues_of,
    sent_of,
    terms_of,
)

#: key of the column `request`: whether the arm was named (`Query.arm_by`), for processes of former releases
FORCED: Final = "forced"
#: condition: a former release inserted the row, and its columns are not filled yet
UNFILLED: Final = decisions.c.arm_by == UNFILLED_ARM_BY


class QueriedFacts(NamedTuple):
    """The facts of one decision. The fields have the names and the order of their columns."""

    #: whether another store made the decision
    is_imported: bool
    #: whether the caller chose the decision's id
    has_callers_id: bool
    #: whether an agent other than the conversation's main one asked
    is_of_agent: bool
    #: whether the turn before had another arm: this turn was moved, or answers instead of a failed turn
    is_moved: bool
    #: factor by which a nearly spent budget raised the cost weight; None if no budget did
    budget_factor: float | None
    #: end of the task if no further turn comes, seconds since 1970; None if the decision belongs to no task
    task_until: float | None
    #: JSON list: first decisions of the tool loop and of the failover that the row belongs to; None without both
    belongs_to: str | None
    #: JSON list: ids of the responses that the row continues or quotes; None without such responses
    responses: str | None
    #: who chose the arm; None if the policy drew it
    arm_by: ArmBy | None

    @classmethod
    def of(
        cls, facts: Mapping[str, Any], *, sent: Sent, continues: Continues, terms: Terms, arm_by: ArmBy | None
    ) -> Self:
        """The facts from `Decision.facts`, the records of its query and `Decision.arm_by`."""
        task, links = TaskTurn.of(facts), (continues.loop, continues.failed)
        return cls(
            is_imported=IMPORTED in facts,
            has_callers_id=sent.named_id is True,
            is_of_agent=sent.agent is not None,
            is_moved=_is_moved(facts) or continues.failed is not None,
            budget_factor=None if terms.budget_factor == 1.0 else _number(terms.budget_factor),
            task_until=None if task is None else _number(task.until),
            belongs_to=_ids([link.first for link in links if link is not None]),
            responses=_ids([continues.previous, *continues.quoted]),
            arm_by=arm_by,
        )

    @classmethod
    def of_decision(cls, decision: Decision) -> Self:
        query, by = decision.query, decision.arm_by
        return cls.of(decision.facts, sent=query.sent, continues=query.continues, terms=query.terms, arm_by=by)

    @classmethod
    def of_row(cls, row: Row) -> Self:
        """The facts of a row with FACT_COLUMNS."""
        if row["arm_by"] != UNFILLED_ARM_BY:
            return cls._make(map(row.__getitem__, QUERIED_FACTS))
        return cls.of_unfilled({name: row[f"unfilled_{name}"] for name in JSON_COLUMNS} | dict(row))

    @classmethod
    def of_unfilled(cls, row: Row) -> Self:
        """The facts of a former release's row with the columns JSON_COLUMNS. A damaged column counts as empty.

        The row of a release with schema 1006 has all columns but `arm_by`, and its JSON may have been erased since.
        """
        facts, parsed = object_or_empty(row["facts"]), object_or_empty(row["request"])
        edge = object_at(parsed, "edge")
        arm_by = _arm_by(row, facts=facts, edge=edge, is_chosen=parsed.get(FORCED) is True)
        if row["is_imported"] is None:
            return cls.of(facts, sent=sent_of(edge), continues=continues_of(edge), terms=terms_of(edge), arm_by=arm_by)
        return cls._make(map(row.__getitem__, QUERIED_FACTS))._replace(arm_by=arm_by)

    @property
    def is_undrawn(self) -> bool:
        """Whether the policy of this store did not draw the arm from several."""
        return self.is_imported or self.arm_by is not None


def arm_by_of(row: Row) -> ArmBy | None:
    """`arm_by` of a row with all columns of `decisions`."""
    stored = row["arm_by"]
    return QueriedFacts.of_unfilled(row).arm_by if stored == UNFILLED_ARM_BY else cast(ArmBy | None, stored)


def arm_by_of_query(arm_by: ArmBy | None, *, loop: Loop | None) -> ArmBy | None:
    """`Query.arm_by` of a stored decision. arm_by: `Decision.arm_by`"""
    is_open = loop is not None and loop.called_by is not None  # a step has chosen the arm for the results of calls
    return arm_by if arm_by in ("caller", "calls", "failover") and not is_open else None


def _arm_by(row: Row, *, facts: Mapping[str, Any], edge: Mapping[str, Any], is_chosen: bool) -> ArmBy | None:
    """Who chose the arm of a former release's row, by the JSON of the row. is_chosen: value of FORCED"""
    failover, loop = edge.get("failover"), edge.get("tool_turn")
    if isinstance(failover, Mapping) and failover:
        return "failover"
    if is_chosen:
        return "calls" if isinstance(loop, Mapping) and not loop.get("named") else "caller"
    if PinnedArm.key in facts:
        return "kill switch"
    if _is_beyond_limit(edge):
        return "limit"
    if row["turn_of"] is not None or StickyTurn.key in facts:
        return "calls" if isinstance(loop, Mapping) else "task"
    return "only arm" if len(list_or_empty(row["arms"])) == 1 else None


def _is_beyond_limit(edge: Mapping[str, Any]) -> bool:
    """Whether a release with schema 1006 stored with the question that a limit of its session or task was reached."""
    limits = edge.get("turn_limits")
    for limit in limits if isinstance(limits, list) else ():
        used, most = (limit.get("used"), limit.get("most")) if isinstance(limit, Mapping) else (None, None)
        if isinstance(used, int | float) and isinstance(most, int | float) and used >= most:
            return True
    return False


def _is_moved(facts: Mapping[str, Any]) -> bool:
    return MovedTurn.key in facts or MovedTurn.key in object_at(facts, TaskTurn.key)


def _number(value: Any) -> float | None:
    """The number as float64; None for other values, infinity, NaN, and numbers beyond the range of float64."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _ids(values: Sequence[Any]) -> str | None:
    # PostgreSQL refuses NUL and lone surrogates, which no valid id contains.
    ids = [value for value in values if isinstance(value, str) and value.isascii() and value.isprintable()]
    return json.dumps(ids) if ids else None


def ids_of(column: str | None) -> set[str]:
    """The ids in `belongs_to` or `responses`."""
    return set() if column is None else {*json.loads(column)}


def _if_unfilled(column: Column[Any]) -> ColumnElement[Any]:
    return case((UNFILLED, column)).label(f"unfilled_{column.name}")


#: columns from which the facts of a former release's row are read
JSON_COLUMNS: Final = ("facts", "request", "arms", "turn_of")
#: columns of a query for `QueriedFacts.of_row`; JSON_COLUMNS are read only if the other columns are not filled
FACT_COLUMNS: Final = (*decisions.c[QUERIED_FACTS], *map(_if_unfilled, decisions.c[JSON_COLUMNS]))


def or_unfilled(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Condition on columns of QueriedFacts, which is also true for rows whose columns have to be read from JSON."""
    return or_(condition, UNFILLED)


#: columns of a query for `is_imported`
IMPORTED_COLUMNS: Final = (decisions.c.is_imported, _if_unfilled(decisions.c.facts))


def is_imported(columns: Sequence[Any]) -> bool:
    """`QueriedFacts.is_imported` of a row. columns: the values of IMPORTED_COLUMNS"""
    stored, unfilled_facts = columns
    return IMPORTED in object_or_empty(unfilled_facts) if stored is None else bool(stored)
