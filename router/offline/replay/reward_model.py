"""The reward model of a replay: fitted in the first pass over a log, asked in the second."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.estimation.reward_models import (
    Regressor,
    Ridge,
    cross_fitted,
    regressor_named,
)
from ragbandit.router.offline.replay.plan import RIDGES, Plan
from ragbandit.router.offline.types import Choices, Matrix
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import FeatureRows

#: no features
_BARE: Final = ("", 0)
#: (rows, index of the candidate) -> predicted rewards, qualities and costs, shape (n, K, 3)
Model = Callable[[Log, int], Matrix]


@dataclass(kw_only=True)
class RewardModelFit:
    """The cross-fitted reward model of a plan. Features are read where all rows have them, by one encoder."""

    plan: Plan
    #: None: no row was learned yet, or a regressor of another package predicts
    ridge: Ridge | None = None
    #: rows that were learned, by fold
    fold_rows: Choices = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    #: encoder and width of the features that are read; None: no row was learned yet
    kind: tuple[str, int] | None = None
    #: what was predicted last, of which rows: candidates share the model and ask one after the other
    _last: tuple[Log, Matrix] | None = None

    def learn(self, log: Log) -> None:
        """Take in some rows; a regressor of another package is fitted to the whole log at once, by `regressed`."""
        folds = self.plan.folds_in(log)
        rows = np.bincount(folds, minlength=self.plan.folds)
        self.fold_rows = rows + (self.fold_rows if len(self.fold_rows) else 0)
        if self.plan.reward_model not in RIDGES:
            return
        self.read_only(self._kind(log))
        self.ridge = self.ridge or Ridge(arms=len(log.arms), folds=self.plan.folds)
        self.ridge.add(self._read(log), action=log.action, targets=_targets(log), folds=folds)

    def merged(self, other: "RewardModelFit") -> "RewardModelFit":
        """What both have learned."""
        if not (len(self.fold_rows) and len(other.fold_rows)):
            return self if len(self.fold_rows) else other
        self.read_only(other.kind)
        other.read_only(self.kind)
        ridge = self.ridge.merged(other.ridge) if self.ridge and other.ridge else None
        return RewardModelFit(plan=self.plan, ridge=ridge, fold_rows=self.fold_rows + other.fold_rows, kind=self.kind)

    @property
    def one_fold(self) -> bool:
        """Whether one fold has all of several rows: none could be predicted by what the others taught."""
        return int(self.fold_rows.sum()) > 1 and int(np.count_nonzero(self.fold_rows)) == 1

    def solve(self) -> None:
        """Fit; what is left is small, and predicts."""
        if self.ridge is not None:
            self.ridge.solve()

    def predicted(self, log: Log, _index: int) -> Matrix:
        """A `Model`."""
        if self._last is None or self._last[0] is not log:
            assert self.ridge is not None, "it is asked once it has learned"
            self._last = log, self.ridge.predict(self._read(log), folds=self.plan.folds_in(log))
        return self._last[1]

    def _kind(self, log: Log) -> tuple[str, int]:
        if self.plan.reward_model == "mean" or log.features is None:
            return _BARE
        return log.encoder_hash, log.features.shape[1]

    def read_only(self, kind: tuple[str, int] | None) -> None:
        """Read features of this kind; where others were read before, none at all."""
        if self.kind not in (None, _BARE, kind):
            self.ridge = self.ridge and self.ridge.without_features()
        self.kind = kind if self.kind in (None, kind) else _BARE

    def _read(self, log: Log) -> FeatureRows | None:
        return None if self.kind == _BARE else log.features


@dataclass(frozen=True, kw_only=True, slots=True)
class _ForeignRegressor:
    """A regressor of another package; whatever it raises, the command says in a line."""

    name: str
    made: Regressor

    def fit(self, features: Any, targets: Any) -> None:
        """Learn."""
        try:
            self.made.fit(features, targets)
        except Exception as error:
            raise _unusable(self.name, error) from error

    def predict(self, features: Any) -> Any:
        """Predictions."""
        try:
            return self.made.predict(features)
        except Exception as error:
            raise _unusable(self.name, error) from error


def _foreign(name: str) -> _ForeignRegressor:
    make = regressor_named(name)
    try:
        return _ForeignRegressor(name=name, made=make())
    except Exception as error:
        raise _unusable(name, error) from error


def _unusable(name: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{name} cannot be used: {error}",
        field="reward_model",
        remedy="name a regressor that is made without arguments and learns any numbers",
    )


def regressed(plan: Plan, *, logs: Sequence[Log], has_features: bool) -> Model:
    """Predictions by a regressor of another package, of the whole log; looked up by where a batch begins.

    has_features: all rows have features, by one encoder.
    Raises ConfigError for a regressor that cannot be used.
    """
    if not has_features:
        raise ConfigError(
            f"{plan.reward_model} has nothing to read: the rows have no features",
            field="reward_model",
            remedy="use ridge, or a log with features",
        )
    predicted = cross_fitted(
        lambda: _foreign(plan.reward_model),
        features=np.concatenate([log.features for log in logs if log.features is not None]),
        action=np.concatenate([log.action for log in logs]),
        targets=np.concatenate([_targets(log) for log in logs]),
        folds=np.concatenate([plan.folds_in(log) for log in logs]),
        arms=len(logs[0].arms),
    )
    places = {log.keys[0].item(): start for log, start in zip(logs, np.cumsum([0, *map(len, logs)]), strict=False)}

    def model(log: Log, _index: int) -> Matrix:
        start = places[log.keys[0].item()]
        return predicted[start : start + len(log)]

    return model


def _targets(log: Log) -> Matrix:
    """Columns reward, quality, cost, shape (n, 3)."""
    return np.stack([log.reward, log.quality, log.cost], axis=1)
