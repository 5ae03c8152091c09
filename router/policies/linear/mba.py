"""MBA-RAG: epsilon-greedy on DistilBERT, reward heads per arm (arXiv 2412.01572, section 3), made for few rows.

The paper regresses r_a = A(y, y_a) - lambda C(a) on the encoder's output with squared error on the drawn arm only,
and explores with probability 1/ln(e) at step e. Kept: encoder, heads per arm, masked squared error, epsilon-greedy.
Different, on purpose, each chosen by cross-validation on a routing table (docs/mba.md says what was tried):

- Two heads per arm, quality A and cost C, so that lambda can change without learning again.
- A head is the exact minimiser of the ridge-regularised squared error over all updates
  (router/policies/linear/ridge.py),
  not one gradient step per question: no learning rate, and an exact function of the ledger.
- Epsilon is not a schedule but what is still unknown of this question. With g the greedy arm, v and w posterior means
  and widths of the arms' rewards, and p_j = P(v_j > v_g) = Phi((v_j - v_g) / sqrt(w_j^2 + w_g^2)),

      pmf_j = (p_j / (1 - p_j)) / sum_i (p_i / (1 - p_i)),    epsilon = 1 - pmf_g,

  so that every arm is drawn by its odds of being better than the greedy one, ties are shared, and epsilon falls to
  epsilon_min as the widths do. The pmf is a closed form: the logged propensity is exact.
- Old rows fade (memory), and where an arm's rewards have changed at once that is noticed, and its old rows count for
  little from then on (alarm), since a service has no last step and its world moves.
- A failing arm's reward is what the reward setting says (the authors' code turns -1 into 0); no dropout noise.

`mba_paper`, the faithful fine-tuning, is another policy.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ragbandit.router.errors import SnapshotError
from ragbandit.router.policies.base import Arrays
from ragbandit.router.policies.linear.ridge import Opinion, RidgePolicy, per_arm
from ragbandit.router.policies.params import check_number, check_positive
from ragbandit.router.types import ArmName, Features, Json, Update

__all__ = ["MbaRag", "chances"]

#: A cumulative sum forgives this much surprise per row, in standard deviations ...
_FORGIVEN = 0.25
#: ... one row counts no more than this: an arm that is nearly always right may miss once ...
_MOST = 4.0
#: ... and an arm this young is not yet known well enough to be surprised at.
_YOUNG = 30
#: what an arm's rows count together after an alarm
_KEPT = 3.0
#: An arm's mean squared surprise is taken over this many of its rows, and begins as if there had been _CALM rows of 1.
_LATEST, _CALM = 200, 10


class MbaRag(RidgePolicy):
    """Epsilon-greedy over two ridge heads per arm on z = (1, x / sqrt(d)), x the question's features.

    ridge, bias_ridge: prior precision of weights and intercept (> 0), in units where |x|^2 / d is 1 on average.
    explore: factor on the widths (>= 0); 0 is greedy but for epsilon_min.
    epsilon_min: probability that is always spread over all arms, in [0, 1].
    memory: rows of an arm after which an older one counts 1/e (>= 50).
    alarm: an arm's old rows count for little once the surprise at its rewards, summed to one side, exceeds this many
    standard deviations (> 0).
    """

    algorithm: ClassVar[str] = "mba"

    def __init__(
        self,
        *,
        ridge: float = 5.0,
        bias_ridge: float = 1.0,
        explore: float = 1.0,
        epsilon_min: float = 0.02,
        memory: float = 20_000.0,
        alarm: float = 22.0,
    ) -> None:
        super().__init__(ridge=ridge, bias_ridge=bias_ridge, memory=memory)
        self.explore = check_number("explore", explore)
        self.epsilon_min = check_number("epsilon_min", epsilon_min, most=1.0)
        self.alarm = check_positive("alarm", alarm)
        #: per arm: mean squared surprise; surprise summed upwards and downwards (all >= 0); how often its alarm rang
        self._loud: dict[ArmName, float] = {}
        self._upward: dict[ArmName, float] = {}
        self._downward: dict[ArmName, float] = {}
        self.alarms: dict[ArmName, int] = {}

    @property
    def params(self) -> Mapping[str, Json]:
        """The six numbers above."""
        return {
            "ridge": self._heads.ridge,
            "bias_ridge": self._heads.bias_ridge,
            "explore": self.explore,
            "epsilon_min": self.epsilon_min,
            "memory": self._heads.memory,
            "alarm": self.alarm,
        }

    def opinion(self, features: Features, *, arms: Sequence[ArmName]) -> Opinion:
        """In microseconds: an arm's width is the same for all questions."""
        return self._heads.quick(features, arms=arms)

    def explored(self, opinion: Opinion) -> tuple[tuple[float, ...], dict[str, Json]]:
        """Every arm by its odds of being better than the greedy one; an arm never learned has the prior's width."""
        even = self.epsilon_min / len(opinion.value)
        odds = chances(opinion.value, widths=[self.explore * width for width in opinion.width])
        pmf = tuple(even + (1.0 - self.epsilon_min) * p for p in odds)
        return pmf, {"epsilon": 1.0 - max(pmf)}

    def learn(self, update: Update) -> None:
        """Rank-one update of the drawn arm, O(d^2) whatever the number of rows; PolicyFault as in RidgeHeads."""
        arm, surprise = update.arm, self._heads.learn(update)
        loud = self._loud.get(arm, 1.0)
        # The heads' noise is shared by the arms: one that is less sure than the others is louder by nature.
        heard = min(max(surprise / math.sqrt(max(loud, 1.0)), -_MOST), _MOST)
        self._loud[arm] = loud + (surprise * surprise - loud) / min(self.seen[arm] + _CALM, _LATEST)
        if self._heads.age(arm) <= _YOUNG:
            return
        up = max(0.0, self._upward.get(arm, 0.0) + heard - _FORGIVEN)
        down = max(0.0, self._downward.get(arm, 0.0) - heard - _FORGIVEN)
        if max(up, down) > self.alarm:  # Page 1954: the arm is not what it was
            self._heads.discount(arm, rows=_KEPT)
            self.alarms[arm] = self.alarms.get(arm, 0) + 1
            up = down = 0.0
        self._upward[arm], self._downward[arm] = up, down

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The heads', and the sums of surprise."""
        arrays, facts = super().state()
        facts["surprise"] = {arm: [self._upward[arm], self._downward[arm]] for arm in sorted(self._upward)}
        facts["alarms"] = dict(sorted(self.alarms.items()))
        facts["loud"] = dict(sorted(self._loud.items()))
        return arrays, facts

    def restore(self, arrays: Arrays, facts: Mapping[str, Json]) -> None:
        """Take over a saved state. Raises SnapshotError for sums that are missing or are no numbers."""
        surprise, alarms = facts.get("surprise"), facts.get("alarms")
        if not isinstance(surprise, Mapping) or not isinstance(alarms, Mapping):
            raise SnapshotError("the sums of surprise or the alarms are missing")
        for sums in surprise.values():
            two = isinstance(sums, list | tuple) and len(sums) == 2
            if not two or not all(isinstance(s, int | float) and 0 <= s < math.inf for s in sums):
                raise SnapshotError(f"the sums of surprise are wrong: {sums!r}")
        if not all(isinstance(count, int) and count > 0 for count in alarms.values()):
            raise SnapshotError(f"the alarms are wrong: {alarms!r}")
        loud = per_arm(facts, "loud")
        super().restore(arrays, facts)
        self._loud = loud
        self._upward = {arm: float(sums[0]) for arm, sums in surprise.items()}
        self._downward = {arm: float(sums[1]) for arm, sums in surprise.items()}
        self.alarms = dict(alarms)


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
