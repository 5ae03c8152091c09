"""Questions of a period that no comparison includes: why, how many, what they cost, and how good their answers were.

A comparison needs draws, since otherwise the arm's decider would also choose which questions are compared. So questions
without a draw of the policy are left out, and a report begins with them if they are many.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from sqlalchemy import RowMapping, select

from ragbandit.router.storage.rows.queried_facts import QueriedFacts
from ragbandit.router.storage.sql.tables import api_keys, decisions
from ragbandit.shared.types import ONE_ARM_LEFT, ArmBy

Unit = Literal["dollars", "steps", "seconds"]
UNITS: Final[tuple[Unit, ...]] = ("dollars", "steps", "seconds")
#: `arm_by` -> what decided the question, in words
DECIDED_BY: Final[Mapping[ArmBy, str]] = {
    "caller": "the caller",
    "calls": "the arm of their calls of tools",
    "failover": "a failover",
    "limit": "a limit of the session or task",
    "kill switch": "the kill switch",
    "task": "the arm of an earlier turn",
    "rule": "a rule that left one arm",
    "needs": "needs that only one arm meets",
    "breaker": "the circuit breaker, which left one arm",
    "only arm": "the only arm on offer",
}
#: a report begins with undrawn questions of one decider if they have this share of the questions or costs
SHOWN_FROM: Final = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class UndrawnQuestions:
    """Questions of the period without a draw of the policy: something else decided, so no comparison includes them."""

    by: str
    """What decided the questions, such as "a limit of the session or task"."""
    questions: int
    """Number of questions."""
    spent: float
    """Costs of the questions, in the report's unit."""
    quality: float | None
    """Mean quality of their rated answers; null if none was rated."""


@dataclass(kw_only=True, slots=True)
class UndrawnSums:
    """Sums over undrawn questions with the same decider."""

    questions: int = 0
    costs: Counter[Unit] = field(default_factory=Counter)
    judged: int = 0
    quality: float = 0.0

    def add(self, costs: Mapping[Unit, float], *, quality: float | None) -> None:
        self.questions += 1
        self.costs.update(costs)
        if quality is not None:
            self.judged += 1
            self.quality += quality

    def shown(self, *, decided_by: str, unit: Unit, scale: float) -> UndrawnQuestions:
        return UndrawnQuestions(
            by=decided_by,
            questions=round(scale * self.questions),
            spent=scale * self.costs[unit],
            quality=self.quality / self.judged if self.judged else None,
        )


def decided_by(facts: QueriedFacts, *, arms: Sequence[str]) -> str | None:
    """What decided a question in place of a draw; None if the policy drew from several arms.

    arms: arms that were on offer, or that could be asked now
    """
    by = facts.arm_by or "only arm"
    return None if by in ONE_ARM_LEFT and len(arms) > 1 else DECIDED_BY[by]


def reason_to_leave_out(row: RowMapping, *, facts: QueriedFacts, arms: Sequence[str]) -> str | None:
    """Why no comparison includes this decision; None if comparisons include it. facts: facts of `row`."""
    by = decided_by(facts, arms=arms)
    if by is not None:
        return f"decided by {by}"
    if row["is_open"]:
        return "a task that has not ended"
    if row["cost"] is None and row["source"] != "explicit":
        return "no outcome yet"
    return None


#: columns of a query for `asker_of`
ASKER_COLUMNS: Final = (
    *decisions.c["tenant", "api_key"],
    select(api_keys.c.name)
    .where(api_keys.c.public_id == decisions.c.api_key)
    .correlate(decisions)
    .scalar_subquery()
    .label("key_name"),
)


def asker_of(row: RowMapping) -> str:
    """Who asked, in words: the key by its name, or else the tenant."""
    return f"the tenant {row['tenant']}" if row["api_key"] is None else f"the key {row['key_name'] or row['api_key']}"


def budget_of(askers: Sequence[str]) -> str:
    """Names the budget of these askers, which decided their questions by a raised price."""
    whose = " and ".join(sorted(askers)) if len(askers) < 3 else f"{len(askers)} keys and tenants"
    return f"the budget of {whose}, which raised the price"
