"""Posteriors of several models of the same rows, weighed by what each has foretold.

    short       z = (1, the lengths among x / sqrt(d), c)
    question    z = (1, x / sqrt(d))
    context     z = (1, x / sqrt(d), c)
    product     z = (1, x / sqrt(d), c, sketch of x c)

x are the question's features, the last two of them its lengths (router/encoders/features.py); c is the declared
context. Useless columns cost rows: each must be found useless. So nobody has to know beforehand whether features and
context help: the models learn side by side, and a prediction is their mean, weighed by prior * exp(-L / 2 s^2). L adds
up the squares that a model missed the reward of each row by, before it learned that row; s^2 is the mean square of the
best.
That is Bayesian model averaging by prequential evidence (Dawid 1984; Hoeting et al. 1999), the noise Gaussian, of one
variance.

The width adds the spread of the three means: where they disagree there is something to explore.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

import numpy as np

from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.router.encoders.features import LENGTHS
from ragbandit.router.policies.base import (
    Arrays,
    Facts,
    counted_state,
    heads_of,
    restored_counts,
    rows_of,
    usual_weight,
    weight_of,
)
from ragbandit.router.policies.context import SKETCHED, ContextColumns, sketch
from ragbandit.router.policies.posterior import BayesianHeads, Means
from ragbandit.shared.errors import PolicyFault
from ragbandit.shared.types import ArmName, FeatureRows, Features, Json, Matrix, Query, Update, Vector

#: model -> its share before any row, up to a factor: a schema that does not help must not cost the first questions
WITH_CONTEXT: Final = {"question": 1.0, "context": 0.1, "product": 0.02}
#: where what depends on little is to be learned from few rows; without a context, and with one
SHORT: Final = {"short": 1.0, "question": 1.0}
SHORT_WITH_CONTEXT: Final = {"short": 1.0, "question": 0.5, "context": 0.5, "product": 0.02}
#: what a row is missed by before any is seen, squared; it counts as one row, so that few rows do not decide
_FIRST_SQUARE: Final = 0.25
#: a feature beyond this, as a model scales it, is not learned; the heads end at 256
_MOST_FEATURE: Final = 250.0
#: neither is a reward beyond this: its square must be a float in all three models
_MOST_REWARD: Final = 1e100


class AveragedHeads:
    """Models with the interface of BayesianHeads, over rows that `joined` makes of features and context.

    make: makes the heads of one model.
    """

    def __init__(
        self, schema: ContextSchema, *, make: Callable[[], BayesianHeads], models: Mapping[str, float]
    ) -> None:
        self.columns = ContextColumns(schema)
        self._sketched = SKETCHED if schema else 0
        self._prior = dict(models)
        self._models = {name: make() for name in models}
        #: of every model, the squares of what it missed, added up; and the rows: both fade as the heads' rows do
        self._losses = dict.fromkeys(models, 0.0)
        self._rows = 0.0
        #: `weights`, made when asked for
        self._shares: dict[str, float] | None = None
        #: what the last row's reward was above the prediction of the model that had foretold best
        self.missed = 0.0
        #: features of a question, 0 before the first row
        self._length = 0

    @property
    def _first(self) -> BayesianHeads:
        return next(iter(self._models.values()))

    @property
    def seen(self) -> Mapping[ArmName, int]:
        """Number of updates learned, by arm."""
        return self._first.seen

    @property
    def weight(self) -> float:
        """As BayesianHeads: that of questions that come without one."""
        return self._first.weight

    @property
    def noise(self) -> float:
        """Standard deviation of a reward around its mean, as the first model has it."""
        return self._first.noise

    @property
    def memory(self) -> float | None:
        """Rows of an arm after which an older one counts 1/e."""
        return self._first.memory

    def joined(self, features: FeatureRows, *, queries: Sequence[Query]) -> FeatureRows:
        """Features, context and their products side by side, shape (n, d + columns + SKETCHED), float32."""
        return np.array([self._row(row, query=query) for row, query in zip(features, queries, strict=True)])

    def _row(self, features: Features, *, query: Query) -> Features:
        if not self._sketched:
            return features
        context = self.columns.of(query)
        products = sketch(features, context)
        return np.concatenate([features, context.astype(np.float32), products.astype(np.float32)])

    def _inputs(self, joined: Features) -> dict[str, Features]:
        """What each model reads: scaled so that its design row is x / sqrt(d), the context and the products."""
        context = self.columns.size
        question = joined.size - context - self._sketched
        inputs = {}
        for name in self._models:
            first = max(question - LENGTHS, 0) if name == "short" else 0
            last = {"question": question, "product": joined.size}.get(name, question + context)
            inputs[name] = joined[first:last]
            if name != "question":
                row, own = joined[first:last].astype(np.float64) * math.sqrt(last - first), question - first
                row[:own] /= math.sqrt(question)
                row[own:] = np.clip(row[own:], -_MOST_FEATURE, _MOST_FEATURE)
                inputs[name] = row.astype(np.float32)
        return inputs

    def weights(self) -> dict[str, float]:
        """The share of each model in a prediction; they sum to 1."""
        if self._shares is None:
            least = min(self._losses.values())
            scale = 2.0 * (_FIRST_SQUARE + least) / (1.0 + self._rows)
            odds = {name: self._prior[name] * math.exp(-(loss - least) / scale) for name, loss in self._losses.items()}
            total = math.fsum(odds.values())
            self._shares = {name: one / total for name, one in odds.items()}
        return self._shares

    def predict(self, features: Features, *, arms: Sequence[ArmName], weight: float) -> tuple[Means, Vector]:
        """As BayesianHeads, of a joined row; where the models disagree the deviations are wider."""
        inputs, shares = self._inputs(features), self.weights()
        some = [
            (shares[name], *one.predict(inputs[name], arms=arms, weight=weight)) for name, one in self._models.items()
        ]
        means = _mean_of([(share, one) for share, one, _ in some], weight=weight)
        squares = [share * (width**2 + (one.value - means.value) ** 2) for share, one, width in some]
        return means, np.sqrt(np.sum(squares, axis=0))

    def sampled(self, features: Features, *, arms: Sequence[ArmName], weight: float) -> tuple[Means, Matrix]:
        """As BayesianHeads, of a joined row: of the posterior samples each model has its share."""
        inputs, shares = self._inputs(features), self.weights()
        some: list[tuple[float, Means, Matrix]] = []
        first = 0
        for (name, share), end in zip(shares.items(), accumulate(shares.values()), strict=True):
            model = self._models[name]
            last = round(end * model.samples)
            some.append((share, *model.sampled(inputs[name], arms=arms, weight=weight, first=first, last=last)))
            first = last
        means = _mean_of([(share, one) for share, one, _ in some], weight=weight)
        deviations = [(one.value - means.value)[:, None] + samples for _, one, samples in some]
        return means, np.concatenate(deviations, axis=1)

    def learn(self, update: Update) -> float:
        """One row into each model; PolicyFault and no change if it cannot be used.

        The residual of the model that has foretold best so far, in standard deviations of its prediction.
        """
        features = update.features
        if features is None or self._length not in (0, features.size):
            raise PolicyFault("features are missing or of another length")
        rows = rows_of(update)
        joined = self._row(features, query=update.query)
        inputs = self._inputs(joined)
        usual = usual_weight(update.query, usual=self.weight)
        heads = heads_of(update.reward, weight=weight_of(update.query, default=self.weight), usual=usual)
        if not all(np.abs(row).max() <= _MOST_FEATURE for row in inputs.values()):  # also where one is NaN
            beyond = f"a feature is not finite, or beyond {_MOST_FEATURE:g}"
            raise PolicyFault(f"{beyond}; use an encoder whose features are near 1")
        if not all(abs(one) <= _MOST_REWARD for one in heads):
            raise PolicyFault("the row holds numbers that are not finite, or too large to be squared")
        if rows == 0.0:
            for name, model in self._models.items():
                model.learn(replace(update, features=inputs[name]))
            return 0.0
        best = min(self._models, key=lambda name: self._losses[name])
        fade = 1.0 if self.memory is None else max(1.0 - rows / self.memory, 0.0)
        residuals = {}
        for name, model in self._models.items():
            residuals[name] = model.learn(replace(update, features=inputs[name]))
            self._losses[name] = fade * self._losses[name] + rows * (model.missed * model.missed)
        self.missed = self._models[best].missed
        self._rows, self._length = fade * self._rows + rows, features.size
        self._shares = None
        self.columns.learn(update.query)
        return residuals[best]

    def finish(self, arm: ArmName, *, restart: float | None = None) -> None:
        """As BayesianHeads."""
        for model in self._models.values():
            model.finish(arm, restart=restart)

    def mass(self, arm: ArmName) -> float:
        """What the rows of an arm count as, since it was started, or started again."""
        return self._first.mass(arm)

    def age(self, arm: ArmName) -> int:
        """Rows of an arm since it was started, or started again."""
        return self._first.age(arm)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The models' states, their arrays under their names; what each has missed; the moments of the context."""
        arrays, facts = counted_state(self.seen)
        models = {}
        for name, model in self._models.items():
            of_model, models[name] = model.state()
            arrays |= {f"{name}/{key}": array for key, array in of_model.items()}
        more = {"models": models, "losses": dict(self._losses), "rows": self._rows, "length": self._length}
        return arrays, {**facts, **more, "context": self.columns.state()}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over a saved state. Raises SnapshotError."""
        restored_counts(facts)
        parts: dict[str, Arrays] = {name: {} for name in self._models}
        for key, array in arrays.items():
            name, _, rest = key.partition("/")
            parts[name][rest] = array
        for name, model in self._models.items():
            model.restore(parts[name], facts["models"][name])
        self.columns.restore(facts["context"])
        self._losses = {name: facts["losses"][name] for name in self._models}
        self._rows, self._length, self._shares = facts["rows"], facts["length"], None


def _mean_of(some: Sequence[tuple[float, Means]], *, weight: float) -> Means:
    """The mean of several models' means, by their shares."""
    quality: Vector = np.sum([share * one.quality for share, one in some], axis=0)
    cost: Vector = np.sum([share * one.cost for share, one in some], axis=0)
    return Means(quality=quality, cost=cost, value=quality - weight * cost)
