"""An assessment on a screen of 80 x 24: a sentence and a number, then intervals as bars, and what is missing.

A pipe or a file gets the same as plain text, in whole lines.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ragbandit.router.comparison import NOT_KNOWN, Comparison, words
from ragbandit.router.comparison.assessment import Assessment, NumberTable
from ragbandit.router.comparison.axes import Scale, number_scale
from ragbandit.shared.formats import one_line, percent

WIDTH: Final = 80
#: largest number of bars on one screen, of actions, and of lines of the sentence and of other texts
_BARS, _ACTIONS, _SENTENCE, _OTHER = 5, 2, 4, 2
#: width of a bar, and least width of its name
_BAR, _NAME = 21, 10


class _Signs(NamedTuple):
    """The characters of a bar."""

    zero: str
    known: str
    unknown: str
    left: str
    right: str
    point: str
    full: str
    empty: str
    more: str


_LINES: Final = _Signs("│", "━", "╌", "├", "┤", "●", "█", "░", "…")
_ASCII: Final = _Signs("|", "=", "-", "[", "]", "o", "#", ".", "...")


def print_assessment(
    assessment: Assessment,
    console: Console,
    *,
    show_all: bool = False,
    page: Path | None = None,
    option: str = "--report FILE.html",
) -> None:
    """Print an assessment. page: file of the written page; if None, the option that writes a page is printed.

    show_all: True to print every comparison, table and note
    """
    _Printer(console, assessment=assessment, show_all=show_all).all_of(
        f"The page: {page}" if page else f"As a page with pictures: {option}"
    )


class _Printer:
    def __init__(self, console: Console, *, assessment: Assessment, show_all: bool) -> None:
        self._console, self._it, self._all = console, assessment, show_all
        self._signs = _ASCII if console.options.ascii_only else _LINES
        self._width = min(console.width, WIDTH)
        verdict = assessment.verdict
        self._style = "" if verdict is None else words.STYLES[words.COLOURS[verdict]]

    def all_of(self, last: str) -> None:
        it = self._it
        self._say(it.title, style="bold", most=1)
        if it.state and it.state.casefold() not in it.sentence.casefold():
            self._say(it.state, style="yellow")
        self._say(it.sentence, most=_SENTENCE)
        self._say(f"{it.number}  {it.about}", style=f"bold {self._style}".strip())
        for line in self._bars(it.comparisons):
            if self._console.is_terminal:
                line.truncate(self._width)
            self._print(line)
        if it.missing:
            self._progress(it.missing)
        for action in it.actions if self._all else it.actions[:_ACTIONS]:
            self._say(f"- {action}", most=1)
        if self._all:
            for table in it.tables:
                print_table(table, console=self._console)
            for note in it.notes:
                self._say(note)
        self._say(last)

    def _say(self, text: str, *, style: str = "", most: int = _OTHER) -> None:
        """Print a text in at most `most` lines of a terminal; in a pipe, or with all numbers, whole."""
        line = Text(one_line(text), style=style)
        if not self._console.is_terminal:
            self._print(line)
            return
        wrapped = [*line.wrap(self._console, self._width)]
        for part in wrapped:
            part.rstrip()
        if len(wrapped) > most and not self._all:
            wrapped[most - 1].truncate(self._width - len(self._signs.more))
            wrapped[most - 1].append(self._signs.more)
            wrapped = wrapped[:most]
        for part in wrapped:
            self._print(part)

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True, highlight=False)

    def _bars(self, comparisons: Sequence[Comparison]) -> Iterator[Text]:
        """Yield the axis, and a line for each comparison."""
        kept = comparisons if self._all else comparisons[:_BARS]
        if not kept:
            return
        drawn = [c for c in kept if words.difference(c.reward) != NOT_KNOWN]
        scale = number_scale([0.0, *(end for c in drawn for end in (c.reward.low, c.reward.high))])
        shared = len({comparison.first for comparison in kept}) == 1
        names = [Text(one_line(f"against {c.second}" if shared else f"{c.first} against {c.second}")) for c in kept]
        values = [words.difference(comparison.reward) for comparison in kept]
        ends = [v if v == NOT_KNOWN else f"{v} {c.verdict}" for v, c in zip(values, kept, strict=True)]
        width = max(name.cell_len for name in names)
        if self._console.is_terminal:
            width = min(width, max(self._width - _BAR - 4 - max(map(len, ends)), _NAME))
        head = Text("reward a question")
        head.truncate(width, pad=True)
        head.append("  ")
        yield Text("")
        yield head.append(self._axis(scale)) if drawn else head
        for name, comparison, end in zip(names, kept, ends, strict=True):
            name.truncate(width, overflow="ellipsis", pad=True)
            style = words.STYLES[words.COLOURS[comparison.verdict]]
            yield name.append("  ").append(self._bar(comparison, scale=scale), style=style).append(f"  {end}")
        if len(kept) < len(comparisons):
            yield Text(f"{len(comparisons) - len(kept)} more with --all")

    def _bar(self, comparison: Comparison, *, scale: Scale) -> str:
        reward, signs = comparison.reward, self._signs
        cells = [" "] * _BAR
        cells[_cell(0.0, scale)] = signs.zero
        if words.difference(reward) != NOT_KNOWN and reward.low is not None and reward.high is not None:
            left, right = _cell(reward.low, scale), _cell(reward.high, scale)
            known = comparison.verdict != NOT_KNOWN
            for place in range(left, right + 1):
                if cells[place] == " ":
                    cells[place] = signs.known if known else signs.unknown
            if left < right:
                cells[left], cells[right] = signs.left, signs.right
            if comparison.verdict in ("better", "worse") and reward.estimate is not None:
                cells[_cell(reward.estimate, scale)] = signs.point
        return "".join(cells)

    def _axis(self, scale: Scale) -> str:
        """The ticks' labels at their places, as far as they do not meet."""
        cells = [" "] * _BAR
        for value, label in sorted(scale.ticks, key=lambda tick: tick[0] != 0.0):  # zero first
            start = min(max(_cell(value, scale) - len(label) // 2, 0), _BAR - len(label))
            if start >= 0 and not "".join(cells[max(start - 1, 0) : start + len(label) + 1]).strip():
                cells[start : start + len(label)] = label
        return "".join(cells)

    def _progress(self, missing: str) -> None:
        share = min(max(self._it.progress, 0.0), 1.0)
        full = round(share * _BAR)
        bar = self._signs.full * full + self._signs.empty * (_BAR - full)
        self._print(Text("\n").append(bar, style=self._style).append(f"  {percent(round(share, 2))} of the evidence"))
        if missing.casefold() not in self._it.sentence.casefold():
            self._say(f"Missing for a verdict: {missing}")


def _cell(value: float, scale: Scale) -> int:
    return round(scale.at(value) * (_BAR - 1))


def print_table(table: NumberTable, *, console: Console) -> None:
    """Print a table in its full width, also to a file or a pipe. A table without rows is not printed."""
    if not table.rows:
        return
    shown = Table(title=Text(one_line(table.title)), title_justify="left")
    for place, column in enumerate(table.columns):
        shown.add_column(Text(one_line(column)), no_wrap=True, justify="right" if place else "left")
    for row in table.rows:
        shown.add_row(*(Text(one_line(cell)) for cell in row))
    width = console.width
    console.width = max(width, Measurement.get(console, console.options.update(width=1000), shown).maximum)
    console.print(shown)
    console.width = width
