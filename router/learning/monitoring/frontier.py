"""The frontier: expected quality and cost of the newest questions at each cost weight.

Both are the policy's estimates, weighted by the probabilities of its draw at this cost weight. An aim of a question
(a share of the best fixed arm's quality, or a mean cost) is replaced by the weight at which the frontier reaches it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import mul
from typing import Any, Final

import numpy as np

from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.learning.monitoring.diagnosis import newest_questions
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.policies.base import Policy, PolicyOutput, serves_prices
from ragbandit.router.policies.draw import draw_each, outputs_of
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.types import MAX_WEIGHT, Decision, Outcome

#: seconds between two computations of the frontier, each of which takes as long as some thousand decisions
EVERY_S: Final = 60.0
#: smallest number of questions, and of learned rows, for a frontier
LEAST: Final = 50
#: number of newest questions that the frontier is computed from
QUESTIONS: Final = 100
#: number of newest outcomes whose observed cost corrects the expected cost of the frontier
OUTCOMES: Final = 500
#: cost weights of the frontier besides 0, as multiples of 1 / (cost of the most expensive arm - cost of the cheapest)
_WEIGHTS: Final = tuple(np.geomspace(0.01, 30.0, 24).tolist())


@dataclass(frozen=True, kw_only=True, slots=True)
class Frontier:
    """Expected quality and cost (in units of `reward.cost`) of a question at each weight. The weights increase."""

    weights: tuple[float, ...]
    quality: tuple[float, ...]
    cost: tuple[float, ...]
    #: mean quality of the best fixed arm
    best: float

    def weight_of(self, *, quality: float | None = None, cost: float | None = None) -> float:
        """The highest weight at which quality is still `quality` * `best`, or cost still `cost`; else the nearest."""
        values, aim = (self.cost, cost) if cost is not None else (self.quality, (quality or 0.0) * self.best)
        # If values are equal, `interp` takes the last. For an aim beyond all values, it takes the first or last weight.
        return float(np.interp(-aim, -np.minimum.accumulate(values), self.weights))


def frontier_of(
    policy: Policy, decisions: Sequence[Decision], *, settings: PolicySettings, scale: float
) -> Frontier | None:
    """Compute the frontier for the questions of these decisions; None without enough questions and learned rows.

    scale: observed cost of outcomes / their expected cost. All features must have the same length.
    """
    chosen = [decision for decision in decisions if len(decision.arms) > 1]
    if len(chosen) < LEAST or sum(policy.seen.values()) < LEAST or not serves_prices(policy):
        return None
    features, arms = np.array([decision.features for decision in chosen]), [decision.arms for decision in chosen]

    def estimates_at(weight: float) -> tuple[list[Any], list[Any]]:
        queries = [replace(decision.query, cost_weight=weight) for decision in chosen]
        outputs = outputs_of(policy, queries, features=features, arms=arms)
        drawn = draw_each(outputs, arms=arms, seeds=None, settings=settings, learned=policy.seen)
        return [output.facts for output in outputs if isinstance(output, PolicyOutput)], [draw.pmf for draw in drawn]

    estimates, _ = estimates_at(0.0)
    spread = math.fsum(max(estimate["cost"]) - min(estimate["cost"]) for estimate in estimates) / len(chosen)
    if len(estimates) < len(chosen) or not spread > 0.0:
        return None
    weights = [0.0, *(min(times / spread, MAX_WEIGHT) for times in _WEIGHTS)]
    curves: dict[str, list[float]] = {"quality": [], "cost": []}
    for weight in weights:
        estimates, pmfs = estimates_at(weight)
        for name, means in curves.items():
            sums = (math.fsum(map(mul, pmf, estimate[name])) for pmf, estimate in zip(pmfs, estimates, strict=True))
            means.append(math.fsum(sums) / len(chosen))
    by_arm: dict[str, list[float]] = {}
    for estimate, offered in zip(estimates, arms, strict=True):
        for arm, quality in zip(offered, estimate["quality"], strict=True):
            by_arm.setdefault(arm, []).append(quality)
    return Frontier(
        weights=tuple(weights),
        quality=tuple(curves["quality"]),
        cost=tuple(scale * cost for cost in curves["cost"]),
        best=max(math.fsum(qualities) / len(qualities) for qualities in by_arm.values()),
    )


def cost_scale(pairs: Sequence[tuple[Decision, Outcome]], *, terms: Mapping[str, float]) -> float:
    """Observed cost of outcomes / their expected cost; 1 with fewer than LEAST expected costs."""
    expected, observed = [], []
    for decision, outcome in pairs:
        costs = decision.facts.get("cost")
        if isinstance(costs, list) and len(costs) == len(decision.arms) > 1:
            expected.append(float(costs[decision.arms.index(decision.arm)]))
            observed.append(cost_of_terms(outcome.steps, outcome.cost, terms=terms))
    total = math.fsum(expected)
    return math.fsum(observed) / total if len(expected) >= LEAST and total > 0.0 else 1.0


def frontier_text(
    ledger: Ledger, policy: Policy, *, settings: PolicySettings, cost: Mapping[str, float], encoder_hash: str
) -> str | None:
    """The frontier of a ledger's policy as JSON; None if it cannot be computed. cost: the setting reward.cost."""
    if not serves_prices(policy):
        return None
    scale = cost_scale(ledger.newest_outcomes(limit=OUTCOMES), terms=cost)
    newest = newest_questions(ledger, limit=QUESTIONS, encoder_hash=encoder_hash)
    frontier = frontier_of(policy, newest, settings=settings, scale=scale)
    return None if frontier is None else canonical(asdict(frontier))


def read_frontier(text: str | None) -> Frontier | None:
    if text is None:
        return None
    frontier = json.loads(text)
    return Frontier(**frontier | {name: tuple(frontier[name]) for name in ("weights", "quality", "cost")})
