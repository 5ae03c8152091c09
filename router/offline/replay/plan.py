"""Plan of a replay: the candidates by their names, and how they are judged.

fixed:ARM      always this arm
column:KEY     a pmf in the rows
VERSION        a frozen snapshot; rows that it has learned are left out
NAME           a policy of the registry, learned from this log: the other folds, or with learn=True the rows before
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.estimation import Choices, DifferenceVerdict, Estimator, Flags, Interval
from ragbandit.router.offline.estimation.bandit_log import Log, folds_of, wrong_pmfs
from ragbandit.router.policies import CONSERVATIVE, is_class_path, known_policies
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.formats import iso_time
from ragbandit.shared.types import ArmName, Json, Matrix, finite_json

Kind = Literal["fixed", "column", "snapshot", "policy"]


#: names of baselines besides the candidates
CURRENT: Final = "current"
LOGGED: Final = "logged"
#: most rows in memory, at about 10 KB a row
SAMPLE: Final = 50_000
#: reward models of our own
RIDGES = ("ridge", "mean")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Settings of a replay.

    Raises InvalidInput for a confidence outside (0, 1), fewer than two folds, an unknown estimator or reward model.
    """

    #: name of one of ESTIMATORS
    estimator: str = "dr"
    #: weight of cost at which rewards are read and policies asked; None to ask at each row's own weight
    weight: float | None = None
    #: reward.weight: with weight None, rewards of rows that were served at another one are read at this
    usual_weight: float = 0.0
    #: name of a candidate; "current" for the policy that serves, as it is now, learned from this log as candidates by
    #: name are; "logged" for the draws that were served; None for "current" if a candidate reads questions and the
    #: service logged the rows, else "logged"
    baseline: str | None = None
    confidence: float = 0.95
    #: fields of the rows to judge by
    segments: tuple[str, ...] = ()
    #: parts of the log: no reward model, and no policy of the registry, is asked about a question that it learned
    folds: int = 5
    #: "ridge"; or "mean" (the arms' means, whatever the features)
    reward_model: str = "ridge"
    #: least probability of every arm of a policy from its first decision on; None: policy.floor and
    #: policy.cold_start_floor, as it would be served
    floor: float | None = None
    #: policies of the registry learn along the log, instead of from the other folds
    learn: bool = False
    #: most rows that are read if a policy learns, drawn by id from a larger log; 0 for all
    sample: int = SAMPLE

    def __post_init__(self) -> None:
        Estimator(name=self.estimator)
        if self.reward_model not in RIDGES:
            message = f"{self.reward_model!r} is not known"
            raise InvalidInput(message, field="reward_model", remedy=f"use {' or '.join(RIDGES)}")
        if not 0.0 < self.confidence < 1.0:
            raise InvalidInput(f"{self.confidence!r}", field="confidence", remedy="use a number in (0, 1), as 0.95")
        if self.folds < 2:
            raise InvalidInput(f"{self.folds!r}", field="folds", remedy="use 2 or more")
        if self.weight is not None and not (math.isfinite(self.weight) and self.weight >= 0.0):
            raise InvalidInput(f"{self.weight!r} is no weight of cost", field="price", remedy="use 0 or more")
        if self.floor is not None and not 0.0 <= self.floor <= 0.5:
            raise InvalidInput(f"{self.floor!r}", field="floor", remedy="use 0 to 0.5")
        if self.sample < 0:
            raise InvalidInput(f"{self.sample!r}", field="sample", remedy="use 0 or more")

    def read_at_weight(self, log: Log) -> Log:
        """The log with its rewards at one weight of cost."""
        if self.weight is not None:
            return log.weighted(self.weight)
        return log.weighted(self.usual_weight, rows=log.priced) if log.priced is not None else log

    def folds_in(self, log: Log) -> Choices:
        """The fold of each row, shape (n,). It depends only on the row's question."""
        return folds_of(log.questions, folds=self.folds)


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateSpec:
    """A candidate, parsed from its name."""

    #: as it was written
    name: str
    kind: Kind
    #: arm, key, version or registry name
    what: str
    params: Mapping[str, Json] = field(default_factory=dict)
    #: settings of the policy that serves; None for any other candidate
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedPlan:
    """A plan with the candidates that it is for."""

    plan: Plan
    #: None for each arm of the log, and uniform
    candidates: Sequence[CandidateSpec] | None

    @classmethod
    def of(cls, candidates: Sequence[str | CandidateSpec] | None, *, plan: Plan) -> "ResolvedPlan":
        """Parse the names of candidates; specs stay as they are. Raises InvalidInput for a name given twice."""
        if candidates is None:
            return cls(plan=plan, candidates=None)
        parsed = {spec.name: spec for spec in candidates if isinstance(spec, CandidateSpec)}
        names = [each if isinstance(each, str) else each.name for each in candidates]
        return cls(plan=plan, candidates=[parsed.get(spec.name, spec) for spec in parse_candidates(names)])

    @property
    def reads_text(self) -> bool:
        """Whether a candidate or the baseline reads questions, so that rows are needed in memory."""
        return self.plan.baseline == CURRENT or any(spec.needs_rows for spec in self.candidates or ())

    def completed(self, *, arms: Sequence[ArmName], current: Settings | None = None) -> "ResolvedPlan":
        """With all candidates and the baseline named.

        arms: of the log. current: settings of the policy that serves, if it is the baseline.
        """
        candidates = baselines(arms) if self.candidates is None else self.candidates
        baseline = self.plan.baseline or LOGGED
        if current is not None:
            serving = current_candidate(current, plan=self.plan)
            candidates, baseline = [*candidates, serving], serving.name
        return ResolvedPlan(plan=replace(self.plan, baseline=baseline), candidates=candidates)


