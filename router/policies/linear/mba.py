"""MBA-RAG: epsilon-greedy on DistilBERT, reward heads per arm (arXiv 2412.01572, section 3), made for few rows.

The paper regresses r_a = A(y, y_a) - lambda C(a) on the encoder's output with squared error on the drawn arm only,
and explores with probability 1/ln(e) at step e. Kept: encoder, heads per arm, masked squared error, epsilon-greedy.
Different, on purpose, each chosen by cross-validation on a routing table (docs/mba.md says what was tried):

- Two heads per arm, quality A and cost C, so that lambda can change without learning again.
- A head is the exact minimiser of the ridge-regularised squared error over all updates
  (router/policies/linear/ridge.py), not one gradient step per question: no learning rate, and an exact function of the
  ledger.
- Epsilon is not a schedule: it follows from the posterior of this question. With g the greedy arm, v and w posterior
  means and widths of the arms' rewards, and p_j = P(v_j > v_g) = Phi((v_j - v_g) / sqrt(w_j^2 + w_g^2)),

      pmf_j = (p_j / (1 - p_j)) / sum_i (p_i / (1 - p_i)),    epsilon = 1 - pmf_g,

  so that every arm is drawn by its odds of being better than the greedy one, ties are shared, and epsilon falls to
  epsilon_min as the widths do. The pmf is a closed form: the logged propensity is exact.
- Rewards drift, and a service has no last step. Old rows fade (memory); an abrupt change of an arm's rewards is
  detected by a CUSUM of its residuals (alarm), and the arm's old rows count for little from then on.
- A failing arm's reward is what the reward setting says (the authors' code turns -1 into 0); no dropout noise.

`mba_paper`, the faithful fine-tuning, is another policy.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from ragbandit.router.policies.base import Arrays, Facts, tally
from ragbandit.router.policies.linear.policy import RESTART_ROWS, RidgeParams, RidgePolicy
from ragbandit.router.policies.linear.ridge import LEAST_MEMORY, Prediction
from ragbandit.router.policies.params import Number, Positive, Share, read_params
from ragbandit.shared.types import ArmName, Features, Json, Update

# Page's test (Page 1954), one two-sided CUSUM per arm on its standardised residuals; the threshold h is the param
# `alarm`. All but the row counts are in standard deviations.
#: the allowance k: what every row takes off the sums, so that they stay near 0 while the arm is unchanged
_ALLOWANCE = 0.25
#: a residual is clipped to this: an arm that is nearly always right may miss once
_MAX_RESIDUAL = 4.0
#: rows of an arm before its sums begin: a posterior this young is not yet a reference
_WARM_UP = 30
#: an arm's residual variance is a mean over this many of its latest rows, begun with _PRIOR_ROWS rows of variance 1
_VARIANCE_ROWS, _PRIOR_ROWS = 200, 10

# The keys of a saved state, which its sha256 covers.
_CUSUM_KEY, _VARIANCE_KEY = "surprise", "loud"


@dataclass(frozen=True, kw_only=True, slots=True)
class MbaParams(RidgeParams):
    """Settings of mba."""

    ridge: Positive = 5.0
    #: factor on the widths; 0 is greedy but for epsilon_min
    explore: Number = 1.0
    #: probability that is always spread over all arms, beside the floors of the draw
    epsilon_min: Share = 0.0
    #: rows of an arm after which an older one counts 1/e
    memory: Annotated[float, Field(ge=LEAST_MEMORY, le=1e12, allow_inf_nan=False)] = 20_000.0
    #: threshold of the CUSUM, in standard deviations: beyond it an arm's old rows count for little
    alarm: Positive = 22.0


class MbaRag(RidgePolicy):
    """Epsilon-greedy over two ridge heads per arm on z = (1, x / sqrt(d)), x the question's features."""

    algorithm: ClassVar[str] = "mba"
    #: defaults where it is held back to an incumbent (docs/mba.md, "How much it explores")
    with_incumbent: ClassVar[Mapping[str, Json]] = {"explore": 0.2}

    def __init__(self, **params: Json) -> None:
        settings = read_params(MbaParams, given=params)
        super().__init__(settings, memory=settings.memory)
        self.explore, self.epsilon_min, self.alarm = settings.explore, settings.epsilon_min, settings.alarm
        #: per arm: residual variance; upper and lower CUSUM sums (all >= 0); alarms so far
        self._residual_variance: dict[ArmName, float] = {}
        #: per arm: updates that count as anything
        self._rows: dict[ArmName, int] = {}
        self._cusum_up: dict[ArmName, float] = {}
        self._cusum_down: dict[ArmName, float] = {}
        self.alarms: dict[ArmName, int] = {}

    def predict(self, features: Features, *, arms: Sequence[ArmName]) -> Prediction:
        """In microseconds: an arm's width is the same for all questions."""
        return self._heads.predict_fast(features, arms=arms)

    def explored(self, prediction: Prediction) -> tuple[tuple[float, ...], dict[str, Json]]:
        """Every arm by its odds of being better than the greedy one; an arm never learned has the prior's width."""
        even = self.epsilon_min / len(prediction.value)
        odds = chances(prediction.value, widths=[self.explore * width for width in prediction.width])
        pmf = tuple(even + (1.0 - self.epsilon_min) * p for p in odds)
        return pmf, {"epsilon": 1.0 - max(pmf)}

    def learn(self, update: Update) -> None:
        """Rank-one update of the drawn arm, O(d^2) whatever the number of rows; PolicyFault as in RidgeHeads."""
        arm, residual, rows = update.arm, self._heads.learn(update), update.reward.sample_weight
        if rows == 0.0:
            return
        tally(self._rows, update)
        variance = self._residual_variance.get(arm, 1.0)
        # The heads' noise variance is pooled over the arms, so each arm's residual is scaled by its own root mean
        # square before it enters the CUSUM.
        scaled = min(max(residual / math.sqrt(max(variance, 1.0)), -_MAX_RESIDUAL), _MAX_RESIDUAL)
        latest = min(self._rows[arm] + _PRIOR_ROWS, _VARIANCE_ROWS)
        self._residual_variance[arm] = variance + (residual * residual - variance) / latest
        superseded = self._superseded(update)
        if superseded is not None:
            self._heads.finish(arm, restart=superseded)
            self._cusum_up[arm] = self._cusum_down[arm] = 0.0
            return
        if self._heads.age(arm) <= _WARM_UP:
            self._heads.finish(arm)
            return
        # A row that counts as w tells w times as much of a shift: the step of the log likelihood ratio, whose residual
        # is in deviations of S / w.
        step, allowance = math.sqrt(rows) * scaled, rows * _ALLOWANCE
        up = max(0.0, self._cusum_up.get(arm, 0.0) + step - allowance)
        down = max(0.0, self._cusum_down.get(arm, 0.0) - step - allowance)
        alarm = max(up, down) > self.alarm
        self._heads.finish(arm, restart=RESTART_ROWS if alarm else None)
        if alarm:
            self.alarms[arm] = self.alarms.get(arm, 0) + 1
            up = down = 0.0
        self._cusum_up[arm], self._cusum_down[arm] = up, down

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The heads' state, and per arm the two sums, the alarms and the residual variance."""
        arrays, facts = super().state()
        facts[_CUSUM_KEY] = {arm: [self._cusum_up[arm], self._cusum_down[arm]] for arm in sorted(self._cusum_up)}
        facts["alarms"] = dict(sorted(self.alarms.items()))
        facts[_VARIANCE_KEY] = dict(sorted(self._residual_variance.items()))
        facts["counted"] = dict(sorted(self._rows.items()))
        return arrays, facts

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over a saved state."""
        super().restore(arrays, facts)
        self._rows, self.alarms = dict(facts["counted"]), dict(facts["alarms"])
        self._residual_variance = dict(facts[_VARIANCE_KEY])
        self._cusum_up = {arm: up for arm, (up, _) in facts[_CUSUM_KEY].items()}
        self._cusum_down = {arm: down for arm, (_, down) in facts[_CUSUM_KEY].items()}


def chances(means: Sequence[float], *, widths: Sequence[float]) -> list[float]:
    """A pmf by every arm's odds of being better than the one with the highest mean; width 0 is a sure mean.

    The arms' values are taken as independent Gaussians. Equal means share; where all are sure, the rest have none.
    """
    best = max(means)
    # Among equal means the widest leads, so that the result does not depend on their order.
    lead = max(width for mean, width in zip(means, widths, strict=True) if mean == best)
    odds = [_odds(best - mean, spread=math.hypot(width, lead)) for mean, width in zip(means, widths, strict=True)]
    total = math.fsum(odds)
    return [o / total for o in odds]


def _odds(gap: float, *, spread: float) -> float:
    """P(better) : P(worse) of an arm whose mean is `gap` (>= 0) lower, `spread` the deviation of the difference."""
    if gap == 0.0:
        return 1.0
    if spread == 0.0:
        return 0.0
    better = 0.5 * math.erfc(gap / spread / math.sqrt(2.0))
    return better / (1.0 - better)
