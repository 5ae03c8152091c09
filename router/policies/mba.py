"""The two policies on the posterior of quality and cost: `mba` explores by posterior samples, `linucb` by a bound.

MBA-RAG (arXiv 2412.01572, section 3) regresses r_a = A(y, y_a) - lambda C(a) on DistilBERT's output, with squared error
on the drawn arm only, and explores with probability 1 / ln(e) at step e. Here a head is the exact minimiser of the
ridge-regularised error over all rows, quality and cost are two heads, and epsilon follows from the posterior of each
question: an arm is drawn by its share of the posterior samples in which it is the best, their deviations counted

    c(K) = min(0.7, 1 / sqrt(2 ln K)) times, K arms offered,

since of K arms that are all alike the best of K guesses lies sqrt(2 ln K) deviations above the mean. The pmf is a share
of fixed samples, so the logged propensity is exact. docs/mba.md has the reasons; `mba_paper` fine-tunes as published.

LinUCB (Li et al. 2010, algorithm 1, disjoint) plays argmax of mean + alpha * sqrt(x^T A^-1 x). Here the width is that
of the posterior samples, in units of the reward, and epsilon goes to all arms alike: logs can judge other policies.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from pydantic import Field

from ragbandit.router.policies.averaging import AveragedHeads
from ragbandit.router.policies.base import (
    Arrays,
    Facts,
    HasParams,
    Number,
    PolicyNeed,
    PolicyOutput,
    PolicyParams,
    Positive,
    Share,
    epsilon_greedy,
    read_params,
    weight_of,
)
from ragbandit.router.policies.change import ChangeTest
from ragbandit.router.policies.context import read_schema
from ragbandit.router.policies.posterior import LEAST_MEMORY, ArmFacts, Heads
from ragbandit.shared.types import ArmName, FeatureRows, Features, Json, Matrix, Query, Update, Vector

#: share of an array that rounding may move between two processors: sums of float64, and inverses of them
TOLERANCE: Final = 1e-6
#: most that a deviation of a sample counts: with two arms 1 / sqrt(2 ln K) draws the better one too seldom
_WIDEST: Final = 0.7
#: values of a sample that are nearer than this tie, in units of reward: no processor's rounding decides
_TIE: Final = 1e-7
#: prior mean of the quality of an arm's answers
_QUALITY: Final = 0.5
#: model -> its share before any row, up to a factor: what depends on little is learned from few rows, and a context
#: that does not help must not cost the first questions
_MODELS: Final = {"short": 1.0, "question": 1.0}
_MODELS_WITH_CONTEXT: Final = {"short": 1.0, "question": 0.5, "context": 0.5, "product": 0.02}
_OPTIMIST_WITH_CONTEXT: Final = {"question": 1.0, "context": 0.1, "product": 0.02}
#: the share of the model of every arm alone where arms are declared to share parts
_QUESTION_WITH_FACTS: Final = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class RidgeParams(PolicyParams):
    """Settings of every policy on ridge heads."""

    #: prior precision of the weights, in units where |x|^2 / d is 1 on average
    ridge: Positive = 10.0
    #: prior precision of the intercept
    bias_ridge: Positive = 1.0
    #: posterior samples, in pairs
    points: Annotated[int, Field(ge=8, le=256, multiple_of=2)] = 64
    #: what the setting `context` declares, or did when the ledger was learned
    context: Mapping[str, Any] | None = None
    #: of what is learned and how, recorded so that a ledger of before is learned again; not to be set
    revision: Annotated[int, Field(ge=3, le=3)] = 3


class RidgePolicy(AveragedHeads, HasParams, ABC):
    """A policy on these heads: a subclass only says how a posterior becomes a pmf.

    The scores of its output are the posterior means; what it explores with stands in the facts, beside quality, cost
    and the weight between them.
    """

    algorithm: ClassVar[str]
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"features"})
    deterministic: ClassVar[bool] = True
    lean: ClassVar[bool] = True
    serves_prices: ClassVar[bool] = True
    takes_context: ClassVar[bool] = True
    tolerance: ClassVar[float] = TOLERANCE

    def __init__(
        self,
        params: RidgeParams,
        *,
        models: Mapping[str, float],
        facts: ArmFacts | None = None,
        memory: float | None = None,
        quality: float | None = None,
    ) -> None:
        """models: those that are averaged, each with its share before any row. facts, memory, quality: as the heads."""
        HasParams.__init__(self, params)
        alike = partial(
            Heads, ridge=params.ridge, bias_ridge=params.bias_ridge, memory=memory, pairs=params.points // 2
        )
        made = {name: (share, alike(facts if name == "short" else None)) for name, share in models.items()}
        super().__init__(read_schema(params.context), models=made, memory=memory, quality=quality)

    @abstractmethod
    def output(self, features: Features, *, arms: Sequence[ArmName], weight: float) -> PolicyOutput:
        """The pmf over these arms for one question at a weight of cost; features as the heads read them, (d,)."""

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """One output per question, each from its own features and arms alone."""
        assert features is not None
        return [
            self.output(row, arms=offered, weight=weight_of(query, default=self.weight))
            for query, row, offered in zip(queries, self.joined(features, queries=queries), arms, strict=True)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class MbaParams(RidgeParams):
    """Settings of mba."""

    ridge: Positive = 3.3
    bias_ridge: Positive = 3.3
    #: factor on the deviations of the samples; 0 is greedy but for epsilon_min
    explore: Number = 1.0
    #: probability that is always spread over all arms, beside the floors of the draw
    epsilon_min: Share = 0.0
    #: rows of an arm after which an older one counts 1/e
    memory: Annotated[float, Field(ge=LEAST_MEMORY, le=1e12, allow_inf_nan=False)] = 20_000.0
    #: rows that an unchanged arm learns before it is said to have changed, on average at least; above 1e15: never
    alarm: Annotated[float, Field(ge=100.0, le=1e18, allow_inf_nan=False)] = 100_000.0
    #: what the arms share, as the settings `arms.NAME.facts` and grids declare it
    facts: Mapping[ArmName, Mapping[str, str | int | float | bool]] | None = None


class MbaRag(RidgePolicy):
    """Every arm by its share of the posterior samples in which it is the best (arXiv 2412.01572, but for the above)."""

    algorithm: ClassVar[str] = "mba"
    takes_facts: ClassVar[bool] = True
    #: defaults where it is held back to an incumbent (docs/mba.md)
    with_incumbent: ClassVar[Mapping[str, Json]] = {"explore": 0.5}

    def __init__(self, **params: Json) -> None:
        settings = read_params(MbaParams, given=params)
        models = _MODELS_WITH_CONTEXT if settings.context else _MODELS
        if settings.facts:
            models = models | {"question": _QUESTION_WITH_FACTS}
        facts = settings.facts or None
        super().__init__(settings, models=models, facts=facts, memory=settings.memory, quality=_QUALITY)
        self.explore, self.epsilon_min = settings.explore, settings.epsilon_min
        self._changes = ChangeTest(alarm=settings.alarm)
        #: per arm: changes that its rows told of
        self.alarms: dict[ArmName, int] = {}

    def output(self, features: Features, *, arms: Sequence[ArmName], weight: float) -> PolicyOutput:
        """Every arm by its share of the posterior samples in which it is the best."""
        means, deviations = self.sampled(features, arms=arms, weight=weight)
        even = self.epsilon_min / len(arms)
        shares = shares_of_samples(means.value, deviations, explore=self.explore)
        pmf = tuple([even + (1.0 - self.epsilon_min) * share for share in shares])
        facts = means.facts(weight=weight) | {"epsilon": 1.0 - max(pmf)}
        return PolicyOutput(pmf=pmf, scores=tuple(means.value.tolist()), deviations=deviations, facts=facts)

    def learn(self, update: Update) -> None:
        """One row into the heads of the drawn arm and into its test for changes; PolicyFault as in AveragedHeads."""
        super().learn(update)
        arm, rows, predicted = update.arm, self.counted, update.reward.value - self.missed
        if rows > 0.0 and self._changes.learn(arm, self.residual, predicted=predicted, rows=rows):
            super().restart(arm)
            self.alarms[arm] = self.alarms.get(arm, 0) + 1

    def restart(self, arm: ArmName) -> None:
        """As of AveragedHeads; the test for changes that nobody declares restarts too."""
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


def shares_of_samples(values: Vector, deviations: Matrix, *, explore: float = 1.0) -> list[float]:
    """Of each arm the share of samples in which it is the best; arms that tie share. Shapes (arms,), (arms, samples).

    Deviations count explore * min(_WIDEST, 1 / sqrt(2 ln K)) times, K arms.
    """
    width = explore * min(_WIDEST, 1.0 / math.sqrt(2.0 * math.log(max(len(values), 2))))
    moved = values[:, None] + width * deviations
    best = moved >= moved.max(axis=0) - _TIE
    count = best.shape[1]
    won = best.sum(axis=1) if np.count_nonzero(best) == count else (best / best.sum(axis=0)).sum(axis=1)
    shares: list[float] = (won / count).tolist()
    return shares


@dataclass(frozen=True, kw_only=True, slots=True)
class LinUcbParams(RidgeParams):
    """Settings of linucb."""

    #: twice those of mba: a bound follows the width of every arm itself, not a share of samples
    points: Annotated[int, Field(ge=8, le=256, multiple_of=2)] = 128
    #: standard deviations of optimism
    alpha: Number = 1.0
    #: share of the probability that is spread over all arms; the floors keep every arm possible
    epsilon: Share = 0.0


class LinUcb(RidgePolicy):
    """Epsilon-greedy on mean + alpha * width of the reward; an arm without rows has the prior's mean 0 and width."""

    algorithm: ClassVar[str] = "linucb"

    def __init__(self, **params: Json) -> None:
        settings = read_params(LinUcbParams, given=params)
        super().__init__(settings, models=_OPTIMIST_WITH_CONTEXT if settings.context else {"question": 1.0})
        self.alpha, self.epsilon = settings.alpha, settings.epsilon

    def output(self, features: Features, *, arms: Sequence[ArmName], weight: float) -> PolicyOutput:
        """Most on the highest bound; the bounds go to the log as "ucb", with epsilon."""
        means, deviations = self.sampled(features, arms=arms, weight=weight)
        widths = np.sqrt((deviations * deviations).mean(axis=1))
        bounds: list[float] = (means.value + self.alpha * widths).tolist()
        facts = means.facts(weight=weight) | {"ucb": bounds, "epsilon": self.epsilon}
        scores = tuple(means.value.tolist())
        return PolicyOutput(pmf=epsilon_greedy(bounds, epsilon=self.epsilon), scores=scores, facts=facts)
