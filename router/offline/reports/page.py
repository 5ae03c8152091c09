"""A replay as one page for people who are no statisticians: a file without scripts that asks for nothing elsewhere."""

import importlib.resources
import importlib.util
import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template

from ragbandit.router.errors import ConfigError, InvalidInput, missing_package
from ragbandit.router.offline.replay.results import Candidate, EstimateWithInterval, ReplayResult, Segment
from ragbandit.router.offline.reports.charts import drawn
from ragbandit.router.offline.reports.phrases import (
    about_the_log,
    alarm,
    cell,
    compared,
    count,
    footnotes,
    headline,
    judged,
    number,
    percent,
    printable,
    values_of,
    weight_of,
)

__all__ = ["check_page", "page", "write_page"]


def check_page(path: str | Path) -> None:
    """Whether the page can be written there: asked before the work that it shows.

    Raises ConfigError where matplotlib is missing, InvalidInput where the path is no page that can be written.
    """
    file = Path(path)
    if file.suffix.lower() != ".html":
        raise InvalidInput(f"{file} does not end in .html", field="report", remedy=f"for example {file.stem}.html")
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_package("matplotlib", extra="plots", field="report")
    if file.is_dir() or not os.access(file.absolute().parent, os.W_OK):
        raise InvalidInput(
            f"{file} cannot be written", field="report", remedy="name a file in a folder that exists and is yours"
        )


def write_page(replayed: ReplayResult, path: str | Path) -> None:
    """Write the page. Raises what check_page raises."""
    check_page(path)
    text = page(replayed)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}", field="report", remedy="give another path") from error


def page(replayed: ReplayResult) -> str:
    """The page as HTML, the same text for the same numbers. Raises ConfigError where matplotlib is missing."""
    template = Template(
        importlib.resources.files("ragbandit.router.offline.reports").joinpath("page.html").read_text("utf-8")
    )
    return template.substitute(
        title=_text(f"Replay of {replayed.log}"),
        baseline=_text(replayed.baseline),
        alarm=_alarm(replayed),
        verdicts="\n".join(
            f'<li class="{"doubted" if replayed.faults else candidate.verdict}">{_text(sentence)}</li>'
            for candidate, sentence in zip(compared(replayed), headline(replayed), strict=True)
        ),
        figures=_figures(replayed),
        tables="\n".join(_tables(replayed)),
        about="\n".join(f"<li>{_text(line)}</li>" for line in about_the_log(replayed)),
    )


def _alarm(replayed: ReplayResult) -> str:
    lines = "".join(f"<p>{_text(line)}</p>" for line in alarm(replayed))
    return f'<div class="alarm" role="alert">{lines}</div>' if lines else ""


def _figures(replayed: ReplayResult) -> str:
    figures = "\n".join(
        f"<figure><h3>{_text(one.title)}</h3>{one.svg}<figcaption>{_text(one.caption)}</figcaption></figure>"
        for one in drawn(replayed)
    )
    return f'<h2>In pictures</h2>\n<div class="figures">\n{figures}\n</div>' if figures else ""


def _tables(replayed: ReplayResult) -> Iterator[str]:
    """The sections; those that have nothing to show are empty."""
    names: Sequence[str] = ("candidate", "reward", "difference", "quality", "cost", "estimator", "verdict")
    yield _table("The candidates", names=names, rows=[_candidate(each) for each in replayed.candidates])
    names = (
        "candidate",
        "effective rows",
        "largest weight",
        "largest possible",
        "mean weight (right: 1)",
        "very large",
    )
    weights = [_weights(each, rows=replayed.rows) for each in compared(replayed)]
    yield _table("How far each candidate is from the log", names=names, rows=weights)
    yield _arms(replayed)
    yield _others(replayed)
    yield from (f'<p class="soft">{_text(note)}.</p>' for note in footnotes(replayed))
    pairs = [(f"{each.first} - {each.second}", cell(each.difference, sign="+")) for each in replayed.pairs]
    yield _table("The candidates against each other", names=("first - second", "difference"), rows=pairs)
    names = ("group", "candidate", "questions", "effective rows", "baseline", "reward", "difference")
    for field in dict.fromkeys(field for candidate in judged(replayed) for field in candidate.segments):
        rows = [_segment(part, of=each) for each in judged(replayed) for part in each.segments.get(field, ())]
        yield _table(f"By {field}", names=names, rows=rows)


def _candidate(candidate: Candidate) -> Sequence[str]:
    described = "" if candidate.described == candidate.name else f" ({candidate.described})"
    return (candidate.name + described, *values_of(candidate), candidate.estimator, candidate.verdict)


def _weights(candidate: Candidate, *, rows: int) -> Sequence[str]:
    weights = candidate.weights
    return (
        candidate.name,
        f"{count(weights.effective_rows)} of {count(rows)}",
        weight_of(weights.largest),
        weight_of(weights.possible),
        cell(weights.mean),
        f"{percent(weights.clipped)} of the questions above {weight_of(weights.clip)}",
    )


def _arms(replayed: ReplayResult) -> str:
    names = ("arm", "drawn", "expected", "reward", "quality", "cost")
    faulty = not all(arm.plausible for arm in replayed.arms)
    rows = []
    for arm in replayed.arms:
        means = (
            "" if mean is None else number(EstimateWithInterval(value=mean))
            for mean in (arm.reward, arm.quality, arm.cost)
        )
        fault = ("" if arm.plausible else "not drawn as logged",) if faulty else ()
        rows.append((arm.name, percent(arm.drawn), percent(arm.expected), *means, *fault))
    return _table("The arms in the log", names=(*names, "fault") if faulty else names, rows=rows)


def _others(replayed: ReplayResult) -> str:
    kept = [candidate for candidate in replayed.candidates if candidate.verdict != "cannot be judged"]
    names = list(dict.fromkeys(name for candidate in kept for name in candidate.others))
    rows = [
        (each.name, *("" if (said := each.others.get(name)) is None else cell(said) for name in names))
        for each in kept
        if names
    ]
    return _table("The reward by other estimators", names=("candidate", *names), rows=rows)


def _segment(segment: Segment, *, of: Candidate) -> Sequence[str]:
    return (
        segment.name,
        of.name,
        count(segment.rows),
        count(segment.effective_rows),
        number(EstimateWithInterval(value=segment.baseline)),
        cell(segment.value),
        cell(segment.difference, sign="+"),
    )


def _table(title: str, *, names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Nothing where there are no rows. On a narrow screen each cell stands on its own line and says what it is."""
    if not rows:
        return ""
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    body = "\n".join(
        f"<tr><td>{_text(row[0])}</td>"
        + "".join(
            f'<td data-name="{_text(name)}">{_text(cell).replace(" to ", "&nbsp;to&nbsp;")}</td>'
            for name, cell in zip(names[1:], row[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<h2>{_text(title)}</h2>\n<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _text(text: str) -> str:
    """As text of the page, with a number and its % on one line."""
    return escape(printable(text)).replace(" %", "&nbsp;%")
