"""Results of a replay: plain values for the terminal, the page and JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from ragbandit.router.offline.estimation.intervals import DifferenceVerdict
from ragbandit.router.offline.estimation.rated_rewards import RatingFacts
from ragbandit.router.offline.replay.plan import Plan
from ragbandit.router.policies import CONSERVATIVE
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.types import ArmName, finite_json

#: verdict on a candidate, or why there is none: unsupported decisions prevent it, or it is the baseline itself
#: "same policy" stands for better and worse where the candidate is the policy that it is compared with
CandidateVerdict = DifferenceVerdict | Literal["cannot be judged", "baseline", "same policy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimateWithInterval:
    """A number with its interval; `low` and `high` are None where no valid interval is known."""

    value: float
    low: float | None = None
    high: float | None = None
    #: the interval covers chance only: the estimator is biased, and by how much is not in it
    biased: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedPolicy:
    """A policy that decided rows of a log: the name that it was configured by, and all of it as canonical JSON."""

    name: str
    params: str

    @classmethod
    def of(cls, algorithm: str, *, params: Mapping[str, Any]) -> "LoggedPolicy":
        """Of what is recorded of a policy; one that is held back to an incumbent has the name of the one inside."""
        name = str(params["policy"]) if algorithm == CONSERVATIVE else algorithm
        return cls(name=name, params=canonical({"algorithm": algorithm, "params": dict(params)}))


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportanceWeights:
    """The importance weights w = candidate / logged of the drawn arms."""

    #: (sum w)^2 / sum w^2: as many on-policy rows would say as much
    effective_rows: float
    largest: float
    #: largest that could have been drawn, over all rows and arms
    possible: float
    #: of w; 1 if the log is right. The interval holds it unless the log is wrong (all but one in a thousand times)
    mean: EstimateWithInterval
    #: share of rows with w above the clip, and that clip
    clipped: float
    clip: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentResult:
    """Rows that share a value of a field, or a stretch of time."""

    name: str
    rows: int
    effective_rows: float
    baseline: float
    value: EstimateWithInterval
    #: value minus the baseline's, on the same rows
    difference: EstimateWithInterval
    #: for a stretch of time: where it begins and ends, seconds since the epoch
    begin: float | None = None
    end: float | None = None


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
    over_time: tuple[SegmentResult, ...]
    #: field -> its segments, largest first
    segments: Mapping[str, tuple[SegmentResult, ...]]
    #: the other estimators' word, by name
    others: Mapping[str, EstimateWithInterval]
    #: notes for the reader: rows it has learned from, decisions made by the fallback, ...
    notes: tuple[str, ...] = ()
    #: what a candidate that learns has learned when it is asked. "folds": the questions of the other folds; "along":
    #: what the served policy had learned then; "before": what a snapshot had when it was made. None: it does not learn,
    #: or its name says it
    learned: Literal["folds", "along", "before"] | None = None
    #: it is the policy that it is compared with: a difference is between what each had learned, not between policies
    same_policy: bool = False
    #: why the difference has no interval and no verdict: not tried enough; None where it was
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
    #: of the first and last decision, seconds since the epoch; None where the rows have no times
    begin: float | None
    end: float | None
    #: rows decided before were left out, seconds since the epoch; None: all rows were read
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
    #: the log is wrong: drawn arms do not follow the logged probabilities
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    #: the policies that decided the rows; () where the store does not know all of them, and of a log from elsewhere
    logged: tuple[LoggedPolicy, ...] = ()
    #: where rewards were completed: what people and the judge said
    ratings: RatingFacts | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values, keys as documented; None for a number that is not finite."""
        plain: dict[str, Any] = finite_json(asdict(self))
        for candidate in plain["candidates"]:
            candidate["holes"] = candidate.pop("unsupported")
        plain["logged"] = sorted({policy.name for policy in self.logged})
        return plain


def moment(seconds: float | None) -> datetime | None:
    """A time in UTC, seconds since the epoch; None where the value is not a date (logs may count in their own way)."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return None


def instant(seconds: float) -> str:
    """A time as a date, or as seconds where it is not a date."""
    when = moment(seconds)
    return f"{when:%Y-%m-%d %H:%M} UTC" if when else f"{seconds:g} s"
