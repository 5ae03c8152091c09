"""Two policies on the posterior of quality and cost: `mba` explores by posterior samples, `linucb` by an upper bound.

MBA-RAG (arXiv 2412.01572, section 2) regresses the reward of the drawn arm on DistilBERT's output with squared error,
and explores with probability 1 / ln(e) at step e. Here quality and cost have separate heads, each head is the exact
minimiser of the ridge-regularised error over all rows, and the probability of an arm is the share of posterior samples
in which it is the best (docs/mba.md). For K offered arms, the deviations of the samples are multiplied by

    c(K) = min(0.7, 1 / sqrt(2 ln K)),

because the best of K equal arms lies about sqrt(2 ln K) deviations above the mean.

LinUCB (Li et al. 2010, algorithm 1, disjoint) plays the arm with the highest mean + alpha * width of the confidence
interval. Here the width is the standard deviation of the posterior samples, and epsilon is spread evenly over the arms.
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
    cost_weight_of,
    epsilon_greedy,
    read_params,
)
from ragbandit.router.policies.change import ChangeTest
from ragbandit.router.policies.context import read_schema
from ragbandit.router.policies.pooled import POOLED, PooledHeads
from ragbandit.router.policies.posterior import LEAST_MEMORY, ArmFacts, Heads
from ragbandit.shared.types import ArmName, FeatureRows, Features, Json, Matrix, Query, Update, Vector

#: largest relative difference that the rounding of float64 sums and inverses causes between two processors
TOLERANCE: Final = 1e-6
#: largest c(K), see the module: with 1 / sqrt(2 ln 2) the better of two arms would be drawn too seldom
_WIDEST: Final = 0.7
#: arms tie in a sample if their rewards differ by less than this, so that rounding does not decide
_TIE: Final = 1e-7
_QUALITY: Final = 0.5
#: model -> prior weight up to a factor; the weight of "product" is small, so a useless context harms little at first
_MODELS: Final = {"short": 1.0, "question": 1.0, POOLED: 0.1}
_MODELS_WITH_CONTEXT: Final = {"short": 1.0, "question": 0.5, "context": 0.5, "product": 0.02, POOLED: 0.1}
#: prior weights of the models of linucb with a context; the first model gives the widths, and reads the context
_OPTIMIST_WITH_CONTEXT: Final = {"context": 0.1, "question": 1.0, "product": 0.02}
#: prior weight of the model "question" if arms declare shared parts: small, because this model ignores shared parts
_QUESTION_WITH_FACTS: Final = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class RidgeParams(PolicyParams):
    #: prior precision of the features' weights; larger values trust features less
    ridge: Positive = 10.0
    bias_ridge: Positive = 1.0
    #: number of posterior samples, which come in pairs
    points: Annotated[int, Field(ge=8, le=256, multiple_of=2)] = 64
    #: value of the setting `context` when the ledger was learned
    context: Mapping[str, Any] | None = None
    #: revision of the learning algorithm: a ledger that has another revision is learned again. Do not set this param
    revision: Annotated[int, Field(ge=4, le=4)] = 4


class RidgePolicy(AveragedHeads, HasParams, ABC):
    """Base of policies on averaged heads, whose scores are the posterior means. Subclasses compute the pmf."""

    algorithm: ClassVar[str]
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"features"})
    deterministic: ClassVar[bool] = True
    lean: ClassVar[bool] = True
    copyable: ClassVar[bool] = True
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
        """models: name -> prior weight. facts, memory: see `Heads`. quality: see `AveragedHeads`."""
        HasParams.__init__(self, params)
        new_heads = partial(Heads, ridge=params.ridge, bias_ridge=params.bias_ridge, memory=memory)
        heads: dict[str, tuple[float, Heads]] = {}
        for name, prior in models.items():
            if name == POOLED:
                heads[name] = prior, PooledHeads(ridge=params.ridge, bias_ridge=params.bias_ridge, memory=memory)
            else:
                parts, pairs = facts if name == "short" else None, 0 if heads else params.points // 2
                heads[name] = prior, new_heads(parts, pairs=pairs)
        super().__init__(read_schema(params.context), models=heads, memory=memory, quality=quality)

    @abstractmethod
    def output(self, features: Features, *, arms: Sequence[ArmName], weight: float) -> PolicyOutput: ...

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        assert features is not None
        return [
            self.output(row, arms=offered, weight=cost_weight_of(query, default=self.weight))
            for query, row, offered in zip(queries, self.join_features(features, queries=queries), arms, strict=True)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class MbaParams(RidgeParams):
    ridge: Positive = 3.3
    bias_ridge: Positive = 3.3
    #: factor on the samples' deviations; 0 always plays the best arm, except for `epsilon_min`
    explore: Number = 1.0
    #: probability that is always spread over all arms, in addition to the floors of the draw
    epsilon_min: Share = 0.0
    #: age at which a row has the weight 1/e, as a number of newer rows of its arm
    memory: Annotated[float, Field(ge=LEAST_MEMORY, le=1e12, allow_inf_nan=False)] = 20_000.0
    #: smallest mean number of rows between false alarms about an unchanged arm; above 1e15 there are no alarms
    alarm: Annotated[float, Field(ge=100.0, le=1e18, allow_inf_nan=False)] = 100_000.0
    #: arm -> parts that it may share with other arms; filled in from the settings `arms.NAME.facts` and from grids
    facts: Mapping[ArmName, Mapping[str, str | int | float | bool]] | None = None


class MbaRag(RidgePolicy):
    algorithm: ClassVar[str] = "mba"
    example: ClassVar[Mapping[str, Json]] = {
        "memory": 50.0,
        "alarm": 100.0,
        "facts": {"no_retrieval": {"model": "a"}, "single_step": {"model": "a"}},
    }
    takes_facts: ClassVar[bool] = True
    #: other defaults if the policy is restrained to an incumbent (docs/mba.md)
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
        self.alarms: dict[ArmName, int] = {}

    def output(self, features: Features, *, arms: Sequence[ArmName], weight: float) -> PolicyOutput:
        means, deviations = self.sample(features, arms=arms, weight=weight)
        even = self.epsilon_min / len(arms)
        shares = shares_of_samples(means.value, deviations, explore=self.explore)
        pmf = tuple([even + (1.0 - self.epsilon_min) * share for share in shares])
        facts = means.facts(weight=weight) | {"epsilon": 1.0 - max(pmf)}
        return PolicyOutput(pmf=pmf, scores=tuple(means.value.tolist()), deviations=deviations, facts=facts)

    def learn(self, update: Update) -> None:
        super().learn(update)
        arm, predicted = update.arm, update.reward.value - self.prediction_error
        if self.last_rows > 0.0 and self._changes.learn(arm, self.residual, predicted=predicted, rows=self.last_rows):
            super().restart(arm)
            self.alarms[arm] = self.alarms.get(arm, 0) + 1

    def restart(self, arm: ArmName) -> None:
        super().restart(arm)
        self._changes.restart(arm)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        arrays, facts = super().state()
        return arrays, facts | {"alarms": dict(sorted(self.alarms.items())), "changes": self._changes.state()}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        super().restore(arrays, facts)
        self.alarms = dict(facts["alarms"])
        self._changes.restore(facts["changes"])


def shares_of_samples(values: Vector, deviations: Matrix, *, explore: float = 1.0) -> list[float]:
    """Share of samples in which each arm is the best; ties are divided. deviations: (arms, samples)."""
    width = explore * min(_WIDEST, 1.0 / math.sqrt(2.0 * math.log(max(len(values), 2))))
    moved = values[:, None] + width * deviations
    best = moved >= moved.max(axis=0) - _TIE
    count = best.shape[1]
    won = best.sum(axis=1) if np.count_nonzero(best) == count else (best / best.sum(axis=0)).sum(axis=1)
    shares: list[float] = (won / count).tolist()
    return shares


@dataclass(frozen=True, kw_only=True, slots=True)
class LinUcbParams(RidgeParams):
    #: number of posterior samples, in pairs; more than for mba, because the widths decide which arm is played
    points: Annotated[int, Field(ge=8, le=256, multiple_of=2)] = 128
    #: number of standard deviations that the bound lies above the mean
    alpha: Number = 1.0
    #: probability that is spread evenly over all arms, in addition to the floors of the draw
    epsilon: Share = 0.0


class LinUcb(RidgePolicy):
    """Epsilon-greedy on mean + alpha * width of each arm's reward. An arm without rows has the prior mean 0."""

    algorithm: ClassVar[str] = "linucb"

    def __init__(self, **params: Json) -> None:
        settings = read_params(LinUcbParams, given=params)
        super().__init__(settings, models=_OPTIMIST_WITH_CONTEXT if settings.context else {"question": 1.0})
        self.alpha, self.epsilon = settings.alpha, settings.epsilon

    def output(self, features: Features, *, arms: Sequence[ArmName], weight: float) -> PolicyOutput:
        means, deviations = self.sample(features, arms=arms, weight=weight)
        widths = np.sqrt((deviations * deviations).mean(axis=1))
        bounds: list[float] = (means.value + self.alpha * widths).tolist()
        facts = means.facts(weight=weight) | {"ucb": bounds, "epsilon": self.epsilon}
        scores = tuple(means.value.tolist())
        return PolicyOutput(pmf=epsilon_greedy(bounds, epsilon=self.epsilon), scores=scores, facts=facts)
