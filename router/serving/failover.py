"""Failover: when an arm fails before its first content, the next arm answers the question.

One transaction stores the failed outcome and a second decision, which the outcome names in `made_by.successor`. The arm
of the second decision is forced: it is not drawn, and the policy learns nothing from it. The decision waits in the
answer queue, so a crash loses nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ragbandit.router.config.settings import BudgetSettings
from ragbandit.router.policies.draw import certain_decision, seed_of
from ragbandit.router.serving.checks.questions import capped, new_id
from ragbandit.router.serving.deciding.steps.needs import Ability, as_text, lacks_of
from ragbandit.shared.model_servers.failures import FAILOVER, failure_of, link_of
from ragbandit.shared.types import ArmName, Budget, Decision, DecisionId, Json, Outcome, PinnedArm

#: seconds of the budget that must be left to ask another arm
LEAST_S: Final = 0.5
_PREFIX: Final = "resp_"


def other_arms(
    decision: Decision,
    *,
    chat: Mapping[str, Json],
    worker_arms: Collection[str],
    passing: Mapping[ArmName, Ability],
    attempts: int,
) -> list[ArmName]:
    """The arms that may answer if the decision's arm fails, the policy's favourite first.

    chat: the chat request. passing: arms that pass chats on, see `passing_arms`. attempts: setting server.failover
    """
    query, link = decision.query, link_of(decision.query.request)
    if link:
        if link["attempt"] > attempts:
            return []
        return [ArmName(arm) for arm in link["left"] if arm in worker_arms]
    is_off = attempts == 0 or query.request.get(FAILOVER) is False
    if is_off or query.forced or PinnedArm.key in decision.facts:
        return []
    allowed = [ArmName(arm) for arm in query.arms or worker_arms if arm != decision.arm]
    lacking = lacks_of(replace(query, chat=chat), arms=allowed, passing=passing) if allowed else {}
    values = decision.pmf if decision.scores is None else decision.scores
    value_of = dict(zip(decision.arms, values, strict=True))
    lowest = min(values) - 1.0  # arms that were not offered come last
    return sorted((arm for arm in allowed if arm not in lacking), key=lambda arm: -value_of.get(arm, lowest))


def may_hand_over(outcome: Outcome) -> bool:
    """Whether another arm may be asked after this outcome: not if the request was refused, as it would be again."""
    failure = failure_of(outcome.made_by)
    return outcome.status == "failed" and failure is not None and failure.kind != "refused"


def next_decision(
    decision: Decision,
    outcome: Outcome,
    *,
    arms: Sequence[ArmName],
    unhealthy: Collection[ArmName],
    chat: Mapping[str, Json],
    limits: BudgetSettings,
    passing: Mapping[ArmName, Ability],
    secret: bytes,
) -> Decision | None:
    """The decision that replaces a failed one; None if no time, money or arm is left. unhealthy: arms to try last."""
    budget = _budget_left(capped(decision.query.budget, limits=limits), outcome=outcome)
    ordered = sorted(arms, key=lambda arm: arm in unhealthy)
    failure = failure_of(outcome.made_by)
    if budget is None or not ordered or failure is None:
        return None
    arm, query = ordered[0], decision.query
    link = link_of(query.request)
    key = DecisionId(f"{_PREFIX if decision.id.startswith(_PREFIX) else ''}{new_id()}")
    link = {
        "first": link.get("first", decision.id),
        "attempt": link.get("attempt", 1) + 1,
        "arm": decision.arm,
        "reason": failure.kind,
        "left": list(ordered[1:]),
    }
    request = {**query.request, FAILOVER: link}
    query = replace(query, id=key, arms=(arm,), forced=True, budget=budget, request=request, chat=chat)
    query = query if arm in passing else as_text(query)
    seed = seed_of(key, secret=secret)
    return replace(
        certain_decision(decision, arm=arm),
        id=key,
        query=query,
        seed=seed,
        scores=None,
        facts={},
        fault=None,
        made_at=outcome.made_at,
    )


def _budget_left(budget: Budget, *, outcome: Outcome) -> Budget | None:
    """The budget minus the cost of a failed attempt; None if a cap is used up."""
    cost = outcome.cost
    tokens = cost.prompt_tokens + cost.completion_tokens
    spent = {"seconds": cost.seconds_total, "dollars": cost.dollars, "tokens": tokens}
    left = {name: getattr(budget, name) - used for name, used in spent.items() if getattr(budget, name) is not None}
    if left.get("seconds", LEAST_S) < LEAST_S or left.get("dollars", 1.0) <= 0.0 or left.get("tokens", 1) < 1:
        return None
    return replace(budget, **left)
