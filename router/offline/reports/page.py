"""HTML report of a replay: one file without scripts or network requests, for readers who are not statisticians."""

import importlib.resources
import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ragbandit.router.errors import ConfigError, InvalidInput
from ragbandit.router.formats import number, one_line, percent
from ragbandit.router.offline.replay.results import Candidate, EstimateWithInterval, ReplayResult, Segment
from ragbandit.router.offline.reports.charts import drawn
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
from ragbandit.router.storage.files.atomic import whole_file

if TYPE_CHECKING:
    from markupsafe import Markup

__all__ = ["check_page", "page", "write_page"]


def check_page(path: str | Path) -> None:
    """Check that the page can be written there, before the work that it shows.

    Raises InvalidInput where the path is no page that can be written.
    """
    file = Path(path)
    if file.suffix.lower() != ".html":
        raise InvalidInput(f"{file} does not end in .html", field="report", remedy=f"for example {file.stem}.html")
    if file.is_dir() or not os.access(file.absolute().parent, os.W_OK):
        raise InvalidInput(
            f"{file} cannot be written", field="report", remedy="name a file in a folder that exists and is yours"
        )


def write_page(replayed: ReplayResult, path: str | Path) -> None:
    """Write the page. Raises what check_page raises."""
    check_page(path)
    text = page(replayed)
    try:
        with whole_file(Path(path), durable=False) as beside:
            beside.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}", field="report", remedy="give another path") from error


def page(replayed: ReplayResult) -> str:
    """The page as HTML, the same text for the same numbers; without charts where matplotlib is missing: it says so."""
    from jinja2 import Environment, StrictUndefined

    source = importlib.resources.files("ragbandit.router.offline.reports").joinpath("page.html").read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["text"] = _text
    charted = importlib.util.find_spec("matplotlib") is not None
    classes = ["doubted" if replayed.faults else candidate.verdict for candidate in compared(replayed)]
    return environment.from_string(source).render(
        title=f"Replay of {replayed.log}",
        baseline=replayed.baseline,
        alarm=alarm(replayed),
        verdicts=list(zip(classes, headline(replayed), strict=True)),
        charts=drawn(replayed) if charted else [],
        charted=charted,
        tables=[table for table in _tables(replayed) if table.rows],
        comparisons=[table for table in _comparisons(replayed) if table.rows],
        footnotes=footnotes(replayed),
        about=about_the_log(replayed),
    )


def _text(text: str) -> "Markup":
    """Escaped text of the page: without control characters, and with a number and its % on one line."""
    from markupsafe import Markup, escape

    return Markup(escape(one_line(text)).replace(" %", Markup("&nbsp;%")))  # noqa: S704 - escaped in this line


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    """A table of the page; the first cell of a row is its heading."""

    title: str
    names: Sequence[str]
    rows: Sequence[Sequence[str]]


def _tables(replayed: ReplayResult) -> Iterator[_Table]:
    """Candidates, weights, arms and other estimators."""
    names: Sequence[str] = ("candidate", "reward", "difference", "quality", "cost", "estimator", "verdict")
    yield _Table(title="The candidates", names=names, rows=[_candidate(each) for each in replayed.candidates])
    names = (
        "candidate",
        "effective rows",
        "largest weight",
        "largest possible",
        "mean weight (right: 1)",
        "very large",
    )
    weights = [_weights(each, rows=replayed.rows) for each in compared(replayed)]
    yield _Table(title="How far each candidate is from the log", names=names, rows=weights)
    yield _arms(replayed)
    yield _others(replayed)


def _comparisons(replayed: ReplayResult) -> Iterator[_Table]:
    """Candidates against each other, and by segment."""
    pairs = [(f"{each.first} - {each.second}", cell(each.difference, sign="+")) for each in replayed.pairs]
    yield _Table(title="The candidates against each other", names=("first - second", "difference"), rows=pairs)
    names = ("group", "candidate", "questions", "effective rows", "baseline", "reward", "difference")
    for field in dict.fromkeys(field for candidate in judged(replayed) for field in candidate.segments):
        rows = [_segment(part, of=each) for each in judged(replayed) for part in each.segments.get(field, ())]
        yield _Table(title=f"By {field}", names=names, rows=rows)


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


def _arms(replayed: ReplayResult) -> _Table:
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
    return _Table(title="The arms in the log", names=(*names, "fault") if faulty else names, rows=rows)


def _others(replayed: ReplayResult) -> _Table:
    kept = [candidate for candidate in replayed.candidates if candidate.verdict != "cannot be judged"]
    names = list(dict.fromkeys(name for candidate in kept for name in candidate.others))
    rows = [
        (each.name, *("" if (said := each.others.get(name)) is None else cell(said) for name in names))
        for each in kept
        if names
    ]
    return _Table(title="The reward by other estimators", names=("candidate", *names), rows=rows)


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
