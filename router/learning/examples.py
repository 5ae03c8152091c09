"""Training examples: a decision with its outcome and feedback becomes an update, is closed, or must wait."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from ragbandit.router.config.learning import LearningSettings, RewardSettings
from ragbandit.router.learning.adjustments import AdjustedRow, Adjustment, Basis, Example
from ragbandit.router.learning.reward import aggregate, default_reward, explicit_reward, quality_of
from ragbandit.router.learning.sources import Judgements, judgements_of
from ragbandit.router.policies.base import Policy, is_lean, reads_draws, schema_of
from ragbandit.router.storage.ledgers.closing import ClosingRule
from ragbandit.router.storage.ledgers.ledger import Ledger, lean_updates
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.model_servers.failures import failure_of
from ragbandit.shared.types import (
    ERASED,
    IMPORTED,
    SURROGATES,
    ArmBy,
    ArmName,
    ClosedDecision,
    Decision,
    Feedback,
    FeedbackId,
    JoinedDecision,
    Outcome,
    PolicyLabel,
    Reward,
    Update,
    is_released,
    is_textless,
)

#: what chose the arm -> why the decision is closed without being learned. Callers or the length of a session select the
#: questions of such decisions, so that learning them would make an arm look worse or better than it is
UNLEARNED: Final[Mapping[ArmBy | Literal["budget"] | None, str]] = {
    "budget": "a spent budget chose the arm",
    "caller": "the caller chose the arm",
    "calls": "the caller chose the arm",
    "failover": "it answered in place of an arm that failed",
    "limit": "a limit of its session or task chose the arm",
}


def closing_rule(settings: LearningSettings) -> ClosingRule:
    return ClosingRule(wait_s=settings.wait_s, expire_s=settings.expire_s)


class Joining(Adjustment):
    """Lets a decision wait until its time, then makes its training example."""

    def __init__(self, learning: LearningSettings, *, reward: RewardSettings, has_texts: bool) -> None:
        self.learning, self.reward, self._has_texts = learning, reward, has_texts
        self._rule = closing_rule(learning)

    def adjust(self, row: AdjustedRow, *, basis: Basis) -> AdjustedRow | ClosedDecision | None:
        joined, key = row.joined, row.joined.decision.id
        if basis.needs_features and joined.decision.encoder_hash != basis.encoder_hash:
            return ClosedDecision(decision_id=key, state="closed", reason="made with another encoder")
        if not self._rule.is_closable(joined, now=basis.now):
            return None
        usable = self._rule.usable_feedback(joined)
        if joined.outcome is not None and is_textless(joined.outcome):  # a label is compared with the answer's text
            usable = tuple(item for item in usable if item.kind != "label")
        reason = _reason_not_to_learn(joined, usable=usable, default=self.learning.default_reward)
        if reason is not None:
            return ClosedDecision(decision_id=key, state="closed", reason=reason)
        try:
            example = self._example(row, usable=usable)
            _validate(joined, needs_features=basis.needs_features, width=basis.width, texts=self._has_texts)
        except InvalidInput as error:
            return ClosedDecision(decision_id=key, state="quarantined", reason=error.message, field=error.field)
        return replace(row, example=example)

    def _example(self, row: AdjustedRow, *, usable: tuple[Feedback, ...]) -> Example:
        joined, learning = row.joined, self.learning
        in_time = usable + tuple(item for item in joined.feedback if item.value is None) + row.left_out
        if not usable:
            assert learning.default_reward is not None
            default = default_reward(learning.default_reward, outcome=joined.outcome, settings=self.reward)
            return Example(reward=default, feedback=(), in_time=in_time)
        priced, judgements = self.reward.at(joined.decision.cost_weight), judgements_of(usable)
        reward = _judged_reward(
            judgements, outcome=joined.outcome, settings=priced, learning=learning, factors=row.factors
        )
        return Example(reward=reward, feedback=judgements.used, in_time=in_time)


def _reason_not_to_learn(joined: JoinedDecision, *, usable: Sequence[Feedback], default: float | None) -> str | None:
    """Why a decision is closed without being learned; None if it can be learned. default: `learning.default_reward`."""
    by = "budget" if joined.decision.query.terms.is_spent else joined.decision.arm_by
    if by in UNLEARNED:
        return UNLEARNED[by]
    outcome = joined.outcome
    failure = None if outcome is None else failure_of(outcome.made_by)
    if failure is not None and failure.is_unable:  # such a failure shows nothing about the quality of answers
        return "the arm was unable to answer such a request"
    if not usable and outcome is None and any(item.value is not None for item in joined.feedback):
        return "feedback without outcome"
    if not usable and outcome is not None and is_textless(outcome):
        return "the answer has no text, and nobody rated it"
    return "no feedback in time" if not usable and default is None else None


def _judged_reward(
    judgements: Judgements,
    *,
    outcome: Outcome | None,
    settings: RewardSettings,
    learning: LearningSettings,
    factors: Mapping[str, float],
) -> Reward:
    judged_by, used = judgements.judged_by, judgements.used
    weight = getattr(learning.weights, judged_by)
    used_factors = [factors.get(item.id, 1.0) for item in used]
    if any(factor != 1.0 for factor in used_factors):
        weight *= math.fsum(used_factors) / len(used_factors)
    reward = explicit_reward(used, outcome=outcome, settings=settings, method=learning.aggregate)
    surrogates = {}
    for source in SURROGATES:
        if source in judgements.by_class and judged_by not in SURROGATES:
            items = judgements.by_class[source]
            qualities = [quality_of(item, outcome=outcome, measure=settings.quality) for item in items]
            surrogates[source] = aggregate(qualities, method=learning.aggregate)
    return replace(reward, judged_by=judged_by, sample_weight=weight, surrogates=surrogates)


def _validate(joined: JoinedDecision, *, needs_features: bool, width: int | None, texts: bool) -> None:
    """Raise InvalidInput if no policy may learn the decision. texts: whether the store keeps texts."""
    decision = joined.decision
    if not (math.isfinite(decision.propensity) and 0.0 < decision.propensity <= 1.0):
        raise InvalidInput(f"propensity {decision.propensity} is outside (0, 1]", field="propensity")
    if decision.arm not in decision.arms:
        raise InvalidInput(f"arm {decision.arm!r} is not among {decision.arms}", field="arm")
    if texts and not decision.query.text.strip():
        raise InvalidInput("the question has no text", field="text")
    if needs_features and (decision.features is None or not np.isfinite(decision.features).all()):
        raise InvalidInput("features are missing or not finite", field="features")
    if needs_features and width is not None and decision.features is not None and decision.features.size != width:
        raise InvalidInput(f"{decision.features.size} features, earlier rows have {width}", field="features")


def make_update(
    decision: Decision,
    reward: Reward,
    *,
    label: PolicyLabel,
    seq: int,
    now: float,
    feedback_ids: tuple[FeedbackId, ...] = (),
    decided: int | None = None,
    restarts: tuple[ArmName, ...] = (),
) -> Update:
    return Update(
        policy=label,
        seq=seq,
        decision_id=decision.id,
        query=decision.served,
        arm=decision.arm,
        arms=decision.arms,
        pmf=decision.pmf,
        scores=decision.scores,
        propensity=decision.propensity,
        reward=reward,
        feedback_ids=feedback_ids,
        features=decision.features,
        made_at=now,
        imported=IMPORTED in decision.facts,
        decided=decided,
        released=is_released(decision.facts),
        restarts=restarts,
    )


def updates_to_learn(ledger: Ledger, *, policy: Policy, after: int, upto: int | None = None) -> Iterator[Update]:
    """The updates with seq > after (and <= upto) in order, with the fields that this policy learns from."""
    if not is_lean(policy):
        return ledger.read(after=after, upto=upto)
    return lean_updates(ledger, after=after, upto=upto, context=bool(schema_of(policy)), draws=reads_draws(policy))


def is_erased_for(policy: Policy, decision: Decision) -> bool:
    """Whether an erasure removed data of the decision that this policy learns from."""
    erased = decision.facts.get(ERASED)
    features_gone = erased == "texts and features" and "features" in policy.needs
    reads = "text" in policy.needs or bool(schema_of(policy))
    return features_gone or (erased is not None and reads)
