"""Jobs: what is done with one part of a log, and how what two parts give is merged.

All of it can be pickled; merging changes neither side, so that an engine may repeat any step that was lost.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.estimation.tuning import Trials
from ragbandit.router.offline.logs.parquet import is_empty
from ragbandit.router.offline.logs.parquet_arrays import LogOverview, overview_of, read_keys
from ragbandit.router.offline.logs.place import Place
from ragbandit.router.offline.logs.records import Defaults
from ragbandit.router.offline.replay.candidates import CandidateSpec
from ragbandit.router.offline.replay.judge import CLIP, middles_of
from ragbandit.router.offline.replay.parts.engines import Result
from ragbandit.router.offline.replay.passes.measure import Accumulators, EstimationPlan, Views, measure, tuned
from ragbandit.router.offline.replay.passes.reward_model import RewardModelFit
from ragbandit.router.offline.replay.passes.summary import LogSummary, summarize
from ragbandit.router.offline.replay.plan import Plan
from ragbandit.router.offline.replay.sources.parquet import ParquetPieces, encoders_of
from ragbandit.router.offline.types import Keys, no_progress

__all__ = [
    "MeasureJob",
    "PartJob",
    "PartSummary",
    "keys_of_part",
    "measure_part",
    "merge_accumulators",
    "merge_by_part",
    "merge_summaries",
    "merge_trials",
    "naming_part",
    "overview_part",
    "summarize_part",
    "try_part",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class PartJob:
    """A part, and all that is asked of it."""

    index: int
    overview: LogOverview
    candidates: Sequence[CandidateSpec]
    plan: Plan
    defaults: Defaults
    mixed_arms: bool
    since: float | None
    features: bool
    #: keys of ids are compared in so many rounds, by their remainder
    rounds: int = 1

    def pieces(self) -> ParquetPieces:
        """Its rows."""
        return ParquetPieces(
            path=self.overview.path,
            candidates=self.candidates,
            plan=self.plan,
            defaults=self.defaults,
            mixed_arms=self.mixed_arms,
            since=self.since,
            overview=self.overview,
            features=self.features,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSummary:
    """Summary of parts, from the first pass."""

    summary: LogSummary
    fit: RewardModelFit
    #: part -> rows that are judged
    rows: dict[int, int]
    #: part -> keys of the ids, for the first round
    keys: dict[int, Keys]

    def merged(self, other: "PartSummary") -> "PartSummary":
        """That of both."""
        return PartSummary(
            summary=self.summary.merged(other.summary),
            fit=self.fit.merged(other.fit),
            rows=self.rows | other.rows,
            keys=self.keys | other.keys,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureJob:
    """What the later passes ask of a part."""

    part: PartJob
    fit: RewardModelFit
    summary: LogSummary
    first_row: int
    estimation: EstimationPlan | None = None

    def views(self) -> Views:
        """Its pieces with the probabilities of every candidate."""
        return Views(pieces=self.part.pieces(), model=self.fit.predicted, middles=middles_of(self.summary))


def overview_part(job: tuple[int, Place, Defaults]) -> dict[int, tuple[LogOverview, tuple[str, ...]]]:
    """Overview of a file and the encoder of its features; nothing for a file without rows."""
    index, path, defaults = job
    if is_empty(path):
        return {}
    return {index: (overview_of(path, defaults=defaults), encoders_of(path))}


def summarize_part(job: PartJob) -> PartSummary:
    """The first pass over a part."""
    fit, pieces, path = RewardModelFit(plan=job.plan), job.pieces(), job.overview.path
    with naming_part(path):
        summary = summarize(pieces, candidates=len(job.candidates), clip=CLIP, learn=fit.learn, progress=no_progress)
    keys = np.concatenate(pieces.keys)
    return PartSummary(
        summary=summary, fit=fit, rows={job.index: summary.rows}, keys={job.index: _of_round(keys, 0, job.rounds)}
    )


@contextmanager
def naming_part(path: Place) -> Iterator[None]:
    """Errors about a row name the file too."""
    try:
        yield
    except InvalidInput as error:
        said = str(error.field or "")
        field = said if str(path) in said else f"{path} {said}"
        raise InvalidInput(error.message, field=field, remedy=error.remedy) from error


def keys_of_part(job: tuple[int, Place, int, int]) -> dict[int, Keys]:
    """The keys of a part's ids of one round."""
    index, path, number, rounds = job
    return {index: np.concatenate([_of_round(keys, number, rounds) for keys in read_keys(path)])}


def _of_round(keys: Keys, number: int, rounds: int) -> Keys:
    # By high bits: the low ones choose the folds where these are by decision.
    return keys if rounds == 1 else keys[(keys >> np.uint64(32)) % np.uint64(rounds) == number]


def try_part(job: MeasureJob) -> list[Trials]:
    """Trials of every parameter on a part."""
    rows = job.summary.rows
    return tuned(job.views(), name=job.part.plan.estimator, rows=rows, progress=no_progress)


def measure_part(job: MeasureJob) -> Accumulators:
    """The second pass over a part."""
    assert job.estimation is not None
    return measure(
        job.views(),
        summary=job.summary,
        estimation=job.estimation,
        fields=job.part.plan.segments,
        progress=no_progress,
        first_row=job.first_row,
    )


def merge_summaries(one: PartSummary, other: PartSummary) -> PartSummary:
    """Of two sets of parts."""
    return one.merged(other)


def merge_trials(one: list[Trials], other: list[Trials]) -> list[Trials]:
    """Of two sets of parts."""
    return [mine.merged(theirs) for mine, theirs in zip(one, other, strict=True)] if one and other else one or other


def merge_accumulators(one: Accumulators, other: Accumulators) -> Accumulators:
    """Of two sets of parts."""
    return one.merged(other)


def merge_by_part(one: dict[int, Result], other: dict[int, Result]) -> dict[int, Result]:
    """What was found, by part."""
    return one | other
