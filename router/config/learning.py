"""Settings of what is learned: rewards, weights of judgements, and when decisions are closed."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ragbandit.router.config.sections import Count, Seconds, Section
from ragbandit.shared.formats import known_choices
from ragbandit.shared.types import MAX_WEIGHT, Aggregate

#: lambda: what one unit of cost is worth in right answers
CostWeight = Annotated[float, Field(ge=0, le=MAX_WEIGHT)]


class RewardSettings(Section):
    """reward = clip(quality - weight * cost). `cost` maps cost terms to their price per unit."""

    #: how a label becomes quality
    quality: Literal["exact_match", "f1", "containment"] = "f1"
    #: lambda: what one unit of cost is worth in right answers; a right answer is worth 1 / weight units of cost.
    #: Changing it begins no new ledger (docs/learning.md)
    weight: Annotated[float, Field(ge=0)] = 0.05
    #: price per unit of each cost term that counts: steps, dollars, seconds_total, prompt_tokens and so on
    cost: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=lambda: {"steps": 1.0})
    #: rewards below are clipped to it
    minimum: float = -1.0
    #: rewards above are clipped to it
    maximum: float = 1.0
    #: a function that scores answers, "package.module:function"; see docs/feedback.md. None: nothing is checked
    check: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")] | None = None
    #: what it takes beside answer, question and sources; JSON values
    check_params: dict[str, Any] = Field(default_factory=dict)
    #: the longest that it may take for one answer
    check_s: Seconds = 10.0

    def at(self, cost_weight: float | None) -> "RewardSettings":
        """These settings with another weight of cost; None: with their own."""
        return self if cost_weight is None else self.model_copy(update={"weight": cost_weight})

    @model_validator(mode="after")
    def _ordered(self) -> "RewardSettings":
        if self.minimum >= self.maximum:
            raise ValueError("minimum must be below maximum")
        from ragbandit.shared.types import COST_TERMS  # at the top this import would go round

        unknown = sorted(set(self.cost) - set(COST_TERMS))
        if unknown:
            raise ValueError(
                f"reward.cost: unknown cost term {unknown[0]!r}; {known_choices(COST_TERMS, given=unknown[0])}"
            )
        return self


#: a source of feedback, as `learning.sources` names it
SourceName = Annotated[str, Field(pattern=r"^(key|role|tenant|rater|import):.{1,80}$")]
#: how many rows of the ledger one judgement counts as
Weight = Annotated[float, Field(ge=0, le=1e6)]


class WeightSettings(Section):
    """How many rows a judgement counts as when a policy learns it, by who judged; 0: counted, not learned."""

    #: gold answers, raw rewards and checks by code
    label: Weight = 1.0
    #: people's ratings
    human: Weight = 1.0
    #: a model's scores, as long as they are not calibrated (see `calibrate`); 0 also afterwards
    judge: Weight = 0.3
    #: what users did with the answer (`feedback_events`)
    event: Weight = 0.1


class InfluenceSettings(Section):
    """How much of what is learned may come from one source of feedback; what is beyond waits to be released."""

    #: hold feedback beyond these shares; false: learn all of it
    enabled: bool = True
    #: of the weight in the window, the part that one API key may have
    key_share: Annotated[float, Field(gt=0, le=1)] = 0.05
    #: one rater of a key
    rater_share: Annotated[float, Field(gt=0, le=1)] = 0.05
    #: all keys of one tenant together
    tenant_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    #: judged updates that the window holds, the newest of the ledger
    window: Annotated[int, Field(ge=100, le=100_000)] = 1000
    #: days after which an update no longer counts in it
    days: Annotated[float, Field(gt=0, le=365)] = 7.0
    #: judgements that a source may have in the window whatever its share
    floor: Annotated[int, Field(ge=1)] = 20
    #: sources that are never held, named as in learning.sources
    trusted: list[SourceName] = Field(default_factory=lambda: ["role:operator", "role:admin"], max_length=200)


class LearningSettings(Section):
    """Times of learning: when decisions are learned, and how often routers get a new snapshot."""

    #: 0: the first feedback closes a decision; above 0: feedback collects for that long after the decision
    wait_s: Annotated[float, Field(ge=0)] = 0.0
    #: how the feedback of one decision becomes one reward; above 0 s of wait_s only
    aggregate: Aggregate = "first"
    #: rows that one judgement counts as, by who judged: the most trusted of those in time makes the reward
    weights: WeightSettings = WeightSettings()
    #: factor on the weight of a source's judgements, by "key:ID", "role:NAME", "tenant:NAME", "rater:NAME" or
    #: "import:NAME"; * at the end stands for all that begin so. 0: stored, not learned. docs/feedback.md says more
    sources: dict[SourceName, Weight] = Field(default_factory=dict, max_length=1000)
    influence: InfluenceSettings = InfluenceSettings()
    #: learn a model's scores by what people say of the same answers, from 50 decisions on that have both
    calibrate: bool = True
    #: reward value where the time ran out without feedback; None learns nothing from such a decision
    default_reward: float | None = None
    #: after that long a decision without feedback or outcome is closed (with wait_s > 0: without outcome)
    expire_s: Seconds = 7 * 86400.0
    #: most decisions closed in one transaction
    batch: Annotated[int, Field(ge=1, le=5000)] = 256
    #: least time between two snapshots, and so between two rounds of learning
    snapshot_interval_s: Annotated[float, Field(ge=0, le=60)] = 0.05
    #: newest snapshots whose files are kept, beside a few older ones; the ledger can make any of them again
    snapshots_kept: Count = 20
    #: a learner that is not heard of for that long has lost its ledger to the next one
    lease_s: Annotated[float, Field(ge=1)] = 10.0
