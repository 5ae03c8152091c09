"""Restrains a policy to an incumbent arm: from the 100th question on, the total reward shall be at least 1 - harm times
the reward of always playing the incumbent.

Conservative bandits (Wu, Shariff, Lattimore, Szepesvari 2016; with features: Kazerouni et al. 2017) play the incumbent
until the earned surplus pays for the worst next draw. Stage-wise conservative bandits (Khezeli and Bitar 2020;
Moradipari et al. 2020) require (1 - harm) of the incumbent's reward for every single decision. This policy differs:

- The incumbent is mixed into the policy's pmf (draw.py), so propensities are exact and other arms keep a probability.
- Feedback arrives many decisions later. So every decision limits its expected loss, the incumbent's reward minus its
  own, under the pmf that the arm is drawn from. The slack is the total reward that may still be lost:

      sum of p * (loss + noise) over the other arms  <=  credit + max(slack - reserve, 0) / SPREAD

  credit is half of harm * the incumbent's mean reward. The loss of an arm is the incumbent's score minus the arm's
  score, which is reduced by its doubt, and at least 0. noise = NOISE * variance / slack: as the slack shrinks, the
  other arms' share of the draw approaches 0, whatever the scores are. The variance is that of the other arms' rewards.
  PRIOR_ROWS more rows vary as much as rewards can, since the first outcomes of an arm may be equal by chance. The
  reserve grows with the decisions that are not learned yet. So the allowance is spent early, where the loss can hardly
  be large, and not kept for ever.
- The slack is computed without the policy's scores, so it shrinks and restrains the policy if the scores are wrong. A
  row of another arm loses the incumbent's mean reward minus the row's reward. A row of the incumbent loses (reward -
  mean reward) * (1 / propensity - 1), because the policy selects the questions that the incumbent gets.
- The account is kept at one weight of cost, the param `weight` (the setting reward.weight), whatever the price of a
  question: its rewards are those that the rows would have at this weight, within the bounds of the rows. A row changes
  the slack by at most the range of rewards times its weight, 1 / propensity, times the decisions that it stands for. If
  the sums change by more, the slack follows with the next rows. Turns and whole tasks have incumbents' means of their
  own. A row of which the policy had no choice does not count: the incumbent or any other arm was not offered, or a
  spent budget chose.
- A question with a price of its own gets the arm that the policy wants at this price, as far as the expected loss at
  `weight` allows. Only a spent budget comes before the safe start (draw.py, `released`).
- A warm start can prove a gain of questions that leave the incumbent (paired_gains.py). Then a loss may be negative: it
  is the difference of the scores, and for the preferred arm at most minus the proven gain. The slack counts all
  allowances until the 100th question from the start, and the pairs among the learned rows.

There is no proof, since scores and variance are estimates. docs/policy-settings.md has measured rates. If rewards may
be negative, harm is a share of the absolute value of the incumbent's mean reward.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from pydantic import Field

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.policies.algorithms.paired_gains import PairedGains, imported_question_key
from ragbandit.router.policies.base import (
    ArmParam,
    Arrays,
    Facts,
    HasParams,
    Number,
    Policy,
    PolicyOutput,
    PolicyParams,
    Restraint,
    Text,
    checked_arrays,
    own_cost_weight,
    pmf_of_one,
    read_params,
    restart_arm,
    restored_counts,
    rows_of,
    schema_of,
    serves_prices,
)
from ragbandit.router.policies.context import read_schema
from ragbandit.shared.errors import ConfigError, PolicyFault
from ragbandit.shared.types import UNITS, ArmName, DecisionUnit, FeatureRows, Json, Query, Update

#: first question at which the promise must hold. Half of the allowances of the questions before it are available from
#: the start, or all of them if a gain is proven
FROM: Final = 100
#: number of learned outcomes of the incumbent before other arms are tried
KNOWN: Final = 10
#: largest surplus, in allowances of one decision, so that a policy that has earned much cannot lose all of it
MOST: Final = 1000
#: age, in rows, at which a row has the weight 1/e in the incumbent's mean reward
_MEMORY: Final = 1000.0
#: largest weight 1 / propensity of one row of the incumbent
_MOST_WEIGHT: Final = 10.0
#: reserve of slack if every decision is learned, in rewards; it is larger if fewer are learned
_RESERVE: Final = 4.0
#: number of prior rows (see the module), and the largest variance of rewards whose quality is in [0, 1] (Popoviciu's
#: inequality)
_PRIOR_ROWS: Final = 10
_MOST_VARIANCE: Final = 0.25
#: attributes of a Shortfall that its state stores, in this order
_NUMBERS: Final = "_here _elsewhere _own _lost _others _ratio _squares _unbounded slack"


@dataclass(slots=True)
class _Mean:
    """Sums over the incumbent's rows of one unit since its last restart, weighted by 1 / propensity and by age."""

    rows: float = 0.0
    weight: float = 0.0
    rewards: float = 0.0
    squares: float = 0.0

    @property
    def value(self) -> float:
        return self.rewards / self.weight

    @property
    def variance(self) -> float:
        return max(self.squares / self.weight - self.value * self.value, 0.0)

    def learn(self, reward: float, *, weight: float) -> None:
        fade = 1.0 - 1.0 / _MEMORY
        self.rows += 1.0
        self.weight = fade * self.weight + weight
        self.rewards = fade * self.rewards + weight * reward
        self.squares = fade * self.squares + weight * reward * reward


