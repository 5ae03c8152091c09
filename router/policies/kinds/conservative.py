"""A policy held back to an incumbent arm: from the 100th question on the reward collected is always at least
(1 - harm) times the reward of playing only the incumbent.

Conservative bandits (Wu, Shariff, Lattimore, Szepesvari 2016; with features: Kazerouni et al. 2017) play the incumbent
until the surplus pays for the worst next draw. Stage-wise ones (Khezeli and Bitar 2020; Moradipari et al. 2020) demand
(1 - harm) of the incumbent's reward of every single decision. Here:

- The incumbent is mixed into the policy's draw (draw.py): propensities stay exact, and other arms keep a chance.
- Feedback comes late, after many further decisions. So the condition is on one decision. With slack s, the reward that
  may still be lost according to the ledger, and theta = ln(1 / CONFIDENCE) / s, a decision must keep

      E exp(theta * (loss - credit)) <= 1,      credit = half of its own allowance, harm * the incumbent's mean.

  As s shrinks theta grows, and the share of the policy goes to 0.
- The expected loss is the incumbent's score less the arm's; the rewards' variance is that of the ledger's rows, for
  either arm. So E exp(theta * loss) = exp(theta * (score_incumbent - score_arm) + theta^2 * variance), a Gaussian's.
  With a posterior (`deviations`) half a deviation of the difference is taken off an arm's score, since an arm without
  rows may be worse than its prior mean. Without scores the arms' mean rewards replace them, 0 for an arm without rows.
- The loss is estimated without the policy: a row of another arm lost the incumbent's mean reward less its own reward; a
  row of the incumbent lost (reward - mean) * (1 / propensity - 1), which corrects for the choice of questions on which
  the incumbent is left. Wrong scores cost slack, and a small slack holds the policy back.

This is no proof. For a fixed theta, exp(theta * sum of (loss - credit)) would be a supermartingale, and Ville's
inequality would bound the losses beyond the slack; but theta changes with every learned row, scores and variance are
estimates, and the Gaussian is an approximation. docs/policy-settings.md has the measured rate: 3 of 320 passes fell
below 1 - harm.

Only learned rewards count. If rewards may be negative, harm is a share of the size of the incumbent's mean reward.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from pydantic import Field

from ragbandit.router.policies.base import (
    ArmParam,
    Arrays,
    Facts,
    HasParams,
    Policy,
    PolicyOutput,
    PolicyParams,
    Restraint,
    Text,
    checked_arrays,
    heads_of,
    own_weight,
    read_params,
    restart,
    restored_counts,
    weight_of,
)
from ragbandit.router.policies.context import read_schema
from ragbandit.shared.errors import ConfigError, PolicyFault
from ragbandit.shared.types import ArmName, FeatureRows, Json, Matrix, Query, Update

#: the promise holds from this question on; what may be lost until then may be lost at once
FROM: Final = 100
#: learned outcomes of the incumbent before anything else is tried
KNOWN: Final = 10
#: decisions' worth of allowance that are kept at most: a policy that has earned much may not lose all of it again
MOST: Final = 1000
#: rows of the incumbent after which an older one counts 1/e in its mean reward
_MEMORY: Final = 1000.0
#: largest weight 1 / propensity of a row of the incumbent
_MOST_WEIGHT: Final = 10.0
#: share of the rewards' standard deviation that replaces the incumbent's mean reward if this is nearer to 0
_LEAST_SCALE: Final = 0.1
#: what a state keeps of a shortfall, in this order
_NUMBERS: Final = (
    *("_own", "_lost", "_others", "_ratio", "_weight", "_rewards", "_squares", "_all_squares"),
    *("_quality", "_cost", "_price"),
)


class Shortfall:
    """The tally of one ledger against one incumbent. harm: share of the incumbent's reward that may be lost."""

    def __init__(self, incumbent: ArmName, *, harm: float) -> None:
        self.incumbent, self.harm = incumbent, harm
        #: rows of each arm, and the sum of their rewards
        self.rows: dict[ArmName, int] = {}
        self._sums: dict[ArmName, float] = {}
        #: rows of decisions that were made here; reward they lost, clamped; of them rows of other arms, faded
        self._own = self._lost = self._others = 0.0
        #: decisions made per row learned, at least 1
        self._ratio = 1.0
        #: over the incumbent's rows, faded, weighted by 1/q: weights, rewards, squares of rewards
        self._weight = self._rewards = self._squares = 0.0
        #: the same of quality and of cost, and the weight between them, faded over all rows
        self._quality = self._cost = self._price = 0.0
        #: rows of the incumbent that were learned before it changed
        self.before = 0
        #: squares of all rewards
        self._all_squares = 0.0

    @property
    def known(self) -> bool:
        """Whether the incumbent has outcomes enough to say what it earns."""
        return self.rows.get(self.incumbent, 0) - self.before >= KNOWN

    def allowance(self, weight: float | None = None) -> float:
        """Reward that one decision may lose on average: harm times the size of the incumbent's mean reward.

        weight: of cost in it; None: the rows' mean. Where that mean is near 0, a tenth of its rewards' standard
        deviation stands for it: a share of nothing would be nothing, for ever.
        """
        if self._weight == 0.0:
            return 0.0
        mean = self._rewards / self._weight
        spread = math.sqrt(max(self._squares / self._weight - mean * mean, 0.0))
        return self.harm * max(abs(self._mean_at(weight)), _LEAST_SCALE * spread)

    def _mean_at(self, weight: float | None) -> float:
        """The incumbent's mean reward where cost has this weight."""
        return (self._quality - (self._price if weight is None else weight) * self._cost) / self._weight

    @property
    def variance(self) -> float:
        """Variance of the rewards around their arms' means, over all rows."""
        rows = sum(self.rows.values())
        if rows == 0:
            return 0.0
        explained = math.fsum(self._sums[arm] * self._sums[arm] / count for arm, count in self.rows.items())
        return max((self._all_squares - explained) / rows, 0.0)

    @property
    def slack(self) -> float:
        """Reward that may still be lost: what was allowed, less what was lost and one standard deviation of that.

        At most MOST decisions' worth. What is learned of some of the decisions stands for all of them: each row for
        `ratio` decisions, whose sum then has the variance ratio * (1 + (ratio - 1) * ratio) a row.
        """
        # the rows' own noise, and that of which decisions were learned
        noise = self._others * self.variance * (1.0 + (self._ratio - 1.0) * self._ratio)
        return self._allowed - self._ratio * self._lost - math.sqrt(noise)

    def mean(self, arm: ArmName) -> float:
        """Mean reward of an arm, begun with one row of reward 0, as the ridge heads begin."""
        return self._sums.get(arm, 0.0) / (1 + self.rows.get(arm, 0))

    @property
    def _allowed(self) -> float:
        decisions = self._ratio * self._own
        return self.allowance() * max(decisions, 0.5 * (decisions + FROM))

    def learn(self, update: Update) -> None:
        """One row of the ledger: its arm, its reward, its propensity, and whether it was paid for here."""
        arm, reward = update.arm, update.reward.value
        quality, cost, price = heads_of(update.reward, weight=weight_of(update.query, default=self._price))
        count = sum(self.rows.values()) + 1
        self._price += (price - self._price) * max(1.0 / count, 1.0 / _MEMORY)
        if not update.imported:
            self._pay(update, weight=price)
        if arm == self.incumbent:
            weight, fade = min(1.0 / update.propensity, _MOST_WEIGHT), 1.0 - 1.0 / _MEMORY
            self._weight = fade * self._weight + weight
            self._rewards = fade * self._rewards + weight * reward
            self._squares = fade * self._squares + weight * reward * reward
            self._quality = fade * self._quality + weight * quality
            self._cost = fade * self._cost + weight * cost
        self.rows[arm] = self.rows.get(arm, 0) + 1
        self._sums[arm] = self._sums.get(arm, 0.0) + reward
        self._all_squares += reward * reward
        # A surplus is kept up to MOST decisions, a debt of feedback that came late up to FROM.
        allowed, one = self._allowed, self.allowance()
        if one > 0.0:  # else the incumbent has changed, and what is owed is not known in its rewards yet
            lost = min(max(self._ratio * self._lost, allowed - MOST * one), allowed + FROM * one)
            self._lost = lost / self._ratio

    def restart(self) -> None:
        """The incumbent is another arm now: its mean reward restarts, what was lost stays."""
        self.before = self.rows.get(self.incumbent, 0)
        self._weight = self._rewards = self._squares = self._quality = self._cost = 0.0

    def _pay(self, update: Update, *, weight: float) -> None:
        """Count what a row lost, by the incumbent's mean before it, at the row's own weight of cost."""
        reward = update.reward.value
        base = self._mean_at(weight) if self._weight > 0.0 else reward
        self._own += 1.0
        elsewhere = sum(self.rows.values()) - (self._own - 1.0)
        self._ratio = max(1.0, (update.decided - elsewhere) / self._own if update.decided else 1.0)
        if update.arm == self.incumbent:
            self._lost += (reward - base) * (min(1.0 / update.propensity, _MOST_WEIGHT) - 1.0)
        else:
            self._lost += base - reward
            self._others = (1.0 - 1.0 / _MEMORY) * self._others + 1.0

    def state(self) -> Arrays:
        """Its numbers, and each arm's rows and rewards."""
        arrays: Arrays = {"shortfall": np.array([float(getattr(self, name)) for name in _NUMBERS])}
        for arm in sorted(self.rows):
            arrays[f"rewards/{arm}"] = np.array([self.rows[arm], self._sums[arm]])
        return arrays

    def restore(self, arrays: Arrays, *, seen: Mapping[ArmName, int]) -> None:
        """Take over a saved state, of a policy that has learned these rows of each arm. Raises SnapshotError."""
        checked_arrays(arrays, shapes={"shortfall": (len(_NUMBERS),)} | {f"rewards/{arm}": (2,) for arm in seen})
        for name, value in zip(_NUMBERS, arrays["shortfall"].tolist(), strict=True):
            setattr(self, name, value)
        self.rows = dict(seen)
        self._sums = {arm: float(arrays[f"rewards/{arm}"][1]) for arm in seen}


