"""Tables of a replay: titles, column names and cells as text, the same for the terminal and the page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ragbandit.router.offline.replay.results import Candidate, EstimateWithInterval, ReplayResult, Segment
from ragbandit.router.offline.reports.phrases import cell, compared, estimate, judged, values_of
from ragbandit.shared.formats import number, percent

__all__ = ["Table", "comparisons", "estimates"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of cells under a title; the first cell of a row is its heading."""

    title: str
    names: Sequence[str]
    rows: Sequence[Sequence[str]]


def estimates(replayed: ReplayResult) -> list[Table]:
    """Candidates, weights, arms and other estimators; a table without rows is left out."""
    return [table for table in _estimates(replayed) if table.rows]


def comparisons(replayed: ReplayResult) -> list[Table]:
    """Candidates against each other, and by segment; a table without rows is left out."""
    return [table for table in _comparisons(replayed) if table.rows]


def _estimates(replayed: ReplayResult) -> Iterator[Table]:
    names: Sequence[str] = ("candidate", "reward", "difference", "quality", "cost", "estimator", "verdict")
    yield Table(title="The candidates", names=names, rows=[_candidate(each) for each in replayed.candidates])
    names = (
        "candidate",
        "effective rows",
        "largest weight",
        "largest possible",
        "mean weight (right: 1)",
        "very large",
    )
    weights = [_weights(each, rows=replayed.rows) for each in compared(replayed)]
    yield Table(title="How far each candidate is from the log", names=names, rows=weights)
    yield _arms(replayed)
    yield _others(replayed)


def _comparisons(replayed: ReplayResult) -> Iterator[Table]:
    pairs = [(f"{each.first} - {each.second}", cell(each.difference, sign="+")) for each in replayed.pairs]
    yield Table(title="The candidates against each other", names=("first - second", "difference"), rows=pairs)
    names = ("group", "candidate", "questions", "effective rows", "baseline", "reward", "difference")
    for field in dict.fromkeys(field for candidate in judged(replayed) for field in candidate.segments):
        rows = [_segment(part, of=each) for each in judged(replayed) for part in each.segments.get(field, ())]
        yield Table(title=f"By {field}", names=names, rows=rows)


def _candidate(candidate: Candidate) -> Sequence[str]:
    described = "" if candidate.described == candidate.name else f" ({candidate.described})"
    return (candidate.name + described, *values_of(candidate), candidate.estimator, candidate.verdict)


def _weights(candidate: Candidate, *, rows: int) -> Sequence[str]:
    weights = candidate.weights
    return (
        candidate.name,
        f"{number(weights.effective_rows)} of {number(rows)}",
        number(weights.largest),
        number(weights.possible),
        cell(weights.mean),
        f"{percent(weights.clipped)} of the questions above {number(weights.clip)}",
    )


def _arms(replayed: ReplayResult) -> Table:
    names = ("arm", "drawn", "expected", "reward", "quality", "cost")
    faulty = not all(arm.plausible for arm in replayed.arms)
    rows = []
    for arm in replayed.arms:
        means = (
            "" if mean is None else estimate(EstimateWithInterval(value=mean))
            for mean in (arm.reward, arm.quality, arm.cost)
        )
        fault = ("" if arm.plausible else "not drawn as logged",) if faulty else ()
        rows.append((arm.name, percent(arm.drawn), percent(arm.expected), *means, *fault))
    return Table(title="The arms in the log", names=(*names, "fault") if faulty else names, rows=rows)


def _others(replayed: ReplayResult) -> Table:
    candidates = [candidate for candidate in replayed.candidates if candidate.verdict != "cannot be judged"]
    names = list(dict.fromkeys(name for candidate in candidates for name in candidate.others))
    rows = [
        (each.name, *("" if (estimated := each.others.get(name)) is None else cell(estimated) for name in names))
        for each in candidates
        if names
    ]
    return Table(title="The reward by other estimators", names=("candidate", *names), rows=rows)


def _segment(segment: Segment, *, of: Candidate) -> Sequence[str]:
    return (
        segment.name,
        of.name,
        number(segment.rows),
        number(segment.effective_rows),
        estimate(EstimateWithInterval(value=segment.baseline)),
        cell(segment.value),
        cell(segment.difference, sign="+"),
    )
