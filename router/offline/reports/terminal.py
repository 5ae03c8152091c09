"""Replay results as sentences and tables for the terminal."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as Printed
from rich.text import Text

from ragbandit.router.formats import number, one_line, percent
from ragbandit.router.offline.replay.results import EstimateWithInterval, ReplayResult, Segment
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

__all__ = ["print_replay"]

_STYLES = {
    "better": "green",
    "worse": "red",
    "cannot tell": "yellow",
    "same policy": "yellow",
    "cannot be judged": "magenta",
    "baseline": "dim",
}


def print_replay(replayed: ReplayResult, *, console: Console) -> None:
    """The sentences, then the tables, each wide enough to be whole in a file or a pipe; what is empty is left out."""
    for line in alarm(replayed):
        console.print(Text(line, style="bold red"), soft_wrap=True)
    for candidate, line in zip(compared(replayed), headline(replayed), strict=True):
        console.print(Text(line, style=_STYLES[candidate.verdict]), soft_wrap=True)
    for part in _parts(replayed):
        if isinstance(part, str):
            console.print(Text(part), soft_wrap=True)
        elif part.row_count:
            wide = Measurement.get(console, console.options.update(width=1000), part).maximum
            Console(file=console.file, width=max(wide, console.width), emoji=False).print(part)


def _parts(replayed: ReplayResult) -> Iterator[Printed | str]:
    yield _candidates(replayed)
    yield from about_the_log(replayed)
    yield _arms(replayed)
    yield _others(replayed)
    yield from footnotes(replayed)
    yield _pairs(replayed)
    yield from _segments(replayed)


def _candidates(replayed: ReplayResult) -> Printed:
    table = _table(
        "candidate", "reward", "difference", "quality", "cost", "effective rows", "largest weight", "verdict"
    )
    for candidate in replayed.candidates:
        weights = candidate.weights
        table.add_row(
            escape(one_line(candidate.name)),
            *values_of(candidate),
            f"{number(weights.effective_rows)} of {number(replayed.rows)}",
            number(weights.largest),
            Text(candidate.verdict, style=_STYLES[candidate.verdict]),
        )
    return table


def _arms(replayed: ReplayResult) -> Printed:
    table = _table("arm in the log", "drawn", "expected", "reward", "quality", "cost")
    if not all(arm.plausible for arm in replayed.arms):
        table.add_column("fault", no_wrap=True)
    for arm in replayed.arms:
        values = (
            "" if v is None else estimate(EstimateWithInterval(value=v)) for v in (arm.reward, arm.quality, arm.cost)
        )
        fault = [] if arm.plausible else [Text("not drawn as logged", style="bold red")]
        table.add_row(escape(one_line(arm.name)), percent(arm.drawn), percent(arm.expected), *values, *fault)
    return table


def _others(replayed: ReplayResult) -> Printed:
    kept = [candidate for candidate in replayed.candidates if candidate.verdict != "cannot be judged"]
    names = list(dict.fromkeys(name for candidate in kept for name in candidate.others))
    table = _table("reward by other estimators", *(escape(one_line(name)) for name in names))
    for candidate in kept if names else ():
        said = (candidate.others.get(name) for name in names)
        table.add_row(escape(one_line(candidate.name)), *("" if one is None else cell(one) for one in said))
    return table


def _pairs(replayed: ReplayResult) -> Printed:
    table = _table("one candidate against another", "difference")
    for pair in replayed.pairs:
        table.add_row(escape(f"{one_line(pair.first)} - {one_line(pair.second)}"), cell(pair.difference, sign="+"))
    return table


def _segments(replayed: ReplayResult) -> Iterator[Printed]:
    """A table per field that was asked for."""
    for name in dict.fromkeys(name for candidate in judged(replayed) for name in candidate.segments):
        table = _table(
            f"by {escape(one_line(name))}", "candidate", "rows", "effective rows", "baseline", "reward", "difference"
        )
        for candidate in judged(replayed):
            for segment in candidate.segments.get(name, ()):
                table.add_row(escape(one_line(segment.name)), escape(one_line(candidate.name)), *_segment(segment))
        yield table


def _segment(segment: Segment) -> Sequence[str]:
    return (
        number(segment.rows),
        number(segment.effective_rows),
        estimate(EstimateWithInterval(value=segment.baseline)),
        cell(segment.value),
        cell(segment.difference, sign="+"),
    )


def _table(first: str, *others: str) -> Printed:
    table = Printed(first, *others)
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    return table
