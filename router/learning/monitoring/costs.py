"""Costs that tell no arm from another: what was reported, or is charged, is the same whichever arm answered."""

from collections.abc import Iterable
from typing import Final

from sqlalchemy import select

from ragbandit.router.config.sections import RewardSettings
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.storage.rows.outcome_rows import cost_value
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.formats import number

#: outcomes that are looked at
NEWEST: Final = 100


def costs_alike(database: Database, *, reward: RewardSettings, arms: Iterable[str]) -> str | None:
    """What it means that the newest NEWEST answers of these arms all cost the same; None where they do not.

    Also where there are fewer, where one of the arms gave none of them, and where the reward charges nothing. Raises
    StoreError.
    """
    arms = tuple(arms)
    charged = {term: price for term, price in reward.cost.items() if price > 0.0}
    if not charged or reward.weight == 0.0:
        return None
    answers = (
        select(decisions.c.arm, outcomes.c.steps, outcomes.c.cost)
        .join(decisions, decisions.c.id == outcomes.c.decision_id)
        .where(outcomes.c.status == "answered")
        .order_by(outcomes.c.made_at.desc())
        .limit(NEWEST)
    )
    with database.read() as connection:
        rows = connection.execute(answers).all()
    costs = {cost_of_terms(row.steps, cost_value(row.cost), terms=charged) for row in rows}
    if len(rows) < NEWEST or not set(arms) <= {row.arm for row in rows} or len(arms) < 2 or len(costs) > 1:
        return None
    terms = " and ".join(charged)
    return (
        f"all arms cost the same, {number(costs.pop())}, in the newest {NEWEST} answers: the policy takes the best, "
        f"whatever it costs; report {terms} of each answer, or charge what differs (reward.cost)"
    )
