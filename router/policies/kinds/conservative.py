"""A policy that must not fall behind an incumbent arm: with high probability, at every moment from the 100th question
on, the reward collected is at least (1 - harm) times what always playing the incumbent would have collected.

Conservative bandits (Wu, Shariff, Lattimore, Szepesvari 2016; with features: Kazerouni et al. 2017) play the incumbent
until what was earned pays for the worst that the next draw may do. Stage-wise ones (Khezeli and Bitar 2020; Moradipari
et al. 2020) ask of every single decision that it keeps (1 - harm) of the incumbent's reward. Here:

- The incumbent is mixed in (restraint.py), instead of played in the place of the policy: propensities stay exact, and
  an arm that the policy may draw keeps a chance.
- Feedback comes late, and many decisions are out before the first of them is learned. So the condition is on one
  decision, and counts no others. With slack s, the reward that may still be lost by what the ledger tells, and
  theta = ln(1 / CONFIDENCE) / s, a decision must keep

      E exp(theta * (loss - credit)) <= 1,      credit = half of its own allowance, harm * the incumbent's mean.

  Then exp(theta * sum of (loss - credit)) is a supermartingale, and by Ville's inequality the decisions of one version
  of the policy, however many there are and however late their feedback is, lose more than s beyond their credit with
  probability CONFIDENCE at most. As s shrinks theta grows, and the share of the policy goes to 0.
- The expected loss is the incumbent's score less the arm's; the rewards' variance is that of the ledger's rows, for
  either arm. So E exp(theta * loss) = exp(theta * (score_incumbent - score_arm) + theta^2 * variance), a Gaussian's.
  A policy that knows its posterior (`deviations`) has half a deviation of the difference taken off an arm's score: an
  arm that nobody tried is not as good as its prior mean.
  A policy without scores has the arms' mean rewards in their place, an arm never learned having 0.
- What was lost is estimated without the policy (shortfall.py): scores that are wrong cost slack, and the slack holds
  the policy back.

It is a bound on what is learned: rewards that nobody tells do not count. Where rewards may be negative, harm is a share
of the size of the incumbent's mean reward.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Final

import numpy as np
from pydantic import Field

from ragbandit.router.policies.base import (
    Arrays,
    Facts,
    PolicyOutput,
    Restraint,
    is_lean,
    own_weight,
    restored_counts,
    serves_prices,
)
from ragbandit.router.policies.kinds.shortfall import Shortfall
from ragbandit.router.policies.kinds.wrapping import WrappingParams, WrappingPolicy, own_arrays
from ragbandit.router.policies.params import ArmParam, read_params
from ragbandit.shared.errors import PolicyFault
from ragbandit.shared.types import ArmName, FeatureRows, Json, Matrix, Query, Update

#: chance at most that the decisions of one version lose more than the slack
CONFIDENCE: Final = 0.05
#: share of a decision's allowance that it may count on before it is learned
_CREDIT: Final = 0.5
#: posterior standard deviations that an arm's difference from the incumbent is taken lower by
_DOUBT: Final = 0.5
#: exponents end here
_MOST_EXPONENT: Final = 50.0
#: rewards are below this: sums of their squares stay floats
_MOST_REWARD: Final = 1e100


@dataclass(frozen=True, kw_only=True, slots=True)
class ConservativeParams(WrappingParams):
    """Settings of conservative."""

    #: the arm that the policy must not do worse than
    incumbent: ArmParam
    #: share of the incumbent's reward that may be lost
    harm: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] = 0.05
    #: of the form of its state, recorded so that a ledger of before is learned again; not to be set
    revision: Annotated[int, Field(ge=2, le=2)] = 2

    arms_named: ClassVar[tuple[str, ...]] = ("incumbent",)


class ConservativePolicy(WrappingPolicy):
    """The policy of your choice, held back to the incumbent while it may cost more than `harm` of its reward."""

    algorithm: ClassVar[str] = "conservative"
    refuses: ClassVar[Mapping[str, tuple[str, str]]] = {"conservative": ("it cannot hold itself", "for example mba")}

    def __init__(self, **params: Json) -> None:
        settings = read_params(ConservativeParams, given=params)
        super().__init__(settings)
        self.incumbent, self.harm, self._revision = settings.incumbent, settings.harm, settings.revision
        self.lean: bool = is_lean(self.inner)
        self.shortfall = Shortfall(self.incumbent, harm=self.harm)

    @property
    def params(self) -> Mapping[str, Json]:
        """The settings, with all params of the policy inside."""
        own = {"incumbent": self.incumbent, "harm": self.harm, "revision": self._revision}
        return {**own, **self.inner_params}

    @property
    def serves_prices(self) -> bool:
        """Whether the policy inside does."""
        return serves_prices(self.inner)

    @property
    def seen(self) -> Mapping[ArmName, int]:
        """Those of the policy inside."""
        return self.inner.seen

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """The policy's output, and the restraint that the draw puts on it."""
        outputs = self.inner.pmf(queries, features=features, arms=arms)
        return [
            replace(output, restraint=self._restraint(output, arms=offered, weight=own_weight(query)))
            for query, output, offered in zip(queries, outputs, arms, strict=True)
        ]

    def _restraint(self, output: PolicyOutput, *, arms: Sequence[ArmName], weight: float | None) -> Restraint:
        tally, slack = self.shortfall, self.shortfall.slack
        values = output.scores if output.scores is not None else [tally.mean(arm) for arm in arms]
        if not tally.known or slack <= 0.0 or self.incumbent not in arms:
            reason = "nothing may be lost now" if tally.known else "too few outcomes of it are learned"
            risks = tuple(float(arm != self.incumbent) for arm in arms)
            return Restraint(arm=self.incumbent, risks=risks, allowance=0.0, slack=slack, reason=reason)
        if output.deviations is not None:
            values = _doubted(values, output.deviations, incumbent=list(arms).index(self.incumbent))
        theta = math.log(1.0 / CONFIDENCE) / slack
        usual, spread = values[list(arms).index(self.incumbent)], theta * theta * tally.variance
        risks = tuple(
            0.0 if arm == self.incumbent else _exponential(theta * (usual - value) + spread)
            for arm, value in zip(arms, values, strict=True)
        )
        allowance = _exponential(theta * _CREDIT * tally.allowance_at(weight))
        reason = "another arm may cost too much"
        return Restraint(arm=self.incumbent, risks=risks, allowance=allowance, slack=slack, reason=reason)

    def learn(self, update: Update) -> None:
        """Let the policy learn, then the shortfall. PolicyFault and no change if either cannot use the row."""
        if not abs(update.reward.value) < _MOST_REWARD:
            raise PolicyFault(f"the reward is {update.reward.value!r}, no number or too large to be squared")
        self.inner.learn(update)
        self.shortfall.learn(update)

    def restart(self, arm: ArmName) -> None:
        """The policy inside begins the arm anew; of the incumbent what it earns is not known any more."""
        super().restart(arm)
        if arm == self.incumbent:
            self.shortfall.restart()

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The inner policy's state, its arrays under "inner/", and the shortfall's numbers."""
        nested, facts = self.inner_state()
        return nested | self.shortfall.state(), {
            "updates": facts["updates"],
            "seen": facts["seen"],
            "inner": facts,
            **({"incumbent_before": self.shortfall.before} if self.shortfall.before else {}),
        }

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over a saved state; the inner policy checks its own part."""
        self.shortfall.restore(own_arrays(arrays), seen=restored_counts(facts))
        self.shortfall.before = facts.get("incumbent_before", 0)
        self.restore_inner(arrays, facts["inner"])


def _doubted(values: Sequence[float], deviations: Matrix, *, incumbent: int) -> list[float]:
    """Each arm's value, less _DOUBT standard deviations of its difference from the incumbent's."""
    apart = deviations - deviations[incumbent]
    doubts = np.sqrt(np.einsum("kp,kp->k", apart, apart) / apart.shape[1]).tolist()
    return [value - _DOUBT * doubt for value, doubt in zip(values, doubts, strict=True)]


def _exponential(exponent: float) -> float:
    """exp(exponent) - 1, and no overflow."""
    return math.expm1(min(exponent, _MOST_EXPONENT))
