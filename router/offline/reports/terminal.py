"""Replay results as sentences and tables for the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Printed
from rich.text import Text

from ragbandit.router.offline.replay.results import ReplayResult
from ragbandit.router.offline.reports.phrases import about_the_log, alarm, compared, footnotes, headline
from ragbandit.router.offline.reports.tables import Table, comparisons, estimates
from ragbandit.shared.formats import one_line

__all__ = ["print_replay"]

_STYLES = {
    "better": "green",
    "worse": "red",
    "cannot tell": "yellow",
    "same policy": "yellow",
    "cannot be judged": "magenta",
    "baseline": "dim",
    "not drawn as logged": "bold red",
}


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
