"""Failover: when an arm fails before its first content, or is unable to answer, the next arm answers the question.

An arm is unable if its server refuses what another model may accept (`Failure.inability`): a prompt that is too long, a
parameter or a form of message. Then at most one other arm is asked that may be able. A request that is wrong for every
arm, or that names its arm, gets its error.

One transaction stores the failed outcome and a second decision, which the outcome names in `made_by.successor`. The arm
of the second decision is chosen: it is not drawn, and the policy learns nothing from it. The decision waits in the
answer queue, so a crash loses nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ragbandit.router.config.named_sections import DEFAULT
from ragbandit.router.config.rules import RuleBook
from ragbandit.router.config.settings import BudgetSettings
from ragbandit.router.policies.draw import certain_decision, seed_of
from ragbandit.router.serving.abilities import Ability, unmet_needs, without_chat
from ragbandit.router.serving.checks.questions import RESPONSE_PREFIX, cap_budget, new_id
from ragbandit.router.storage.access.expected_dollars import ExpectedDollars
from ragbandit.shared.model_servers.failures import UNABLE, Failure, failure_of
from ragbandit.shared.types import (
    ArmName,
    Budget,
    Conversation,
    Decision,
    DecisionId,
    FailedArm,
    Json,
    Outcome,
    PinnedArm,
    TaskTurn,
)

#: seconds of the budget that must be left to ask another arm
LEAST_S: Final = 0.5


def replacement_arms(
    decision: Decision,
    *,
    conversation: Conversation,
    worker_arms: Collection[str],
    passing: Mapping[ArmName, Ability],
    attempts: int,
    rules: RuleBook,
    expected: ExpectedDollars,
) -> list[ArmName]:
    """The arms that may answer if the decision's arm fails, the policy's favourite first. Arms about which the policy
    was not asked, because a limit or a task chose the arm, come last, the cheapest first.

    conversation: as the client sent it. passing: see `passing_arms`. attempts: setting server.failover
    """
    query, failed = decision.query, decision.query.continues.failed
    by_rules = rules.permitted_arms(query, arms=worker_arms)
    if failed is not None:
        return [ArmName(arm) for arm in failed.left if arm in by_rules] if failed.attempt <= attempts else []
    is_off = attempts == 0 or not query.sent.may_fail_over
    if is_off or query.arm_by == "caller" or PinnedArm.key in decision.facts:
        return []
    loop = query.continues.loop
    permitted = loop.permitted if loop is not None and query.arm_by == "calls" else query.arms
    allowed = [ArmName(arm) for arm in permitted or worker_arms if arm != decision.arm and arm in by_rules]
    if query.conversation is not conversation:
        query = replace(query, conversation=conversation)
    lacking = unmet_needs(query, arms=allowed, passing=passing) if allowed else {}
    values = decision.pmf if decision.scores is None else decision.scores
    value_of = dict(zip(decision.arms, values, strict=True))
    lowest = min(values) - 1.0  # arms that were not offered come last
    able = [arm for arm in allowed if arm not in lacking]
    tenant = query.tenant
    return sorted(able, key=lambda arm: (-value_of.get(arm, lowest), expected.rank(arm, tenant=tenant)))


def may_hand_over(decision: Decision, outcome: Outcome) -> bool:
    """Whether another arm may be asked after this outcome: not if the request was refused, as it would be again. After
    an arm that was unable to answer, only one other arm is asked. A tool loop changes its arm only in this case.
    """
    failure = failure_of(outcome.made_by)
    if outcome.status != "failed" or failure is None:
        return False
    if failure.is_unable:
        failed = decision.query.continues.failed
        return failed is None or failed.reason != UNABLE
    return failure.kind != "refused" and decision.query.continues.loop is None


def replacement_decision(
    decision: Decision,
    outcome: Outcome,
    *,
    arms: Sequence[ArmName],
    unhealthy: Collection[ArmName],
    conversation: Conversation,
    limits: BudgetSettings,
    passing: Mapping[ArmName, Ability],
    worker_arms: Mapping[str, Mapping[str, Json]],
    secret: bytes,
) -> Decision | None:
    """The decision that replaces a failed one; None if a cap of the budget is used up, or if no arm is left.

    unhealthy: arms to try last. worker_arms: arms that workers run -> their params
    """
    budget = _budget_left(cap_budget(decision.query.budget, limits=limits), outcome=outcome)
    failure = failure_of(outcome.made_by)
    if budget is None or failure is None:
        return None
    if failure.is_unable:
        arms = _able_arms(arms, failed=decision.arm, failure=failure, passing=passing, worker_arms=worker_arms)
    ordered = sorted(arms, key=lambda arm: arm in unhealthy)
    if not ordered:
        return None
    arm, query = ordered[0], decision.query
    before, key = (
        query.continues.failed,
        DecisionId(f"{RESPONSE_PREFIX if decision.id.startswith(RESPONSE_PREFIX) else ''}{new_id()}"),
    )
    failed = FailedArm(
        first=decision.id if before is None else before.first,
        attempt=2 if before is None else before.attempt + 1,
        arm=decision.arm,
        reason=failure.reason,
        left=tuple(ordered[1:]),
    )
    continues = replace(query.continues, failed=failed, loop=None)
    query = replace(
        query, id=key, arms=(arm,), arm_by="failover", budget=budget, continues=continues, conversation=conversation
    )
    query = query if arm in passing else without_chat(query)
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
        turn_of=decision.turn_of or (decision.id if TaskTurn.key in decision.facts else None),
        arm_by="failover",
    )


def _able_arms(
    arms: Sequence[ArmName],
    *,
    failed: ArmName,
    failure: Failure,
    passing: Mapping[ArmName, Ability],
    worker_arms: Mapping[str, Mapping[str, Json]],
) -> list[ArmName]:
    """The arms with another generator than the failed arm. If the prompt was too long, only those with a longer or
    unknown context; arms with a known context come first.
    """

    def generator_of(arm: ArmName) -> object:
        params = worker_arms.get(arm, {})
        return arm if params.get("class") == "http" else params.get("generator", DEFAULT)

    others = [arm for arm in arms if generator_of(arm) != generator_of(failed)]
    if failure.inability != "context":
        return others
    windows = {arm: passing[arm][1] if arm in passing else None for arm in (*others, failed)}
    least = failure.most_tokens or windows[failed] or 0
    able = [arm for arm in others if (windows[arm] or least + 1) > least]
    return sorted(able, key=lambda arm: windows[arm] is None)


def _budget_left(budget: Budget, *, outcome: Outcome) -> Budget | None:
    """The budget minus the cost of a failed attempt; None if a cap is used up."""
    cost = outcome.cost
    tokens = cost.prompt_tokens + cost.completion_tokens
    spent = {"seconds": cost.seconds_total, "dollars": cost.charged_dollars, "tokens": tokens}
    left = {name: getattr(budget, name) - used for name, used in spent.items() if getattr(budget, name) is not None}
    if left.get("seconds", LEAST_S) < LEAST_S or left.get("dollars", 1.0) <= 0.0 or left.get("tokens", 1) < 1:
        return None
    return replace(budget, **left)