def baselines(arms: Sequence[ArmName]) -> list[CandidateSpec]:
    """The candidates without learning: always each arm of a log, and all arms alike."""
    return parse_candidates([*(f"fixed:{arm}" for arm in arms), "uniform"])


def current_candidate(settings: Settings, *, plan: Plan) -> CandidateSpec:
    """The policy that serves, learned from the log in the same way as candidates by name."""
    configured = settings.policy
    name = f"the current {configured.name}" if plan.learn else f"{configured.name} as it is now"
    return CandidateSpec(name=name, kind="policy", what=configured.name, params=configured.params, current=settings)


def array_pmf(spec: CandidateSpec, *, log: Log, named: Callable[[int], str]) -> Matrix:
    """Probabilities of a candidate that needs no questions, shape (n, K). named: describes a row.

    Raises InvalidInput for an unknown arm, and for the first row of a column without a valid pmf.
    """
    if spec.kind == "column":
        pmf = log.own[spec.what]
        wrong = wrong_pmfs(pmf, offered=log.offered)
        if len(wrong):
            message, field = f"{pmf[wrong[0]].tolist()} is no distribution over the arms offered", named(int(wrong[0]))
            raise InvalidInput(message, field=f"{field} {spec.what}", remedy="give probabilities that sum to 1")
        return pmf
    even = log.offered / log.offered.sum(axis=1, keepdims=True)
    if spec.kind == "policy":
        return np.asarray(even, dtype=np.float64)
    if spec.what not in log.arms:
        raise InvalidInput(
            f"{spec.what!r} is not in the log", field=spec.name, remedy=f"use one of {', '.join(log.arms)}"
        )
    column = log.arms.index(ArmName(spec.what))
    always = np.zeros(log.pmf.shape)
    always[:, column] = 1.0
    # Where it is not offered it plays what the policy `fixed` plays there.
    return np.where(log.offered[:, column, None], always, even)


def described(spec: CandidateSpec) -> str:
    """A candidate that does not learn, in words."""
    if spec.kind == "fixed":
        return f"always {spec.what}"
    return f"the pmf in {spec.what}" if spec.kind == "column" else "all arms alike"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedPolicy:
    """A policy that decided rows of a log: the name that it was configured by, and all of it as canonical JSON."""

    name: str
    params: str

    @classmethod
    def of(cls, algorithm: str, *, params: Mapping[str, Any]) -> "LoggedPolicy":
        """Make it from a recorded policy. A policy held back to an incumbent gets the name of the policy inside."""
        name = str(params["policy"]) if algorithm == CONSERVATIVE else algorithm
        return cls(name=name, params=canonical({"algorithm": algorithm, "params": dict(params)}))


#: the policies of a store: version -> its policy; label of a ledger -> all that ever learned it
LoggedPolicies = Mapping[str, frozenset[LoggedPolicy]]


def deciders(known: LoggedPolicies, versions: Iterable[str]) -> tuple[LoggedPolicy, ...]:
    """The policies that may have made decisions with these versions, by name; () where one of them is not known.

    That of a version without a record is one of its ledger's.
    """
    found = [known.get(version) or known.get(version.partition("-")[0]) for version in versions]
    logged = frozenset[LoggedPolicy]().union(*(each for each in found if each)) if all(found) else ()
    return tuple(sorted(logged, key=lambda policy: (policy.name, policy.params)))


#: rows that a candidate has learned when it is asked: "folds", all other folds; "along", as many as the served policy
#: had learned; "before", the rows before a snapshot. None if it does not learn, or its name already shows it
Learned = Literal["folds", "along", "before"] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidatePmf:
    """A candidate's probabilities on the rows of a log."""

    #: in words
    described: str
    #: shape (n, K); empty where the batches have them
    pmf: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    notes: tuple[str, ...] = ()
    learned: Learned = None
    #: the policy of the registry as it would be served; None for other candidates
    policy: LoggedPolicy | None = None

    def part(self, rows: Flags) -> "CandidatePmf":
        """On some of the rows, shape (n,)."""
        return replace(self, pmf=self.pmf[rows])


