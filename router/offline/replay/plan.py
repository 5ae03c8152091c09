"""Plan of a replay: the candidates by name, how they are judged, and the classes of the result.

fixed:ARM      always this arm
column:KEY     probabilities that the rows contain
NAME           a policy of the registry. Before it is judged on a fold of this log, it learns the other folds
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np

from ragbandit.router.comparison import Comparison, Difference
from ragbandit.router.config.learning import PolicyDefinition
from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.logs import BadRow
from ragbandit.router.policies import is_class_path, known_policies
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import one_line
from ragbandit.shared.types import ArmName, Json, Matrix, finite_json

Kind = Literal["fixed", "column", "policy"]
#: names of the baselines that are not candidates
CURRENT: Final = "current"
LOGGED: Final = "logged"
#: maximum number of rows in memory; a row takes about 10 KB
SAMPLE: Final = 50_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Settings of a replay. Raises InvalidInput for a number out of range."""

    weight: float | None = None  #: weight of cost for rewards and policies; None for each row's own weight
    #: reward.weight of the service, for rows whose request had a cost weight of its own; unused if `weight` is set
    usual_weight: float = 0.0
    #: name of a candidate; or "current" for the serving policy, which learns this log like a candidate; or "logged" for
    #: the draws that were served. None means "current" if a candidate reads questions and the service logged the rows,
    #: else "logged"
    baseline: str | None = None
    confidence: float = 0.95
    segments: tuple[str, ...] = ()  #: fields of the rows; results are also given for each value of a field
    #: number of parts of the questions; models and policies are asked about a part after they learned the others
    folds: int = 5
    sample: int = SAMPLE  #: maximum number of rows to read if a policy learns, drawn by the hash of the id; 0 reads all

    def __post_init__(self) -> None:
        if not 0.0 < self.confidence < 1.0:
            remedy = "use a number above 0 and below 1, for example 0.95"
            raise InvalidInput(f"{self.confidence!r} is not a confidence", field="confidence", remedy=remedy)
        if self.folds < 2:
            raise InvalidInput(f"{self.folds!r} is too few folds", field="folds", remedy="use 2 or more")
        if self.weight is not None and not (math.isfinite(self.weight) and self.weight >= 0.0):
            raise InvalidInput(f"{self.weight!r} is not a weight of cost", field="price", remedy="use 0 or more")
        if self.sample < 0:
            raise InvalidInput(f"{self.sample!r} is not a number of rows", field="sample", remedy="use 0 or more")

    def read_at_weight(self, log: Log) -> Log:
        if self.weight is not None:
            return log.weighted(self.weight)
        return log.weighted(self.usual_weight, rows=log.priced) if log.priced is not None else log


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateSpec:
    name: str
    kind: Kind
    what: str  #: arm, key or registry name
    params: Mapping[str, Json] = field(default_factory=dict)
    current: PolicyDefinition | None = None  #: the serving policy; None for any other candidate

    @property
    def learns(self) -> bool:
        """Whether the candidate learns the log and reads questions. Other candidates are computed from arrays."""
        return self.kind == "policy" and self.what != "uniform"


def parse_candidates(
    names: Sequence[str | CandidateSpec], *, params: Mapping[str, Mapping[str, Json]] = MappingProxyType({})
) -> list[CandidateSpec]:
    """Parse candidates. params: registry name -> params. Raises InvalidInput for unknown or repeated names, or none."""
    if not names:
        raise InvalidInput("no candidate is named", field="policy", remedy="name one, for example fixed:single_step")
    specs: list[CandidateSpec] = []
    for one in names:
        name = one if isinstance(one, str) else one.name
        if name in (spec.name for spec in specs):
            raise InvalidInput(f"the candidate {name!r} is named twice", field="policy", remedy="name it once")
        prefix, _, suffix = name.partition(":")
        if isinstance(one, CandidateSpec):
            specs.append(one)
        elif prefix in ("fixed", "column") and suffix:
            specs.append(CandidateSpec(name=name, kind="fixed" if prefix == "fixed" else "column", what=suffix))
        elif name in known_policies() or is_class_path(name):
            specs.append(CandidateSpec(name=name, kind="policy", what=name, params=params.get(name, {})))
        else:
            remedy = f"use fixed:ARM, column:KEY or one of {', '.join(known_policies())}"
            raise InvalidInput(f"{name!r} is not a candidate", field="policy", remedy=remedy)
    return specs


def default_candidates(arms: Sequence[ArmName]) -> list[CandidateSpec]:
    """Always one arm, for each arm of the log, and the policy `uniform`."""
    return parse_candidates([*(f"fixed:{arm}" for arm in arms), "uniform"])


