"""MBA-RAG: epsilon-greedy on DistilBERT, reward heads per arm (arXiv 2412.01572, section 3), made for few rows.

The paper regresses r_a = A(y, y_a) - lambda C(a) on the encoder's output with squared error on the drawn arm only,
and explores with probability 1/ln(e) at step e. Kept: encoder, heads per arm, masked squared error, epsilon-greedy.
Different, on purpose, each chosen on a board of worlds (docs/mba.md says what was tried):

- Two heads per arm, quality A and cost C, so that lambda can change without learning again.
- A head is the exact minimiser of the ridge-regularised squared error over all updates
  (router/policies/linear/ridge.py), not one gradient step per question: no learning rate, and an exact function of the
  ledger.
- Epsilon is not a schedule: it follows from the posterior of this question. 64 fixed points of the posterior
  (points.py) each say which arm is best; an arm is drawn by its share of them, and epsilon is 1 less the greedy arm's
  share. It falls as the posterior narrows, question by question. The points' deviations count c(K) times,

      c(K) = min(0.7, 1 / sqrt(2 ln K)),

  K arms offered: of K arms that are all alike, the best of K guesses lies sqrt(2 ln K) deviations above the mean.
  The pmf is a share of fixed points: the logged propensity is exact.
- Rewards drift, and a service has no last step. Old rows fade (memory); an abrupt change of an arm is declared, or
  found by a test on the calibration of its newest rows (change.py), and its old rows count for little from then on.
- A failing arm's reward is what the reward setting says (the authors' code turns -1 into 0); no dropout noise.

`mba_paper`, the faithful fine-tuning, is another policy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ragbandit.router.policies.base import Arrays, Facts, Number, PolicyOutput, Positive, Share, read_params
from ragbandit.router.policies.linear.change import ChangeTest
from ragbandit.router.policies.linear.context_heads import SHORT, SHORT_WITH_CONTEXT, ContextHeads
from ragbandit.router.policies.linear.points import PointHeads, shares_of_points
from ragbandit.router.policies.linear.policy import RESTART_ROWS, RidgeParams, RidgePolicy
from ragbandit.router.policies.linear.ridge import LEAST_MEMORY
from ragbandit.shared.types import ArmName, Features, Json, Update


@dataclass(frozen=True, kw_only=True, slots=True)
class MbaParams(RidgeParams):
    """Settings of mba."""

    #: points of the posterior: the pmf is a share of them, but for the floors
    points: Annotated[int, Field(ge=8, le=256)] = 64
    ridge: Positive = 3.3
    bias_ridge: Positive = 3.3
    #: factor on the deviations of the points; 0 is greedy but for epsilon_min
    explore: Number = 1.0
    #: probability that is always spread over all arms, beside the floors of the draw
    epsilon_min: Share = 0.0
    #: rows of an arm after which an older one counts 1/e
    memory: Annotated[float, Field(ge=LEAST_MEMORY, le=1e12, allow_inf_nan=False)] = 20_000.0
    #: rows that an unchanged arm learns before it is said to have changed, on average at least; above 1e15: never
    alarm: Annotated[float, Field(ge=100.0, le=1e18, allow_inf_nan=False)] = 100_000.0


class MbaRag(RidgePolicy):
    """Epsilon-greedy over two ridge heads per arm on z = (1, x / sqrt(d)), x the question's features."""

    algorithm: ClassVar[str] = "mba"
    #: defaults where it is held back to an incumbent (docs/mba.md)
    with_incumbent: ClassVar[Mapping[str, Json]] = {"explore": 0.5}
    of_heads: ClassVar[tuple[str, ...]] = ("points",)

    def __init__(self, **params: Json) -> None:
        settings = read_params(MbaParams, given=params)
        super().__init__(settings, memory=settings.memory)
        self._heads: ContextHeads
        self.explore, self.epsilon_min = settings.explore, settings.epsilon_min
        self._changes = ChangeTest(alarm=settings.alarm)
        #: per arm: changes that its rows told of
        self.alarms: dict[ArmName, int] = {}

    @staticmethod
    def heads(**settings: Any) -> PointHeads:
        """Heads with points of the posterior."""
        return PointHeads(**settings)

    def models(self) -> Mapping[str, float]:
        """A short one is always among them."""
        return SHORT_WITH_CONTEXT if self.schema else SHORT

    def output(self, features: Features, *, arms: Sequence[ArmName], weight: float) -> PolicyOutput:
        """Every arm by its share of the points in which it is the best."""
        means, deviations = self._heads.sampled(features, arms=arms, weight=weight)
        even = self.epsilon_min / len(arms)
        shares = shares_of_points(means.value, deviations, explore=self.explore)
        pmf = tuple([even + (1.0 - self.epsilon_min) * share for share in shares])
        facts = {"quality": means.quality.tolist(), "cost": means.cost.tolist(), "weight": weight}
        facts |= {"epsilon": 1.0 - max(pmf)}
        return PolicyOutput(pmf=pmf, scores=tuple(means.value.tolist()), deviations=deviations, facts=facts)

    def learn(self, update: Update) -> None:
        """One row into the heads of the drawn arm and into its test for changes; PolicyFault as in RidgeHeads."""
        arm, residual, rows = update.arm, self._heads.learn(update), update.reward.sample_weight
        if rows == 0.0:
            return
        superseded = self._superseded(update)
        if superseded is not None:
            self._heads.finish(arm, restart=superseded)
            self._changes.restart(arm)
            return
        predicted = update.reward.value - self._heads.missed
        is_changed = self._changes.learn(arm, residual, predicted=predicted, rows=rows)
        self._heads.finish(arm, restart=RESTART_ROWS if is_changed else None)
        if is_changed:
            self.alarms[arm] = self.alarms.get(arm, 0) + 1

    def restart(self, arm: ArmName) -> None:
        """As of RidgePolicy; the test for changes that nobody declares begins anew too."""
        super().restart(arm)
        self._changes.restart(arm)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The heads' state, and per arm the alarms and the test's numbers."""
        arrays, facts = super().state()
        return arrays, facts | {"alarms": dict(sorted(self.alarms.items())), "changes": self._changes.state()}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over a saved state."""
        super().restore(arrays, facts)
        self.alarms = dict(facts["alarms"])
        self._changes.restore(facts["changes"])
