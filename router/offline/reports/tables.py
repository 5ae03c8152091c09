"""Tables of a replay: titles, column names and cells as text, the same for the page and the terminal, which is here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Printed
from rich.text import Text

from ragbandit.router.offline.replay.results import (
    CandidateResult,
    EstimateWithInterval,
    ReplayResult,
    SegmentResult,
    instant,
)
from ragbandit.router.offline.reports.phrases import (
    about_the_log,
    alarm,
    cell,
    compared,
    estimate,
    footnotes,
    headline,
    judged,
    values_of,
)
from ragbandit.shared.formats import number, one_line, percent

_STYLES = {
    "better": "green",
    "worse": "red",
    "cannot tell": "yellow",
    "same policy": "yellow",
    "cannot be judged": "magenta",
    "baseline": "dim",
    "not drawn as logged": "bold red",
}


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


def over_time(replayed: ReplayResult) -> list[Table]:
    """Every candidate in consecutive parts of the log."""
    names = ("from", "candidate", "questions", "effective rows", "baseline", "reward", "difference")
    stretches = [(number, part, one) for one in judged(replayed) for number, part in enumerate(one.over_time, start=1)]
    rows = [_segment(replace(part, name=_begin(part, number)), of=one) for number, part, one in stretches]
    return [Table(title="Over time", names=names, rows=rows)] if rows else []


def _candidate(candidate: CandidateResult) -> Sequence[str]:
    described = "" if candidate.described == candidate.name else f" ({candidate.described})"
    return (candidate.name + described, *values_of(candidate), candidate.estimator, candidate.verdict)


def _weights(candidate: CandidateResult, *, rows: int) -> Sequence[str]:
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


def _begin(part: SegmentResult, number: int) -> str:
    """When a stretch of the log begins; its number where the log has no times."""
    return f"stretch {number}" if part.begin is None else instant(part.begin)


def _segment(segment: SegmentResult, *, of: CandidateResult) -> Sequence[str]:
    return (
        segment.name,
        of.name,
        number(segment.rows),
        number(segment.effective_rows),
        estimate(EstimateWithInterval(value=segment.baseline)),
        cell(segment.value),
        cell(segment.difference, sign="+"),
    )


def print_replay(replayed: ReplayResult, *, console: Console) -> None:
    """The sentences, then the tables, each wide enough to be whole in a file or a pipe; what is empty is left out."""
    for line in alarm(replayed):
        console.print(Text(line, style="bold red"), soft_wrap=True)
    for candidate, line in zip(compared(replayed), headline(replayed), strict=True):
        console.print(Text(line, style=_STYLES[candidate.verdict]), soft_wrap=True)
    _print_tables(estimates(replayed), console=console)
    for line in footnotes(replayed):
        console.print(Text(line), soft_wrap=True)
    _print_tables(comparisons(replayed), console=console)
    for line in about_the_log(replayed):
        console.print(Text(line), soft_wrap=True)


def _print_tables(tables: Sequence[Table], *, console: Console) -> None:
    for table in tables:
        printed = Printed(title=Text(one_line(table.title)), title_justify="left", title_style="bold")
        for column, name in enumerate(table.names):
            printed.add_column(Text(one_line(name)), justify="right" if column else "left", no_wrap=True)
        for row in table.rows:
            printed.add_row(*(Text(one_line(cell), style=_STYLES.get(cell, "")) for cell in row))
        wide = Measurement.get(console, console.options.update(width=1000), printed).maximum
        Console(file=console.file, width=max(wide, console.width), emoji=False).print(printed)