class Shortfall:
    """Reward lost against always playing the incumbent.

    harm: share of the incumbent's reward that may be lost. weight: weight of cost in all rewards of the account.
    A row that counts, of reward R and propensity p, has these effects, in this order, without pairs. m: the incumbent's
    mean reward in the row's unit; v: `variance`; a: `allowance`; A: allowed loss; T: `_target`

        r = max(1, decisions / learned rows)             `_ratio`, without imports; a row stands at least for itself
        w = min(1 / p, _MOST_WEIGHT)                     no single row of the incumbent dominates m or L
        l = m - R; of the incumbent (R - m) * (w - 1)    loss; 0 until m is known
        n = n + 1; L = L + l                             `_own` and `_lost`; imported rows change neither
        o = (1 - 1 / _MEMORY) * o + 1                    `_others`, by rows of other arms decided here; old noise fades
        L = clip(r * L, A - MOST * a, A + FROM * a) / r  limits the surplus, and the debt that late feedback can cause
        T = A - r * L - sqrt(o * v * (1 + (r - 1) * r))  A = a * max(r * n, (r * n + FROM) / 2): half of FROM come first
        slack = slack + clip(T - slack, -d, d)           d = range of rewards * w * r, the largest loss of the row
    """

    def __init__(self, incumbent: ArmName, *, harm: float, weight: float) -> None:
        self.incumbent, self.harm, self.weight = incumbent, harm, weight
        self.means = {unit: _Mean() for unit in UNITS}
        #: arm -> number of its rows that count; `_sums`: arm -> sum of the rewards of these rows
        self.rows: dict[ArmName, int] = {}
        self._sums: dict[ArmName, float] = {}
        #: number of learned rows that a policy of this service decided, and of imported rows
        self._here = self._elsewhere = 0.0
        self._own = 0.0  #: rows that count and were decided here since the incumbent's mean reward is known
        self._lost = 0.0  #: reward lost in these rows, within the limits at the end of `_count`
        self._others = 0.0  #: number of other arms' rows in `_own`; old rows fade
        #: number of decisions per learned row, >= 1
        self._ratio = 1.0
        #: sum of squared rewards of other arms, and number of rows whose quality is unknown or outside [0, 1]
        self._squares = self._unbounded = 0.0
        #: reward that may still be lost, see `slack_with`; a row changes the slack by at most the row's largest loss
        self.slack = 0.0

    def knows(self, unit: DecisionUnit) -> bool:
        """Whether enough outcomes of the incumbent are learned."""
        return self.means[unit].rows >= KNOWN

    def allowance(self, unit: DecisionUnit | None = None) -> float:
        """Mean reward that a decision may lose: harm times the absolute value of the incumbent's mean reward.

        A mean reward near 0 is replaced by a tenth of the standard deviation, because otherwise no other arm would be
        tried. unit: unit of the decision; None for the mean over all units
        """
        means = [mean for of, mean in self.means.items() if mean.rows and unit in (None, of)]
        sizes = [mean.weight * max(abs(mean.value), 0.1 * math.sqrt(mean.variance)) for mean in means]
        return self.harm * math.fsum(sizes) / math.fsum(mean.weight for mean in means) if means else 0.0

    @property
    def variance(self) -> float:
        """Variance of the other arms' rewards around the mean of their arm; see the module for the prior rows."""
        arms = [arm for arm, count in self.rows.items() if arm != self.incumbent and count]
        rows = sum(self.rows[arm] for arm in arms) + _PRIOR_ROWS
        explained = math.fsum(self._sums[arm] * self._sums[arm] / self.rows[arm] for arm in arms)
        return (max(self._squares - explained, 0.0) + _PRIOR_ROWS * self._most_variance) / rows

    @property
    def _most_variance(self) -> float:
        """Variance of the prior rows; if rewards have no known bounds, the incumbent's largest in any unit."""
        known = [mean.variance for mean in self.means.values() if mean.rows]
        return max(known) if self._unbounded and known else _MOST_VARIANCE

    def slack_with(self, *, gain: float, pairs: int) -> float:
        """Reward that may still be lost: allowed minus lost reward, minus one standard deviation of the lost reward.

        A learned row stands for r = `_ratio` decisions: for itself, and for r - 1 that are not learned. What these lost
        is estimated from the learned rows of other arms and the pairs together: o rows and n pairs, w = o / (o + n).
        So the variance of a row's reward counts 1 + (r - 1) * (1 + (r - 1) * w) times, for the noise of the rewards and
        the selection of the learned decisions; without pairs this is 1 + (r - 1) * r.

        gain: proven mean gain of a question that leaves the incumbent (paired_gains.py); 0 if none is proven. If it is
            above 0, all allowances of the first FROM questions are available from the start, since the promise need
            not hold before. pairs: number of its observations
        """
        return self.slack + self._target(gain=gain, pairs=pairs) - self._target() if gain > 0.0 else self.slack

    def _target(self, *, gain: float = 0.0, pairs: int = 0) -> float:
        """Allowed minus lost reward minus one standard deviation; `slack` moves there. Parameters: see `slack_with`."""
        rest, others = self._ratio - 1.0, self._others
        number = pairs if gain > 0.0 else 0
        learned = others / (others + number) if number else 1.0
        lost = self._lost + rest * learned * (self._lost - number * gain)
        noise = others * self.variance * (1.0 + rest * (1.0 + rest * learned))
        allowed = max(self._allowed, FROM * self.allowance()) if number else self._allowed
        return allowed - lost - math.sqrt(noise)

    @property
    def reserve(self) -> float:
        """Slack that is not spent, but reserved for losses of decisions that are not learned yet."""
        return _RESERVE * self._ratio

    def mean(self, arm: ArmName) -> float:
        """Mean reward of an arm's rows and one prior row with the reward 0."""
        return self._sums.get(arm, 0.0) / (1 + self.rows.get(arm, 0))

    @property
    def _allowed(self) -> float:
        decisions = self._ratio * self._own
        return self.allowance() * max(decisions, 0.5 * (decisions + FROM))

    def reward(self, update: Update) -> float:
        """The row's reward at the account's cost weight, within the row's bounds; unchanged without parts."""
        return update.reward.at(self.weight).value

    def learn(self, update: Update) -> None:
        arm, is_offered = update.arm, self.incumbent in update.arms and len(update.arms) > 1
        self.rows.setdefault(arm, 0)
        self._sums.setdefault(arm, 0.0)
        if update.imported:
            self._elsewhere += 1.0
        elif update.decided is not None:  # None if no policy has made the decision
            self._here += 1.0
            self._ratio = max(1.0, (update.decided - self._elsewhere) / self._here)
        weight = min(1.0 / update.propensity, _MOST_WEIGHT)
        if is_offered and not update.released:
            self._count(update, reward=self.reward(update), weight=weight)
        room = (update.reward.maximum - update.reward.minimum) * weight * self._ratio
        self.slack += min(max(self._target() - self.slack, -room), room)

    def _count(self, update: Update, *, reward: float, weight: float) -> None:
        arm, is_incumbent = update.arm, update.arm == self.incumbent
        mean = self.means[update.query.unit or "turn"]
        lost = 0.0
        if mean.rows:
            lost = (reward - mean.value) * (weight - 1.0) if is_incumbent else mean.value - reward
        if is_incumbent:
            mean.learn(reward, weight=weight)
        else:
            self._squares += reward * reward
        self.rows[arm] += 1
        self._sums[arm] += reward
        self._unbounded += not (update.reward.has_parts and 0.0 <= update.reward.quality <= 1.0)
        if not update.imported and mean.rows:
            self._own += 1.0
            self._lost += lost
            if not is_incumbent:
                self._others = (1.0 - 1.0 / _MEMORY) * self._others + 1.0
        # The surplus is limited to MOST allowances, and the debt, which late feedback can cause, to FROM allowances.
        allowed, allowance = self._allowed, self.allowance()
        if allowance > 0.0:  # 0 until the mean reward of a restarted incumbent is known
            lost = min(max(self._ratio * self._lost, allowed - MOST * allowance), allowed + FROM * allowance)
            self._lost = lost / self._ratio

    def restart(self) -> None:
        """Forget the mean reward of a changed incumbent. The lost reward is kept."""
        self.means = {unit: _Mean() for unit in UNITS}

    def state(self) -> Arrays:
        arrays: Arrays = {"shortfall": np.array([float(getattr(self, name)) for name in _NUMBERS.split()])}
        arrays |= {f"incumbent/{unit}": np.array(astuple(mean)) for unit, mean in self.means.items()}
        for arm in sorted(self.rows):
            arrays[f"rewards/{arm}"] = np.array([self.rows[arm], self._sums[arm]])
        return arrays

    def restore(self, arrays: Arrays, *, learned_arms: Iterable[ArmName]) -> None:
        """Load a saved state. learned_arms: the arms whose rows the policy has learned. Raises SnapshotError."""
        names = _NUMBERS.split()
        shapes = {"shortfall": (len(names),)} | {f"incumbent/{unit}": (4,) for unit in UNITS}
        checked_arrays(arrays, shapes=shapes | {f"rewards/{arm}": (2,) for arm in learned_arms})
        for name, value in zip(names, arrays["shortfall"].tolist(), strict=True):
            setattr(self, name, value)
        self.means = {unit: _Mean(*arrays[f"incumbent/{unit}"].tolist()) for unit in UNITS}
        self.rows = {arm: int(arrays[f"rewards/{arm}"][0]) for arm in learned_arms}
        self._sums = {arm: float(arrays[f"rewards/{arm}"][1]) for arm in learned_arms}


