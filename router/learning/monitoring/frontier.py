"""Frontier of the policy that serves: at each weight of cost, what the newest questions are expected to give and cost.

The expectation is the policy's own: its estimates of quality and cost of every arm, under the probabilities that it
would serve at the weight, floors and restraint included. Its cost is multiplied by what the newest outcomes cost for
each unit that was expected of them when they were decided, so that a mean holds where the estimates are biased.

An aim is solved on it: a share of the quality of the best fixed arm, or a mean of steps or dollars, becomes the
weight at which the frontier has it (price as the dual variable of a mean constraint). Where it does not reach, its end
is taken.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import mul
from typing import Any, Final

import numpy as np
from sqlalchemy import select

from ragbandit.router.config.settings import RewardSettings, Settings
from ragbandit.router.learning.monitoring.diagnosis import newest_questions
from ragbandit.router.learning.reward import cost_of, cost_of_terms
from ragbandit.router.policies.base import Policy, PolicyOutput, serves_prices
from ragbandit.router.policies.draw import drawn_by_arms, outputs_of
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.rows.outcome_rows import cost_value
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.formats import number
from ragbandit.shared.types import MAX_WEIGHT, Decision, Outcome

#: from one computation to the next, seconds: it takes as long as some thousand decisions
EVERY_S: Final = 60.0
#: questions, and rows learned, before there is a frontier; the newest questions and outcomes that it is made of
LEAST: Final = 50
QUESTIONS: Final = 100
OUTCOMES: Final = 500
#: weights beside 0, as multiples of 1 / (most expensive less cheapest arm)
_WEIGHTS: Final = tuple(np.geomspace(0.01, 30.0, 24).tolist())


@dataclass(frozen=True, kw_only=True, slots=True)
class Frontier:
    """Expected quality and cost (in units of `reward.cost`) of a question at each weight, the lowest weight first."""

    weights: tuple[float, ...]
    quality: tuple[float, ...]
    cost: tuple[float, ...]
    #: mean quality of the best fixed arm
    best: float

    def weight_of(self, *, quality: float | None = None, cost: float | None = None) -> float:
        """The highest weight with this share of the best arm's quality; or that of this mean cost."""
        values, wanted = (self.cost, cost) if cost is not None else (self.quality, (quality or 0.0) * self.best)
        # Of equal points the last one counts; beyond the ends, the ends.
        return float(np.interp(-wanted, -np.minimum.accumulate(values), self.weights))


def frontier_of(policy: Policy, decisions: Sequence[Decision], *, settings: Settings, scale: float) -> Frontier | None:
    """The frontier on the questions of these decisions, which have features of one length; None where there is none.

    scale: what outcomes cost for each unit that was expected of them.
    """
    chosen = [one for one in decisions if len(one.arms) > 1]
    if len(chosen) < LEAST or sum(policy.seen.values()) < LEAST or not serves_prices(policy):
        return None
    features, arms = np.array([one.features for one in chosen]), [one.arms for one in chosen]

    def asked(weight: float) -> tuple[list[Any], list[Any]]:
        queries = [replace(one.query, cost_weight=weight) for one in chosen]
        outputs = outputs_of(policy, queries, features=features, arms=arms)
        drawn = drawn_by_arms(outputs, arms=arms, seeds=[0] * len(arms), settings=settings, seen=policy.seen)
        return [one.facts for one in outputs if isinstance(one, PolicyOutput)], [one.pmf for one in drawn]

    facts, _ = asked(0.0)
    spread = math.fsum(max(one["cost"]) - min(one["cost"]) for one in facts) / len(chosen)
    if len(facts) < len(chosen) or not spread > 0.0:
        return None
    weights = [0.0, *(min(times / spread, MAX_WEIGHT) for times in _WEIGHTS)]
    heads: dict[str, list[float]] = {"quality": [], "cost": []}
    for weight in weights:
        facts, pmfs = asked(weight)
        for head, means in heads.items():
            sums = (math.fsum(map(mul, pmf, one[head])) for pmf, one in zip(pmfs, facts, strict=True))
            means.append(math.fsum(sums) / len(chosen))
    by_arm: dict[str, list[float]] = {}
    for one, offered in zip(facts, arms, strict=True):
        for arm, quality in zip(offered, one["quality"], strict=True):
            by_arm.setdefault(arm, []).append(quality)
    return Frontier(
        weights=tuple(weights),
        quality=tuple(heads["quality"]),
        cost=tuple(scale * cost for cost in heads["cost"]),
        best=max(math.fsum(some) / len(some) for some in by_arm.values()),
    )


def cost_scale(pairs: Sequence[tuple[Decision, Outcome]], *, terms: Mapping[str, float]) -> float:
    """What outcomes cost for each unit that the policy expected when it decided; 1 of fewer than LEAST."""
    expected, observed = [], []
    for decision, outcome in pairs:
        costs = decision.facts.get("cost")
        if isinstance(costs, list) and len(costs) == len(decision.arms) > 1:
            expected.append(float(costs[decision.arms.index(decision.arm)]))
            observed.append(cost_of(outcome, terms=terms))
    total = math.fsum(expected)
    return math.fsum(observed) / total if len(expected) >= LEAST and total > 0.0 else 1.0


def frontier_text(ledger: Ledger, policy: Policy, *, settings: Settings, encoder_hash: str) -> str | None:
    """The frontier of a ledger's policy by the newest decisions and outcomes in the store, as JSON; None: none."""
    if not serves_prices(policy):
        return None
    scale = cost_scale(ledger.newest_outcomes(limit=OUTCOMES), terms=settings.reward.cost)
    newest = newest_questions(ledger, limit=QUESTIONS, encoder_hash=encoder_hash)
    frontier = frontier_of(policy, newest, settings=settings, scale=scale)
    return None if frontier is None else canonical(asdict(frontier))


def read_frontier(text: str | None) -> Frontier | None:
    """The frontier of its JSON."""
    if text is None:
        return None
    known = json.loads(text)
    lists = {name: tuple(known[name]) for name in ("weights", "quality", "cost")}
    return Frontier(**lists, best=known["best"])


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
