"""Averages the predictions of several regression models, weighted by how well each model has predicted.

Let x be the question's d features, of which the last ones are its lengths, and c the columns of its declared context.
The models differ in their design row z, the numbers that they regress on, and in the prior of an arm's weights:

    short       z = (1, the lengths among x / sqrt(d), c)
    question    z = (1, x / sqrt(d))
    pooled      z = (1, x / sqrt(d), c); the prior mean of every arm is a regression of all arms' rows (pooled.py)
    context     z = (1, x / sqrt(d), c)
    product     z = (1, x / sqrt(d), c, sketch of x c)

A model with more columns needs more rows before it predicts well, so all models learn all rows. Let L be the sum of a
model's squared prediction errors, each computed before the row was learned, and s^2 the mean square of the best model.
The prediction is the mean of the models with the weights prior * exp(-L / (2 s^2)). This is Bayesian model averaging by
prequential evidence (Dawid 1984; Hoeting et al. 1999) with Gaussian noise of one variance.

Only the first model has posterior samples. If it is the short one, its few weights are soon known; the samples of a
model with hundreds of weights stay wide for thousands of rows, and a policy that explores by them keeps drawing arms
that are a little worse (docs/mba.md has figures).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.router.encoders.features import LENGTHS
from ragbandit.router.policies.base import (
    Arrays,
    Facts,
    cost_weight_of,
    counted_state,
    own_cost_weight,
    quality_cost_and_weight,
    restored_counts,
    rows_of,
    tally,
)
from ragbandit.router.policies.context import SKETCHED, ContextColumns, sketch
from ragbandit.router.policies.noise import LEAST_NOISE
from ragbandit.router.policies.posterior import Heads, Row
from ragbandit.router.policies.surrogates import PLAIN, TRUSTED, Surrogate
from ragbandit.shared.errors import PolicyFault
from ragbandit.shared.types import (
    SURROGATES,
    ArmName,
    FeatureRows,
    Features,
    Json,
    Matrix,
    Query,
    Reward,
    Update,
    Vector,
)

#: squared prediction error of each model before its first row, so that a few rows do not decide between the models
_FIRST_SQUARE: Final = 0.25
_MOST_FEATURE: Final = 250.0
#: rows with a larger absolute number are refused, so that a product of four such numbers is finite
_MOST_NUMBER: Final = 1e70
#: total weight of an arm's earlier rows after a restart
RESTART_ROWS: Final = 3.0


@dataclass(frozen=True, slots=True)
class PosteriorMeans:
    """Posterior means for one question: arrays with a number per offered arm. value = quality - weight * cost."""

    quality: Vector
    cost: Vector
    value: Vector

    def facts(self, *, weight: float) -> dict[str, Json]:
        return {"quality": self.quality.tolist(), "cost": self.cost.tolist(), "weight": weight}


@dataclass(slots=True)
class _Arm:
    #: cost of the arm's first row, which is the prior mean of the arm's cost
    first_cost: float
    #: number of the arm's rows since its last restart
    age: int = 0
    mass: float = 0.0  #: total weight of the rows since the last restart


class AveragedHeads:
    """Predicts quality and cost of every arm by the weighted mean of several models.

    models: name -> (prior weight up to a common factor, heads). The first model has the posterior samples
    quality: prior mean of each arm's quality. The prior mean of an arm's cost is the cost of its first row; before that
        row, it is the mean over the other arms. If `quality` is None, the prior means of quality and cost are 0
    """

    def __init__(
        self,
        schema: ContextSchema,
        *,
        models: Mapping[str, tuple[float, Heads]],
        memory: float | None,
        quality: float | None,
    ) -> None:
        self.schema, self.columns = schema, ContextColumns(schema)
        self._sketched = SKETCHED if schema else 0
        self._prior = {name: prior for name, (prior, _) in models.items()}
        self._models = {name: model for name, (_, model) in models.items()}
        self.memory, self.quality = memory, quality
        #: name of the model that has the samples
        self._sampler = next(iter(models))
        self.pairs = self._models[self._sampler].pairs
        #: model in which arms share parts, so that it can also predict arms without rows; None if arms share no parts
        self._shared = next((name for name, model in self._models.items() if model.facts is not None), None)
        self.seen: dict[ArmName, int] = {}
        #: cost weight of the last row whose question had no cost weight of its own, or of the last row if all questions
        #: had their own (`_is_borrowed`); 0 before the first row
        self.weight = 0.0
        #: whether every question so far had its own cost weight
        self._is_borrowed = False
        self._arms: dict[ArmName, _Arm] = {}
        #: model -> sum of its squared prediction errors, in which old rows have less weight
        self._losses = dict.fromkeys(models, 0.0)
        self._rows = 0.0
        #: cache of `weights`; None after a row was learned
        self._shares: dict[str, float] | None = None
        self._surrogates: dict[str, Surrogate] = {}
        #: weight of the last row after the calibration of its score
        self.last_rows = 0.0
        #: error of the best model's prediction of the last row, in reward; `residual`: the same in standard deviations
        self.prediction_error = self.residual = 0.0
        #: number of features of a question; 0 before the first row
        self._length = 0

    @property
    def noise(self) -> float:
        """Standard deviation of rewards around their means at the default cost weight, > 0."""
        return self.noise_at(self.weight)

    def noise_at(self, weight: float) -> float:
        """Standard deviation of rewards around their means at a cost weight, > 0, according to the best model."""
        return self._models[self._best].noise.at(weight)

    @property
    def _best(self) -> str:
        return min(self._models, key=self._losses.__getitem__)

    def age(self, arm: ArmName) -> int:
        return self._arms[arm].age if arm in self._arms else 0

    def join_features(self, features: FeatureRows, *, queries: Sequence[Query]) -> FeatureRows:
        """Rows of features, context and the sketch of their products: (n, d + context columns + SKETCHED), float32.

        Without a context schema: the features as they are, (n, d).
        """
        if not self._sketched:
            return features
        return np.array([self._row(row, query=query) for row, query in zip(features, queries, strict=True)])

    def _row(self, features: Features, *, query: Query) -> Features:
        if not self._sketched:
            return features
        context = self.columns.of(query)
        products = sketch(features, context)
        return np.concatenate([features, context.astype(np.float32), products.astype(np.float32)])

    def weights(self) -> dict[str, float]:
        if self._shares is None:
            best = min(self._losses.values())
            scale = 2.0 * (_FIRST_SQUARE + best) / (1.0 + self._rows)
            odds = {name: self._prior[name] * math.exp(-(loss - best) / scale) for name, loss in self._losses.items()}
            total = math.fsum(odds.values())
            self._shares = {name: value / total for name, value in odds.items()}
        return self._shares

    def sample(self, features: Features, *, arms: Sequence[ArmName], weight: float) -> tuple[PosteriorMeans, Matrix]:
        """Returns (posterior means, deviations of the posterior samples from their `value`) for one question.

        features: a row of `join_features`. The deviations have the shape (arms, samples), in units of reward.
        """
        designs, (quality, cost) = self._designs(features), self._prior_means(arms)
        new = [index for index, arm in enumerate(arms) if arm not in self._arms]
        means = np.array([self._means(name, designs, arms, new=new) for name in self._models])
        # np.tensordot, but without its steps for other shapes
        mean = np.array([list(self.weights().values())]).dot(means.reshape(len(means), -1)).reshape(2, -1)
        deviations = self._models[self._sampler].deviations(designs[self._sampler], arms=arms)
        deviations *= max(self.noise_at(weight), LEAST_NOISE)
        quality, cost = quality + mean[0], cost + mean[1]
        samples = np.concatenate([deviations, -deviations])
        return PosteriorMeans(quality=quality, cost=cost, value=quality - weight * cost), samples.T

    def _means(
        self, name: str, designs: Mapping[str, Vector], arms: Sequence[ArmName], *, new: Sequence[int]
    ) -> Matrix:
        """Means of quality and cost minus prior means, (2, arms). Model `_shared` predicts arms without rows."""
        means = self._models[name].means(designs[name], arms=arms)
        if new and self._shared not in (None, name):
            means[:, new] = self._models[self._shared].means(designs[self._shared], arms=[arms[i] for i in new])
        return means

    def _designs(self, joined: Features) -> dict[str, Vector]:
        question = joined.size - self.columns.size - self._sketched
        whole = np.empty(joined.size + 1)
        whole[0] = 1.0
        np.divide(joined[:question], math.sqrt(question), out=whole[1 : question + 1], dtype=np.float64)
        if question < joined.size:
            np.clip(joined[question:], -_MOST_FEATURE, _MOST_FEATURE, out=whole[question + 1 :])
        ends = {"question": question + 1, "product": whole.size}
        designs = {name: whole[: ends.get(name, whole.size - self._sketched)] for name in self._models}
        if "short" in designs:
            lengths = max(question - LENGTHS, 0) + 1
            designs["short"] = np.concatenate([whole[:1], designs["short"][lengths:]])
        return designs

    def _prior_means(self, arms: Sequence[ArmName]) -> tuple[float, Vector | float]:
        """Returns (prior mean of quality, prior mean of cost for each arm)."""
        if self.quality is None:
            return 0.0, 0.0
        mean = math.fsum(state.first_cost for state in self._arms.values()) / max(1, len(self._arms))
        costs = np.array([self._arms[arm].first_cost if arm in self._arms else mean for arm in arms])
        return self.quality, costs

    def learn(self, update: Update) -> None:
        """Learn a row in every model, O(d^2). Raises PolicyFault for unusable rows, and then changes nothing."""
        rows, features = rows_of(update), update.features
        if features is None or self._length not in (0, features.size):
            raise PolicyFault("the features are missing, or their number differs from earlier rows")
        if not np.abs(features).max() <= _MOST_FEATURE:  # also refuses NaN
            fault = f"a feature is not finite, or beyond {_MOST_FEATURE:g}"
            raise PolicyFault(f"{fault}; use an encoder whose features are near 1")
        usual = math.inf if own_cost_weight(update.query) is None or self.weight <= 0.0 else self.weight
        query_weight = cost_weight_of(update.query, default=self.weight)
        quality, cost, weight = quality_cost_and_weight(update.reward, weight=query_weight, usual=usual)
        numbers = (quality, cost, weight, weight * cost, update.reward.cost)
        if not all(abs(number) <= _MOST_NUMBER for number in numbers):
            raise PolicyFault("the row has numbers that are not finite, or too large to be squared")
        is_first = not self.seen
        tally(self.seen, update)
        self.last_rows = rows
        if rows == 0.0:
            return
        if update.arm not in self._arms:
            self._arms[update.arm] = _Arm(0.0 if self.quality is None else cost)
        arm = self._arms[update.arm]
        source = self._source(update.arm, update.reward, rows=rows)
        scale = PLAIN if source == TRUSTED else self._surrogates[source].scale
        row = Row(update.arm, (quality - (self.quality or 0.0), cost - arm.first_cost), weight, rows, source)
        self.last_rows = rows = scale.share * rows
        arm.age, arm.mass = arm.age + 1, arm.mass + rows
        best = self._best
        fade = 1.0 if self.memory is None else max(1.0 - rows / self.memory, 0.0)
        designs = self._designs(self._row(features, query=update.query))
        for name, model in self._models.items():
            error, residual = model.learn(designs[name], row)
            self._losses[name] = fade * self._losses[name] + rows * min(rows, 1.0) * (error * error)
            if name == best:
                self.prediction_error, self.residual = error + row.target[0] - scale.quality(row.target[0]), residual
        if update.query.cost_weight is None or self._is_borrowed or is_first:
            self.weight, self._is_borrowed = float(weight), update.query.cost_weight is not None
        self._rows = fade * self._rows + rows
        self._shares, self._length = None, features.size
        self.columns.learn(update.query)

    def _source(self, arm: ArmName, reward: Reward, *, rows: float) -> str:
        """The source of a row's quality. Trusted ratings also recalibrate the other sources that scored the answer."""
        source = reward.judged_by or ""
        if not reward.has_parts:
            return TRUSTED
        if source in SURROGATES:
            surrogate = self._surrogates.setdefault(source, Surrogate())
            surrogate.unrated, surrogate.mass = surrogate.unrated + 1, surrogate.mass + rows
            return source
        for name, score in reward.surrogates.items():
            surrogate, prior = self._surrogates.setdefault(name, Surrogate()), self.quality or 0.0
            if surrogate.learn(arm, quality=reward.quality - prior, score=score - prior):
                for model in self._models.values():
                    model.rescale(name, surrogate.scale)
        return TRUSTED

    def restart(self, arm: ArmName) -> None:
        """Reduce the total weight of an arm's rows to RESTART_ROWS: its estimate stays, its posterior becomes wider."""
        state = self._arms.get(arm)
        if state is not None and state.mass > 0.0:
            mass = state.mass if self.memory is None else min(state.mass, self.memory)
            share = min(1.0, RESTART_ROWS / mass)
            state.age, state.mass = 0, 0.0
            for model in self._models.values():
                model.fade(arm, share=share)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        arrays, facts = counted_state(self.seen)
        models = {}
        for name, model in self._models.items():
            model_arrays, models[name] = model.state()
            arrays |= {f"{name}/{key}": array for key, array in model_arrays.items()}
        facts |= {"models": models, "losses": dict(self._losses), "rows": self._rows, "length": self._length}
        facts |= {"weight": self.weight, "is_borrowed": self._is_borrowed, "context": self.columns.state()}
        facts["surrogates"] = {source: surrogate.state() for source, surrogate in self._surrogates.items()}
        arms = sorted(self._arms.items())
        return arrays, facts | {key: {name: getattr(arm, key) for name, arm in arms} for key in _Arm.__slots__}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        self.seen = restored_counts(facts)
        self.weight, self._is_borrowed = facts["weight"], facts["is_borrowed"]
        self._arms = {
            name: _Arm(facts["first_cost"][name], age, facts["mass"][name]) for name, age in facts["age"].items()
        }
        parts: dict[str, Arrays] = {name: {} for name in self._models}
        for key, array in arrays.items():
            name, _, array_name = key.partition("/")
            parts[name][array_name] = array
        self._surrogates = {source: Surrogate.from_state(state) for source, state in facts["surrogates"].items()}
        scales = {source: surrogate.scale for source, surrogate in self._surrogates.items()}
        for name, model in self._models.items():
            model.restore(parts[name], facts["models"][name], scales=scales)
        self.columns.restore(facts["context"])
        self._losses = {name: facts["losses"][name] for name in self._models}
        self._rows, self._length = facts["rows"], facts["length"]
        self._shares = None