def _inner_policy(policy: str, *, params: Mapping[str, Json], context: Mapping[str, Json] | None) -> Policy:
    from ragbandit.router.policies import make_policy, with_settings  # the registry imports this module

    try:
        return make_policy(policy, params=with_settings(policy, params=params, schema=read_schema(context)))
    except ConfigError as error:
        field = (error.field or "").replace("policy.params.", "policy.params.params.", 1)
        field = "policy.params.policy" if field == "policy.name" else field
        raise ConfigError(error.message, field=field, remedy=error.remedy) from error


_INNER: Final = "inner/"
#: names of attributes that this policy takes from the inner policy (see `__getattr__`)
_INSIDE: Final = frozenset(
    {"age", "alarms", "copyable", "deterministic", "lean", "needs", "noise", "noise_at", "schema"}
    | {"seen", "serves_prices", "tolerance"}
)
#: weight of the noise (see the module); a larger value takes less risk
_NOISE: Final = 2.0
#: number of decisions over which the slack above the reserve is spent
_SPREAD: Final = 50.0
#: share of a decision's allowance that may be lost before the decision is learned
_CREDIT: Final = 0.5
#: an arm's score is reduced by this number of posterior standard deviations of its difference to the incumbent, because
#: an arm without rows may be worse than its prior mean
_DOUBT: Final = 1.0
_MOST_REWARD: Final = 1e100


