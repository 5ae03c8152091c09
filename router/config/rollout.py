"""Settings of rollouts: how a candidate version is judged, and how it moves on."""

from typing import Annotated

from pydantic import Field, model_validator

from ragbandit.router.config.sections import Count, Seconds, Section


class GuardrailSettings(Section):
    """How much worse than the champion's a candidate's answers may be in what is not the reward."""

    #: share of failed and cancelled answers that a candidate may have more; 0.01 is one point
    failures: Annotated[float, Field(gt=0, le=1)] = 0.01
    #: how much longer the slowest twentieth of its answers may take: 0.2 is 20 % above the champion's 95th percentile
    latency: Annotated[float, Field(gt=0, le=10)] = 0.2
    #: how much more an answer may cost, in the terms of `reward.cost`: 0.1 is 10 % above the champion's mean
    cost: Annotated[float, Field(gt=0, le=10)] = 0.1
    #: true: a step and a promotion need the proof (an upper bound) that a guardrail is kept; false: the estimate within
    #: the margin, and no proof of the contrary, is enough. The proof of one point takes thousands of answers
    proven: bool = False


class RolloutSettings(Section):
    """How versions of the policy are judged, and how they move on."""

    #: shares of a candidate's pmf in what is served, rising; it is promoted from the last one
    steps: Annotated[list[Annotated[float, Field(gt=0, le=0.5)]], Field(min_length=1, max_length=10)] = Field(
        default_factory=lambda: [0.05, 0.25, 0.5]
    )
    #: chance that a candidate which is not better by `margin` is promoted, however often one looks
    alpha: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    #: chance that a candidate which is not worse than `harm` is rolled back for its reward, in each state that it is in
    rollback_alpha: Annotated[float, Field(gt=0, le=0.3)] = 0.1
    #: reward by which a candidate must be better than the champion
    margin: Annotated[float, Field(ge=0)] = 0.0
    #: reward by which a candidate may be worse before it is rolled back; 0: rolled back as soon as it is surely worse
    harm: Annotated[float, Field(ge=0)] = 0.0
    #: effective rows of the candidate that a step needs
    rows_per_step: Count = 200
    #: least time in a state before it moves on
    seconds_per_step: Annotated[float, Field(ge=0)] = 3600.0
    #: a canary that neither wins nor loses for that long goes back to shadow
    max_age_s: Seconds = 14 * 86400.0
    guardrails: GuardrailSettings = GuardrailSettings()
    #: true: a version in shadow becomes a canary by itself as soon as the evidence allows it; false: a person does that
    enter_canary: bool = False
    #: newest answers of each side that the rule of sudden failures looks at, and the least number of the candidate's
    #: before it says anything
    failure_window: Annotated[int, Field(ge=5, le=1000)] = 20
    #: candidates that may be in shadow at once; each costs its pmf for every decision, and a ledger
    shadows: Annotated[int, Field(ge=1, le=16)] = 4
    #: how often versions are looked at
    interval_s: Seconds = 5.0
    #: a verdict like the one before is kept again after that long
    verdict_every_s: Seconds = 300.0
    #: a candidate that takes longer for a batch of pmfs is left out of it, and is no canary until it is faster
    time_limit_s: Annotated[float, Field(gt=0, le=10)] = 0.05

    @model_validator(mode="after")
    def _rising(self) -> "RolloutSettings":
        if any(later <= earlier for earlier, later in zip(self.steps, self.steps[1:], strict=False)):
            raise ValueError("steps must rise, as [0.05, 0.25, 0.5]")
        return self
