"""Sections of what is learned: the policy, the reward and learning."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.router.config.section import Count, Seconds, Section, extended, one_of
from ragbandit.shared.types import COST_TERMS, MAX_WEIGHT, Aggregate

#: default sum of the floors of all offered arms; a floor is the smallest probability of an arm
FLOORS: Final = 0.04
#: least share of an arm: with a smaller probability it would be drawn too rarely to learn anything about it. The safe
#: start gives an arm 0 or at least this share, and configured floors are 0 or at least this
LEAST_SHARE: Final = 0.005


class HoldbackSettings(Section):
    """A control group: a share of the questions goes to one arm. `ragbandit report` compares the policy with it.

    Excluded are questions with a forced or pinned arm, turns that keep the arm of their session, and questions that
    offer only one arm, or not this arm.
    """

    #: the arm that would answer without a router; if policy.incumbent is set, it must be the same arm
    arm: Annotated[str, Field(min_length=1)]
    #: share of the questions, in addition to the share that the policy gives to the arm
    share: Annotated[float, Field(gt=0, le=0.5)] = 0.02
    #: number of learned answers of the arm after which the share falls like 1 / learned answers; None: it stays
    until: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    #: the share to which it falls, at most `share`
    then: Annotated[float, Field(gt=0, le=0.5)] | None = None

    @model_validator(mode="after")
    def _check_fall(self) -> "HoldbackSettings":
        if (self.until is None) != (self.then is None):
            raise ValueError("policy.holdback: `until` and `then` go together; set both, or leave out both")
        if self.then is not None and self.then > self.share:
            raise ValueError(f"policy.holdback.then: it must be at most the share, {self.share:g}")
        return self


@extended("policy")
class PolicySettings(Section):
    """The policy that chooses the arm, and the ledger that it learns from."""

    #: name of a registered policy (docs/policies.md), or your own class as "package.module:Class"
    name: str = "mba"
    #: name of the ledger; a new name starts a new ledger from all decisions in the store
    label: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$")] = "main"
    #: params of the policy (docs/policy-settings.md); omitted ones have their defaults
    params: dict[str, Any] = Field(default_factory=dict)
    #: smallest probability of every offered arm, 0 or at least 0.005; None: 0.04 divided by the number of offered arms.
    #: With an incumbent, a probability below 0.005 is rounded at random to 0.005 or 0, so that its mean stays the same
    floor: Annotated[float, Field(ge=0, le=0.5)] | None = None
    #: smallest probability of an arm until the policy has learned cold_start_outcomes outcomes of it, at least 0.005;
    #: 0 turns it off
    cold_start_floor: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    #: number of learned outcomes of an arm after which cold_start_floor no longer applies to it
    cold_start_outcomes: Annotated[int, Field(ge=0)] = 30
    #: arm used if the policy breaks its contract, or if no learned policy is loaded yet; None: single_step. If this arm
    #: is not offered, the first offered arm is used
    fallback: str | None = None
    #: safe start: the arm that answered before RagBandit. The policy deviates from it only so far that, from the 100th
    #: question on, the total reward is at least (1 - harm) times what this arm would have earned (measured, not
    #: proved). None: no safe start
    incumbent: str | None = None
    #: largest share of the incumbent's reward that may be lost, above 0
    harm: Annotated[float, Field(gt=0, le=1)] = 0.05
    #: control group: a share of the questions goes to the arm that would answer without a router; None: no group
    holdback: HoldbackSettings | None = None

    def floor_of(self, arms: int) -> float:
        return FLOORS / arms if self.floor is None else self.floor


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyDefinition:
    """Definition of the policy: its section, and values of other settings that its params need."""

    settings: PolicySettings
    schema: ContextSchema  #: the setting `context`
    facts: Mapping[str, Mapping[str, Any]]  #: arm -> its `facts`
    weight: float  #: the setting `reward.weight`


#: lambda, the cost weight: value of one unit of cost, in right answers
CostWeight = Annotated[float, Field(ge=0, le=MAX_WEIGHT)]


class RewardSettings(Section):
    """Reward: quality - weight * cost, within [minimum, maximum]. `cost` has the price per unit of each cost term."""

    #: how a label becomes quality (docs/feedback.md)
    quality: Literal["exact_match", "f1", "containment"] = "f1"
    #: lambda: value of one unit of cost, in right answers; a right answer is worth 1 / weight units of cost. The ledger
    #: is kept if you change it (docs/learning.md)
    weight: Annotated[float, Field(ge=0)] = 0.05
    #: cost term -> price per unit: steps, dollars, seconds_total, prompt_tokens and so on; terms not listed cost 0
    cost: dict[Annotated[str, one_of(COST_TERMS)], Annotated[float, Field(ge=0)]] = Field(
        default_factory=lambda: {"steps": 1.0}
    )
    #: lower rewards are raised to this value
    minimum: float = -1.0
    #: higher rewards are lowered to this value
    maximum: float = 1.0
    #: your function that scores answers, as "package.module:function", for example ragbandit.checks:cites_source
    #: (docs/feedback.md). None: no check by code
    check: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")] | None = None
    #: arguments of `reward.check` in addition to answer, question and sources; JSON values
    check_params: dict[str, Any] = Field(default_factory=dict)
    #: time limit of `reward.check` per answer, seconds
    check_s: Seconds = 10.0

    def at(self, cost_weight: float | None) -> "RewardSettings":
        return self if cost_weight is None else self.model_copy(update={"weight": cost_weight})

    @model_validator(mode="after")
    def _check_bounds(self) -> "RewardSettings":
        if self.minimum >= self.maximum:
            raise ValueError("minimum must be below maximum")
        return self


SourceName = Annotated[str, Field(pattern=r"^(key|role|tenant|rater|import):.{1,80}$")]
#: weight of one judgement in learning; 1 counts as one learned decision
Weight = Annotated[float, Field(ge=0, le=1e6)]


class WeightSettings(Section):
    """Weight of a judgement, by rater class. 1 counts as one learned decision; with 0 it is stored, but not learned.

    mba and linucb reduce the weight of judge scores and events further, by comparing them with ratings of people.
    """

    #: gold answers, raw rewards and checks by code
    label: Weight = 1.0
    #: people's ratings
    human: Weight = 1.0
    #: a model's scores
    judge: Weight = 0.3
    #: user actions (`feedback_events`)
    event: Weight = 0.1


@extended("learning")
class LearningSettings(Section):
    """When decisions are learned, how much their feedback counts, and how often routers get a new snapshot."""

    #: seconds for which the feedback of a decision is collected; 0: the first feedback is learned at once
    wait_s: Annotated[float, Field(ge=0)] = 0.0
    #: how several judgements of one decision become one reward; used for tasks, and if wait_s is above 0
    aggregate: Aggregate = "first"
    #: weight of a judgement, by rater class. If classes judge one decision, the most trusted class makes the reward
    weights: WeightSettings = WeightSettings()
    #: feedback source -> factor on its weight; with 0 feedback is stored, but not learned (docs/feedback.md). Sources:
    #: "key:ID", "role:NAME", "tenant:NAME", "rater:NAME", "import:NAME"; NAME* matches all names with the prefix
    sources: dict[SourceName, Weight] = Field(default_factory=dict, max_length=1000)
    #: maximum judgements of one named rater learned per day (UTC); further ones are only stored. 0: no limit
    rater_per_day: Annotated[int, Field(ge=0)] = 500
    #: decisions put into the label queue per day; 0 turns it off (docs/feedback.md)
    labels_per_day: Annotated[int, Field(ge=0, le=100_000)] = 0
    #: reward of a decision that got no feedback in time; None: such a decision is not learned
    default_reward: float | None = None
    #: seconds after wait_s at which a decision without feedback or without outcome is closed. If wait_s is above 0,
    #: only decisions without outcome stay open until then
    expire_s: Seconds = 7 * 86400.0
    #: maximum number of decisions closed in one transaction
    batch: Annotated[int, Field(ge=1, le=5000)] = 256
    #: shortest time between two snapshots, and so between two rounds of learning, seconds
    snapshot_interval_s: Annotated[float, Field(ge=0, le=60)] = 0.05
    #: number of newest snapshots whose files are kept, besides a few older ones; the others can be made from the ledger
    snapshots_kept: Count = 20
    #: lease timeout, seconds: if a learner is silent for this long, another one takes over
    lease_s: Annotated[float, Field(ge=1)] = 10.0