def _cautious_scores(output: PolicyOutput, *, incumbent: int) -> list[float] | None:
    """Scores of the arms, or None; a posterior reduces each score by the doubt in its difference to the incumbent."""
    if output.scores is None or output.deviations is None:
        return None if output.scores is None else list(output.scores)
    differences = output.deviations - output.deviations[incumbent]
    doubts = np.sqrt(np.einsum("kp,kp->k", differences, differences) / differences.shape[1]).tolist()
    return [score - _DOUBT * doubt for score, doubt in zip(output.scores, doubts, strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConservativeParams(PolicyParams):
    #: the arm that the policy must not do worse than
    incumbent: ArmParam
    #: share of the incumbent's reward that may be lost
    harm: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] = 0.05
    #: weight of cost in the account of lost reward: the setting reward.weight
    weight: Number = RewardSettings().weight
    #: name of the inner policy, any except conservative
    policy: Text = "mba"
    params: Mapping[str, Any] | None = None
    #: the setting `context`; recorded among the params of the inner policy
    context: Mapping[str, Any] | None = None
    #: revision of the learning algorithm: a ledger that has another revision is learned again. Do not set this param
    revision: Annotated[int, Field(ge=9, le=9)] = 9

    arms_named: ClassVar[tuple[str, ...]] = ("incumbent",)


class ConservativePolicy(HasParams):
    """Restrains the inner policy to the incumbent if it could lose more than `harm` of the incumbent's reward."""

    algorithm: ClassVar[str] = "conservative"
    example: ClassVar[Mapping[str, Json]] = {
        "incumbent": "multi_step",
        "policy": "linucb",
        "params": {"epsilon": 0.1, "points": 32},
    }
    takes_context: ClassVar[bool] = True
    takes_weight: ClassVar[bool] = True
    reads_draws: ClassVar[bool] = True

    def __init__(self, **params: Json) -> None:
        settings = read_params(ConservativeParams, given=params)
        super().__init__(settings)
        if settings.policy == self.algorithm:
            raise ConfigError("conservative cannot wrap itself", field="policy.params.policy", remedy="for example mba")
        self.inner = _inner_policy(settings.policy, params=settings.params or {}, context=settings.context)
        self.incumbent, self._revision = settings.incumbent, settings.revision
        self.shortfall = Shortfall(self.incumbent, harm=settings.harm, weight=settings.weight)
        self.gains = PairedGains(self.incumbent)

    @property
    def params(self) -> Mapping[str, Json]:
        account = {"harm": self.shortfall.harm, "weight": self.shortfall.weight}
        params = {"incumbent": self.incumbent, **account, "revision": self._revision}
        return {**params, "policy": self.inner.algorithm, "params": dict(self.inner.params)}

    @property
    def arms_named(self) -> Mapping[str, ArmName]:
        inner = {f"params.{name}": arm for name, arm in self.inner.arms_named.items()}
        return {**super().arms_named, **inner}

    def __getattr__(self, name: str) -> Any:
        if name in _INSIDE:
            return getattr(self.inner, name)
        raise AttributeError(name)

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        outputs = self.inner.pmf(queries, features=features, arms=arms)
        judged = self._at_weight(outputs, queries=queries, features=features, arms=arms)
        return [
            replace(output, restraint=self._restraint(of, arms=offered, unit=query.unit or "turn"))
            for query, output, of, offered in zip(queries, outputs, judged, arms, strict=True)
        ]

    def _at_weight(
        self,
        outputs: Sequence[PolicyOutput],
        *,
        queries: Sequence[Query],
        features: FeatureRows | None,
        arms: Sequence[Sequence[ArmName]],
    ) -> list[PolicyOutput]:
        """The outputs at the cost weight of the account. Only questions with another price are asked again."""
        judged, usual = list(outputs), [self._at_account_weight(query) for query in queries]
        priced = [at for at, query in enumerate(queries) if usual[at] is not query]
        if not priced:
            return judged
        rows = None if features is None else features[priced]
        again = self.inner.pmf([usual[at] for at in priced], features=rows, arms=[arms[at] for at in priced])
        for at, output in zip(priced, again, strict=True):
            judged[at] = output
        return judged

    def _at_account_weight(self, query: Query) -> Query:
        """The query with the cost weight of the account instead of a price of its own."""
        weight = self.shortfall.weight
        is_priced = own_cost_weight(query) not in (None, weight) and serves_prices(self.inner)
        return replace(query, cost_weight=weight) if is_priced else query

    def _restraint(self, output: PolicyOutput, *, arms: Sequence[ArmName], unit: DecisionUnit) -> Restraint:
        shortfall, gain = self.shortfall, self.gains.bound
        slack, is_known = shortfall.slack_with(gain=gain, pairs=self.gains.count), shortfall.knows(unit)
        if not is_known or slack <= 0.0 or self.incumbent not in arms:
            reason = "nothing may be lost now" if is_known else "too few outcomes of it are learned"
            risks = tuple(float(arm != self.incumbent) for arm in arms)
            return Restraint(arm=self.incumbent, risks=risks, allowance=0.0, slack=slack, reason=reason)
        incumbent = list(arms).index(self.incumbent)
        values = _cautious_scores(output, incumbent=incumbent) or [shortfall.mean(arm) for arm in arms]
        baseline = values[incumbent]
        noise = _NOISE * shortfall.variance / slack
        losses = [baseline - value if gain > 0.0 else max(baseline - value, 0.0) for value in values]
        if max(values) > baseline:
            losses[values.index(max(values))] = min(-gain, min(losses))
        risks = tuple(0.0 if arm == self.incumbent else loss + noise for arm, loss in zip(arms, losses, strict=True))
        allowance = _CREDIT * shortfall.allowance(unit) + max(slack - shortfall.reserve, 0.0) / _SPREAD
        reason = "another arm may cost too much"
        return Restraint(arm=self.incumbent, risks=risks, allowance=allowance, slack=slack, reason=reason)

    def learn(self, update: Update) -> None:
        reward = self.shortfall.reward(update)
        if not (abs(update.reward.value) < _MOST_REWARD and abs(reward) < _MOST_REWARD):
            raise PolicyFault(f"the reward is {update.reward.value!r}, not a number or too large to be squared")
        question = imported_question_key(update, context=bool(schema_of(self.inner)))
        preferred = self._preferred(update) if self.gains.opens(question) else None
        self.inner.learn(update)
        self.gains.learn(update, question=question, preferred=preferred, reward=reward, rows=rows_of(update))
        self.shortfall.learn(update)

    def _preferred(self, update: Update) -> ArmName | None:
        """The arm that the inner policy prefers to the incumbent on this row's question; None without such an arm."""
        arms = sorted(self.inner.seen)
        if self.incumbent not in arms or len(arms) < 2:
            return None
        try:
            output = pmf_of_one(self.inner, self._at_account_weight(update.query), features=update.features, arms=arms)
        except Exception:  # the row is learned even if the policy cannot decide on it, for example without features
            return None
        incumbent = arms.index(self.incumbent)
        values = _cautious_scores(output, incumbent=incumbent)
        if values is None or not max(values) > values[incumbent]:
            return None
        return arms[values.index(max(values))]

    def restart(self, arm: ArmName) -> None:
        self.gains.restart()
        restart_arm(self.inner, arm)
        if arm == self.incumbent:
            self.shortfall.restart()

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        arrays, facts = self.inner.state()
        whole = {f"{_INNER}{name}": array for name, array in arrays.items()} | self.shortfall.state()
        counts = {"updates": facts["updates"], "seen": facts["seen"]}
        return whole, {**counts, "inner": facts, "paired_gains": self.gains.state()}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        shortfall = {name: array for name, array in arrays.items() if not name.startswith(_INNER)}
        inner = {name.removeprefix(_INNER): array for name, array in arrays.items() if name not in shortfall}
        self.shortfall.restore(shortfall, learned_arms=restored_counts(facts))
        self.gains.restore(facts["paired_gains"])
        self.inner.restore(inner, facts["inner"])


def learner_of(policy: Policy) -> Policy:
    """The policy that learns: the inner policy of a safe start, else the policy itself."""
    return policy.inner if isinstance(policy, ConservativePolicy) else policy
