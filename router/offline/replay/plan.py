"""Plan of a replay, checked before anything is read: the candidates by their names, and how they are judged.

fixed:ARM      always that arm
column:KEY     a pmf that stands in the rows
VERSION        a snapshot, frozen; rows that it has learned are left out
NAME           a policy of the registry, trained on this log: cross-fitted by default (the questions of each fold are
judged by a policy that learned the other folds), by progressive validation with learn=True
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.estimation.estimators import Estimator
from ragbandit.router.offline.estimation.reward_models import folds_of, regressor_named
from ragbandit.router.offline.types import Choices
from ragbandit.router.policies import is_class_path, known_policies
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName, Json

Kind = Literal["fixed", "column", "snapshot", "policy"]


#: names of baselines that are no candidate
CURRENT: Final = "current"
LOGGED: Final = "logged"
#: reward models of our own
RIDGES = ("ridge", "mean")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Settings of a replay.

    Raises InvalidInput for a confidence outside (0, 1), fewer than two folds and an unknown estimator; ConfigError for
    a regressor that cannot be imported.
    """

    #: name of one of ESTIMATORS
    estimator: str = "dr"
    #: of cost: every row is read, and every policy asked, at this one; None: every policy is asked at each row's own
    weight: float | None = None
    #: reward.weight: with weight None, rewards of rows that were served at another one are read at this
    usual_weight: float = 0.0
    #: name of a candidate; "current": the policy that serves, as it is now, learned from this log as candidates by name
    #: are; "logged": what served, as it served; None: "current" for the store, and for a file that the service logged
    #: where a candidate reads questions, else "logged"
    baseline: str | None = None
    confidence: float = 0.95
    #: fields of the rows to judge by
    segments: tuple[str, ...] = ()
    #: parts of the log: no reward model, and no policy of the registry, is asked about a question that it learned
    folds: int = 5
    #: "question": rows that ask the same are in one fold. "decision": each row for itself, where one
    #: fold would have all questions
    folds_by: Literal["question", "decision"] = "question"
    #: "ridge"; "mean" (the arms' means, whatever the features); or
    #: "package.module:Class" of a regressor with scikit-learn's fit and predict
    reward_model: str = "ridge"
    #: least probability of every arm of a policy from its first decision on; None: policy.floor and
    #: policy.cold_start_floor, as it would be served
    floor: float | None = None
    #: policies of the registry learn while they go, instead of from the other folds
    learn: bool = False

    def __post_init__(self) -> None:
        Estimator(name=self.estimator)
        if self.reward_model not in RIDGES:
            regressor_named(self.reward_model)
        if not 0.0 < self.confidence < 1.0:
            raise InvalidInput(f"{self.confidence!r}", field="confidence", remedy="use a number in (0, 1), as 0.95")
        if self.folds < 2:
            raise InvalidInput(f"{self.folds!r}", field="folds", remedy="use 2 or more")
        if self.weight is not None and not (math.isfinite(self.weight) and self.weight >= 0.0):
            raise InvalidInput(f"{self.weight!r} is no weight of cost", field="price", remedy="use 0 or more")
        if self.floor is not None and not 0.0 <= self.floor <= 0.5:
            raise InvalidInput(f"{self.floor!r}", field="floor", remedy="use 0 to 0.5")

    def read_at_weight(self, log: Log) -> Log:
        """The log with its rewards at one weight of cost."""
        if self.weight is not None:
            return log.weighted(self.weight)
        return log.weighted(self.usual_weight, rows=log.priced) if log.priced is not None else log

    def folds_in(self, log: Log) -> Choices:
        """The fold of each row of a piece, shape (n,)."""
        return folds_of(log.questions if self.folds_by == "question" else log.keys, folds=self.folds)

    def folds_of_whole(self, log: Log) -> Choices:
        """The fold of each row of a whole log, shape (n,); by decision where all questions fall in one fold."""
        fold_numbers = self.folds_in(log)
        return fold_numbers if len(np.unique(fold_numbers)) > 1 else self.by_decision().folds_in(log)

    def by_decision(self) -> "Plan":
        """This plan with each row in a fold for itself: where one fold has all questions, no other could teach it."""
        return replace(self, folds_by="decision")


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateSpec:
    """A candidate, parsed from its name."""

    #: as it was written
    name: str
    kind: Kind
    #: arm, key, version or registry name
    what: str
    params: Mapping[str, Json] = field(default_factory=dict)
    #: of the policy that serves: the settings that it is served by
    current: Settings | None = None

    @property
    def needs_rows(self) -> bool:
        """True if it must be shown the questions; the others are arithmetic on arrays."""
        return self.kind == "snapshot" or self.learns

    @property
    def learns(self) -> bool:
        """True for a policy that learns from the log."""
        return self.kind == "policy" and self.what != "uniform"


def parse_candidates(
    names: Sequence[str], *, params: Mapping[str, Mapping[str, Json]] = MappingProxyType({})
) -> list[CandidateSpec]:
    """The candidates of these names; params: registry name -> params.

    Raises InvalidInput for a name that stands twice, or none at all. Whether a version exists is found out later.
    """
    if not names:
        raise InvalidInput("no candidate is named", field="policy", remedy="for example fixed:single_step")
    specs: list[CandidateSpec] = []
    for name in names:
        if name in (one.name for one in specs):
            raise InvalidInput(f"{name!r} is named twice", field="policy", remedy="name every candidate once")
        prefix, colon, rest = name.partition(":")
        if colon and prefix in ("fixed", "column") and rest:
            specs.append(CandidateSpec(name=name, kind="fixed" if prefix == "fixed" else "column", what=rest))
        elif name in known_policies() or is_class_path(name):
            specs.append(CandidateSpec(name=name, kind="policy", what=name, params=params.get(name, {})))
        elif colon or not name:
            raise InvalidInput(
                f"{name!r} is not a candidate",
                field="policy",
                remedy="use fixed:ARM, column:KEY, a version or a policy",
            )
        else:
            specs.append(CandidateSpec(name=name, kind="snapshot", what=name))
    return specs


def baselines(arms: Sequence[ArmName]) -> list[CandidateSpec]:
    """The plain candidates of a log: always each of its arms, and all arms alike."""
    return parse_candidates([*(f"fixed:{arm}" for arm in arms), "uniform"])
