"""The section of the policy, and its definition with the values of other settings that it needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.router.config.section import Section, extended

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