def _made(policy: str, *, params: Mapping[str, Json], context: Mapping[str, Json] | None) -> Policy:
    """The policy inside; an error of its params has the field `policy.params.params`."""
    from ragbandit.router.policies import make_policy, with_settings  # the registry imports the policies

    try:
        return make_policy(policy, params=with_settings(policy, params=params, schema=read_schema(context)))
    except ConfigError as error:
        field = (error.field or "").replace("policy.params.", "policy.params.params.", 1)
        field = "policy.params.policy" if field == "policy.name" else field
        raise ConfigError(error.message, field=field, remedy=error.remedy) from error


#: the arrays of the policy inside are saved under their names with this before them
_INNER: Final = "inner/"
#: what the policy inside alone knows
_INSIDE: Final = frozenset(
    {"age", "alarms", "deterministic", "lean", "needs", "noise", "noise_at", "schema"}
    | {"seen", "serves_prices", "tolerance"}
)
#: theta = ln(1 / CONFIDENCE) / slack: the smaller, the less is risked
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
class ConservativeParams(PolicyParams):
    """Settings of conservative."""

    #: the arm that the policy must not do worse than
    incumbent: ArmParam
    #: share of the incumbent's reward that may be lost
    harm: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] = 0.05
    #: the policy that is held back, and its params; any but this one
    policy: Text = "mba"
    params: Mapping[str, Any] | None = None
    #: what the setting `context` declares: for the policy inside, among whose params it is recorded
    context: Mapping[str, Any] | None = None
    #: revision of the learning algorithm, recorded so that a ledger of an earlier revision is learned again; do not set
    #: it
    revision: Annotated[int, Field(ge=4, le=4)] = 4

    arms_named: ClassVar[tuple[str, ...]] = ("incumbent",)