def current_candidate(serving: PolicyDefinition) -> CandidateSpec:
    policy = serving.settings
    name = f"{policy.name} as it is now"
    return CandidateSpec(name=name, kind="policy", what=policy.name, params=policy.params, current=serving)


def check_fixed_arms(candidates: Sequence[CandidateSpec], *, arms: Sequence[ArmName]) -> None:
    """Raise InvalidInput for a fixed arm that the log lacks."""
    for spec in candidates:
        if spec.kind == "fixed" and spec.what not in arms:
            message, remedy = f"the arm {spec.what!r} is not in the log", f"use one of {', '.join(arms)}"
            raise InvalidInput(message, field=spec.name, remedy=remedy)


def candidate_pmf(spec: CandidateSpec, log: Log) -> Matrix:
    """The candidate's column of the log: its pmf in every row, shape (n, K)."""
    if spec.name in log.pmfs:
        return log.pmfs[spec.name]
    even = np.asarray(log.offered / log.offered.sum(axis=1, keepdims=True), dtype=np.float64)
    if spec.kind != "fixed":
        return even
    column = log.arms.index(ArmName(spec.what))
    # As in the service: if the policy `fixed` cannot draw its arm, all offered arms have the same probability.
    return np.where(log.offered[:, column, None], np.arange(len(log.arms)) == column, even)


def candidate_description(spec: CandidateSpec) -> str:
    if spec.kind == "fixed":
        return f"always {spec.what}"
    return f"the pmf in {spec.what}" if spec.kind == "column" else "all arms alike"


#: rows that a candidate has learned. "folds": all other folds. None for a candidate that does not learn, or whose name
#: describes what it has learned
Learned = Literal["folds"] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """Facts about a candidate for the result, besides its estimates."""

    described: str  #: for example "always single_step"
    notes: tuple[str, ...] = ()
    learned: Learned = None


def side_name(name: str, *, learned: Learned) -> str:
    """The name of a candidate in comparisons, with a note if it learned the log."""
    return one_line(name) if learned is None else f"{one_line(name)} (learned from this log)"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportanceWeights:
    """The importance weights of the drawn arms: w = candidate's probability / logged probability."""

    #: number of rows drawn by the candidate that would give the same precision: (sum w)^2 / sum w^2
    effective_rows: float
    largest: float
    possible: float  #: largest weight that could have been drawn, over all rows and arms
    #: mean weight and its interval, which contains 1 - sum of `unsupported` in all but one of 1000 correct logs
    mean: Difference


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateResult:
    name: str
    described: str  #: for example "always single_step" or "mba after 500 updates of main"
    #: the mean of this candidate, which is its difference from a reward of 0
    reward: Difference
    quality: Difference
    cost: Difference
    #: the candidate compared with the baseline, corrected for the number of candidates; None for the baseline itself
    comparison: Comparison | None
    weights: ImportanceWeights
    #: arm -> share of the candidate's probability on rows where the logged probability of the arm is 0
    unsupported: Mapping[ArmName, float]
    #: interval of the reward with unsupported decisions at their worst and best; None without them, or without interval
    bounds: tuple[float, float] | None
    shares: Mapping[ArmName, float]
    #: field -> value, the most frequent first -> the same comparison on the rows with this value
    segments: Mapping[str, Mapping[str, Comparison]]
    notes: tuple[str, ...] = ()
    learned: Learned = None
    #: True if candidate and baseline have the same probabilities in every row
    same_policy: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    name: ArmName
    drawn: float  #: share of the decisions
    expected: float  #: mean logged probability
    #: False if the arm was drawn much more or less often than logged; in one of a thousand correct logs False by chance
    plausible: bool
    reward: float | None
    quality: float | None
    cost: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    log: str
    rows: int
    questions: int  #: number of different questions
    begin: float | None  #: time of the first decision, seconds since the epoch; None if not known
    end: float | None  #: time of the last decision, seconds since the epoch; None if not known
    since: float | None
    plan: Plan
    baseline: str
    against: str  #: `baseline` as it is printed, with a note if the policy learned this log
    baseline_reward: Difference
    baseline_quality: Difference
    baseline_cost: Difference
    comparisons: int  #: number of comparisons with the baseline, for which the confidence is corrected
    arms: tuple[Arm, ...]
    candidates: tuple[CandidateResult, ...]
    skipped_rows: int = 0  #: number of unusable rows that were left out
    skipped: tuple[BadRow, ...] = ()  #: the first of the unusable rows
    #: number of rows that the sample was drawn from; None if all rows were read
    sampled_from: int | None = None
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = finite_json(asdict(self))
        for candidate in plain["candidates"]:
            candidate["holes"] = candidate.pop("unsupported")
        return plain
