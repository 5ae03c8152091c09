"""HTML report of a replay: one file without scripts or network requests, for readers who are not statisticians."""

import importlib.resources
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ragbandit.router.offline.replay.results import ReplayResult
from ragbandit.router.offline.reports.figures import drawn
from ragbandit.router.offline.reports.phrases import about_the_log, alarm, compared, footnotes, headline
from ragbandit.router.offline.reports.tables import comparisons, estimates
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.files import whole_file
from ragbandit.shared.formats import one_line

if TYPE_CHECKING:
    from markupsafe import Markup


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
        tables=estimates(replayed),
        comparisons=comparisons(replayed),
        footnotes=footnotes(replayed),
        about=about_the_log(replayed),
    )


def _text(text: str) -> "Markup":
    """Escaped text of the page: without control characters, and with a number and its % on one line."""
    from markupsafe import Markup, escape

    return Markup(escape(one_line(text)).replace(" %", Markup("&nbsp;%")))  # noqa: S704 - escaped in this line
