"""HTML report of a replay: one file without scripts or network requests, for readers who are not statisticians."""

import importlib.resources
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ragbandit.router.offline.replay.plan import CandidateResult, ReplayResult
from ragbandit.router.offline.reports.text import (
    about_the_log,
    alarm,
    cell,
    compared,
    comparisons,
    estimates,
    footnotes,
    headline,
    interval,
    over_time,
)
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.files import whole_file
from ragbandit.shared.formats import one_line, percent

if TYPE_CHECKING:
    from markupsafe import Markup

#: of the chart: its width, the height of a row with its name above it, and the letters of a name; user units
_WIDTH: Final = 480.0
_ROW: Final = 34.0
_LONG: Final = 48


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
    """The page as HTML, the same text for the same numbers."""
    from jinja2 import Environment, StrictUndefined

    source = importlib.resources.files("ragbandit.router.offline.reports").joinpath("page.html").read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["text"] = _text
    classes = ["doubted" if replayed.faults else candidate.verdict for candidate in compared(replayed)]
    return environment.from_string(source).render(
        title=f"Replay of {replayed.log}",
        baseline=replayed.baseline,
        alarm=alarm(replayed),
        verdicts=list(zip(classes, headline(replayed), strict=True)),
        chart=differences(replayed),
        confidence=percent(replayed.plan.confidence),
        tables=estimates(replayed),
        comparisons=[*comparisons(replayed), *over_time(replayed)],
        footnotes=footnotes(replayed),
        about=about_the_log(replayed),
    )


def _text(text: str) -> "Markup":
    """Escaped text of the page: without control characters, and with a number and its % on one line."""
    from markupsafe import Markup, escape

    return Markup(escape(one_line(text)).replace(" %", Markup("&nbsp;%")))  # noqa: S704 - escaped in this line


def differences(replayed: ReplayResult) -> "Markup":
    """The interval of each candidate's difference around the line at 0, as an <svg> element; empty without any.

    A dot is an estimate. A dashed bar without one is the possible range of a candidate that cannot be judged.
    """
    from markupsafe import Markup

    rows = [one for one in compared(replayed) if one.difference is not None and interval(one.difference)]
    if not rows:
        return Markup("")
    scale = _scale(rows)
    drawn = [Markup('<path class="zero" d="M{0:.1f} 0V{1:.0f}"/>').format(scale(0.0), _ROW * len(rows))]
    for number, candidate in enumerate(rows):
        name = one_line(candidate.name)
        name = name if len(name) <= _LONG else f"{name[: _LONG // 2]}\N{HORIZONTAL ELLIPSIS}{name[-_LONG // 2 + 1 :]}"
        drawn.append(_bar(candidate, name=name, top=number * _ROW, scale=scale))
    label = "; ".join(f"{one_line(one.name)}: {cell(one.difference, sign='+')}" for one in rows if one.difference)
    shape = Markup('<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{}" viewBox="0 0 {:.0f} {:.0f}">')
    return shape.format(label, _WIDTH, _ROW * len(rows)) + Markup("").join(drawn) + Markup("</svg>")


def _bar(candidate: CandidateResult, *, name: str, top: float, scale: Callable[[float], float]) -> "Markup":
    from markupsafe import Markup

    gap, open_ = candidate.difference, candidate.verdict == "cannot be judged"
    assert gap is not None and gap.low is not None and gap.high is not None  # noqa: PT018
    shape = '<g class="{}"><text x="0" y="{:.1f}">{}: {}</text><path stroke-dasharray="{}" d="M{:.1f} {:.1f}H{:.1f}"/>'
    dashes = "6 4" if open_ else "none"
    words = (
        candidate.verdict,
        top + 14.0,
        name,
        candidate.verdict,
        dashes,
        scale(gap.low),
        top + 24.0,
        scale(gap.high),
    )
    drawn = Markup(shape).format(*words)  # noqa: S704 - what is put in is escaped
    if not open_ and math.isfinite(gap.value):
        drawn += Markup('<circle cx="{:.1f}" cy="{:.1f}" r="4"/>').format(scale(gap.value), top + 24.0)
    return drawn + Markup("</g>")


def _scale(rows: Sequence[CandidateResult]) -> Callable[[float], float]:
    """From a difference to its place; what is merely possible may be cut off, so that it does not dwarf the rest."""
    known = [one for one in rows if one.verdict != "cannot be judged"] or rows
    ends = [end for one in known if one.difference for end in (one.difference.low, one.difference.high)]
    low, high = min(0.0, *(end for end in ends if end is not None)), max(0.0, *(end for end in ends if end is not None))
    room = (high - low) * 0.05 or 1.0
    return lambda value: min(max((value - low + room) / (high - low + 2.0 * room), 0.0), 1.0) * _WIDTH