#: verdict on a candidate, or why there is none: unsupported decisions prevent it, or it is the baseline itself
#: "same policy" stands for better and worse where the candidate is the policy that it is compared with
CandidateVerdict = DifferenceVerdict | Literal["cannot be judged", "baseline", "same policy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimateWithInterval:
    """A number with its interval; `low` and `high` are None where no valid interval is known."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> Interval | None:
        """Both ends; None where they are not known."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportanceWeights:
    """The importance weights w = candidate / logged of the drawn arms."""

    #: (sum w)^2 / sum w^2: as many on-policy rows would say as much
    effective_rows: float
    largest: float
    #: largest that could have been drawn, over all rows and arms
    possible: float
    #: mean weight; near 1 if the log is right. A right log is outside of the interval once in a thousand times
    mean: EstimateWithInterval


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentResult:
    """Rows that share a value of a field."""

    name: str
    rows: int
    effective_rows: float
    baseline: float
    value: EstimateWithInterval
    #: value minus the baseline's, on the same rows
    difference: EstimateWithInterval


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateResult:
    """One candidate on this log."""

    #: as it was asked for
    name: str
    #: description: "always single_step", "snapshot main-500-… (mba)", "mba, learned from the other folds"
    described: str
    estimator: str
    reward: EstimateWithInterval
    quality: EstimateWithInterval
    cost: EstimateWithInterval
    #: reward minus the baseline's, paired, corrected for the number of candidates; None for the baseline itself
    difference: EstimateWithInterval | None
    quality_difference: EstimateWithInterval | None
    cost_difference: EstimateWithInterval | None
    verdict: CandidateVerdict
    #: about how many rows like these, in all, would settle it every other time, if the difference is as it looks; None
    #: where it is settled, or too little is known
    rows_needed: int | None
    weights: ImportanceWeights
    #: arm -> share of the candidate's probability that it gives to the arm where the logger had none
    unsupported: Mapping[ArmName, float]
    #: worst and best reward that unsupported decisions allow; None without them
    bounds: tuple[float, float] | None
    #: mean probability of every arm
    shares: Mapping[ArmName, float]
    #: field -> its segments, largest first
    segments: Mapping[str, tuple[SegmentResult, ...]]
    #: the other estimators' word, by name
    others: Mapping[str, EstimateWithInterval]
    #: notes for the reader: rows it has learned from, decisions made by the fallback, ...
    notes: tuple[str, ...] = ()
    learned: Learned = None
    #: it is the policy that it is compared with: a difference is between what each had learned, not between policies
    same_policy: bool = False
    #: why the difference has no interval and no verdict; None if it has them
    missing: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One arm in the log."""

    name: ArmName
    #: share of the decisions, and the mean logged probability that it should be near
    drawn: float
    expected: float
    #: False: drawn far more or less often than logged (by chance once in a thousand logs)
    plausible: bool
    reward: float | None
    quality: float | None
    cost: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two candidates against each other: first minus second, paired, corrected."""

    first: str
    second: str
    difference: EstimateWithInterval


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """A row that was left out."""

    #: line of the file, or id of the decision
    where: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """A whole replay."""

    #: where the log comes from, in words
    log: str
    rows: int
    #: times of the first and last decision, seconds since the epoch; None if rows have no times
    begin: float | None
    end: float | None
    #: earlier decisions were left out, seconds since the epoch; None if all rows were read
    since: float | None
    plan: Plan
    #: name of what the candidates are compared with, and its value on the log
    baseline: str
    baseline_reward: EstimateWithInterval
    baseline_quality: EstimateWithInterval
    baseline_cost: EstimateWithInterval
    #: differences that share the error
    comparisons: int
    arms: tuple[Arm, ...]
    #: kind of reward -> rows: "explicit", "default", "late" (more feedback came after)
    sources: Mapping[str, int]
    #: policy version -> rows, where rows name one; of many versions the largest, the rest together
    versions: Mapping[str, int]
    candidates: tuple[CandidateResult, ...]
    pairs: tuple[Pair, ...] = ()
    #: rows left out because something is wrong with them: how many, and the first ones
    skipped_rows: int = 0
    skipped: tuple[Skipped, ...] = ()
    #: rows of the log that these rows were drawn from by their id; None if all were read
    sampled_from: int | None = None
    #: the log is wrong: drawn arms do not follow the logged probabilities
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    #: the policies that decided the rows; () where the store does not know all of them, and of a log from elsewhere
    logged: tuple[LoggedPolicy, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values, keys as documented; None for a number that is not finite."""
        plain: dict[str, Any] = finite_json(asdict(self))
        for candidate in plain["candidates"]:
            candidate["holes"] = candidate.pop("unsupported")
        plain["logged"] = sorted({policy.name for policy in self.logged})
        return plain


def instant(seconds: float) -> str:
    """A time as a date, or as seconds where it is in no calendar: logs may count in their own way."""
    text = iso_time(seconds)
    return f"{seconds:g} s" if text is None else f"{text[:10]} {text[11:16]} UTC"