class ConservativePolicy(HasParams):
    """The policy of your choice, held back to the incumbent while it may cost more than `harm` of its reward."""

    algorithm: ClassVar[str] = "conservative"
    takes_context: ClassVar[bool] = True

    def __init__(self, **params: Json) -> None:
        settings = read_params(ConservativeParams, given=params)
        super().__init__(settings)
        if settings.policy == self.algorithm:
            raise ConfigError("it cannot hold itself", field="policy.params.policy", remedy="for example mba")
        self.inner = _made(settings.policy, params=settings.params or {}, context=settings.context)
        self.incumbent, self.harm, self._revision = settings.incumbent, settings.harm, settings.revision
        self.shortfall = Shortfall(self.incumbent, harm=self.harm)

    @property
    def params(self) -> Mapping[str, Json]:
        """The settings, with all params of the policy inside."""
        own = {"incumbent": self.incumbent, "harm": self.harm, "revision": self._revision}
        return {**own, "policy": self.inner.algorithm, "params": dict(self.inner.params)}

    @property
    def arms_named(self) -> Mapping[str, ArmName]:
        """Its own, and those of the policy inside."""
        inside = {f"params.{name}": arm for name, arm in self.inner.arms_named.items()}
        return {**super().arms_named, **inside}

    def __getattr__(self, name: str) -> Any:
        """Attributes that only the policy inside has."""
        if name in _INSIDE:
            return getattr(self.inner, name)
        raise AttributeError(name)

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
        usual, noise = values[list(arms).index(self.incumbent)], theta * theta * tally.variance
        risks = tuple(
            0.0 if arm == self.incumbent else _exponential(theta * (usual - value) + noise)
            for arm, value in zip(arms, values, strict=True)
        )
        allowance = _exponential(theta * _CREDIT * tally.allowance(weight))
        reason = "another arm may cost too much"
        return Restraint(arm=self.incumbent, risks=risks, allowance=allowance, slack=slack, reason=reason)

    def learn(self, update: Update) -> None:
        """Let the policy learn, then the shortfall. PolicyFault and no change if either cannot use the row."""
        if not abs(update.reward.value) < _MOST_REWARD:
            raise PolicyFault(f"the reward is {update.reward.value!r}, no number or too large to be squared")
        self.inner.learn(update)
        self.shortfall.learn(update)

    def restart(self, arm: ArmName) -> None:
        """The policy inside restarts the arm; of the incumbent what it earns is not known any more."""
        restart(self.inner, arm)
        if arm == self.incumbent:
            self.shortfall.restart()

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The inner policy's state, its arrays under "inner/", and the shortfall's numbers."""
        arrays, facts = self.inner.state()
        whole = {f"{_INNER}{name}": array for name, array in arrays.items()} | self.shortfall.state()
        before: dict[str, Json] = {"incumbent_before": self.shortfall.before} if self.shortfall.before else {}
        return whole, {"updates": facts["updates"], "seen": facts["seen"], "inner": facts, **before}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over a saved state; the inner policy checks its own part."""
        own = {name: array for name, array in arrays.items() if not name.startswith(_INNER)}
        inner = {name.removeprefix(_INNER): array for name, array in arrays.items() if name not in own}
        self.shortfall.restore(own, seen=restored_counts(facts))
        self.shortfall.before = facts.get("incumbent_before", 0)
        self.inner.restore(inner, facts["inner"])


def _doubted(values: Sequence[float], deviations: Matrix, *, incumbent: int) -> list[float]:
    """Each arm's value, less _DOUBT standard deviations of its difference from the incumbent's."""
    apart = deviations - deviations[incumbent]
    doubts = np.sqrt(np.einsum("kp,kp->k", apart, apart) / apart.shape[1]).tolist()
    return [value - _DOUBT * doubt for value, doubt in zip(values, doubts, strict=True)]


def _exponential(exponent: float) -> float:
    """exp(exponent) - 1, and no overflow."""
    return math.expm1(min(exponent, _MOST_EXPONENT))
