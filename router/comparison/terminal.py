"""An assessment on a screen of 80 x 24: a sentence and a number, then intervals as bars, and what is missing.

A pipe or a file gets the same as plain text, in whole lines.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ragbandit.router.comparison import NOT_KNOWN, Comparison, words
from ragbandit.router.comparison.assessment import Assessment, NumberTable, QuestionKind
from ragbandit.router.comparison.axes import AxisScale, number_scale
from ragbandit.shared.texts.formats import NOTHING, decimal, number, one_line, percent

WIDTH: Final = 80
#: largest number of bars on one screen, of actions, and of lines of the sentence and of other texts
_BARS, _ACTIONS, _SENTENCE, _OTHER = 5, 2, 6, 2
#: width of a bar, and least width of its name
_BAR, _NAME = 21, 10
#: the signs of a bar, for output that is not Unicode
_ASCII: Final = str.maketrans("│━╌├┤●…", "|=-[]o~")


def print_assessment(
    assessment: Assessment,
    console: Console,
    *,
    show_all: bool = False,
    page: Path | None = None,
    option: str = "--report FILE.html",
) -> None:
    """Print an assessment. page: file of the written page; if None, the option that writes a page is printed.

    show_all: whether to print every comparison, kind of questions, table and note
    """
    it = assessment
    state, missing = (words.unless_contained(text, sentence=it.sentence) for text in (it.state, it.missing))
    style = "" if it.verdict is None else words.STYLES[words.COLOURS[it.verdict]]

    def say(text: str, *, style: str = "", most: int = _OTHER) -> None:
        _print(text, console=console, style=style, most=len(text) if show_all else most)

    for text, look, most in (
        (state, "yellow", _OTHER),
        (it.sentence, "", _SENTENCE),
        (f"{it.number}  {it.about}", f"bold {style}".strip(), _OTHER),
        ("; ".join(f"{name}: {value}" for name, value in it.facts.items()), "", _OTHER),
    ):
        say(text or "", style=look, most=most)
    kept = it.comparisons if show_all else it.comparisons[:_BARS]
    for line in _bars(kept, width=min(console.width, WIDTH) if console.is_terminal else None):
        _put(line, console=console)
    if len(kept) < len(it.comparisons):
        say(f"{len(it.comparisons) - len(kept)} more with --all")
    say(f"For a verdict: {missing}" if missing else "")
    for action in it.actions if show_all else it.actions[:_ACTIONS]:
        say(f"- {action}")
    if show_all:
        for table in (_kinds(it.kinds), *it.tables):
            print_table(table, console=console)
        for note in (it.kinds_of, *it.notes):
            say(note)
    say(f"The page: {page}" if page else f"As a page with pictures: {option}")


def _kinds(kinds: Sequence[QuestionKind]) -> NumberTable:
    columns = (
        "questions",
        "share",
        "chance of each arm",
        "reward",
        "over the best fixed arm",
        "better arm",
        "for example",
    )
    rows = []
    for kind in kinds:
        arms = ", ".join(f"{arm} {percent(round(share, 2))}" for arm, share in kind.arms.items() if share >= 0.01)
        numbers = (percent(round(kind.share, 3)), arms, decimal(kind.reward), words.difference(kind.over_best))
        better = f"{kind.better_arm} {words.difference(kind.better_by)}" if kind.better_arm else NOTHING
        rows.append((kind.name, *numbers, better, "".join(kind.examples[:1])))
    return NumberTable(title="who gets what", columns=columns, rows=tuple(rows))


def _print(text: str, *, console: Console, style: str, most: int) -> None:
    """Print a text in at most `most` lines of a terminal, whole in a pipe; an empty text prints nothing.

    A text with a command stays whole, so that it can be copied.
    """
    line = Text(one_line(text), style=style)
    wraps = console.is_terminal and "`ragbandit " not in text
    lines = [] if not text else [*line.wrap(console, min(console.width, WIDTH))] if wraps else [line]
    for part in lines[:most]:
        part.rstrip()
    if len(lines) > most:
        lines[most - 1].truncate(min(console.width, WIDTH) - 1)
        lines[most - 1].append("…")
    for part in lines[:most]:
        _put(part, console=console)


def _put(line: Text, *, console: Console) -> None:
    if console.options.ascii_only:
        line.plain = line.plain.translate(_ASCII).encode("ascii", "replace").decode()
    console.print(line, soft_wrap=True, highlight=False)


def _bars(comparisons: Sequence[Comparison], *, width: int | None) -> Iterator[Text]:
    """Yield the ends of the axis, and a line for each comparison. width: largest width of a line; None for no limit."""
    drawn = [c.reward for c in comparisons if words.difference(c.reward) != NOT_KNOWN]
    scale = number_scale([0.0, *(end for reward in drawn for end in (reward.low, reward.high))])
    names = [Text(one_line(name)) for name in words.against(comparisons)]
    values = [words.difference(comparison.reward) for comparison in comparisons]
    ends = [v if v == NOT_KNOWN else f"{v} {c.verdict}" for v, c in zip(values, comparisons, strict=True)]
    most = max((name.cell_len for name in names), default=0)
    if width is not None:
        most = min(most, max(width - _BAR - 4 - max(map(len, ends), default=0), _NAME))
    if drawn:
        yield Text(f"\n{'reward a question'[:most]:{most}}  {number(scale.low, 2):10} {number(scale.high, 2):>10}")
    for name, comparison, end in zip(names, comparisons, ends, strict=True):
        name.truncate(most, overflow="ellipsis", pad=True)
        style = words.STYLES[words.COLOURS[comparison.verdict]]
        line = name.append("  ").append(_bar(comparison, scale=scale), style=style).append(f"  {end}")
        if width is not None:
            line.truncate(width)
        yield line


def _bar(comparison: Comparison, *, scale: AxisScale) -> str:
    reward = comparison.reward

    def cell(value: float) -> int:
        return round(scale.at(value) * (_BAR - 1))

    cells = [" "] * _BAR
    if words.difference(reward) != NOT_KNOWN and reward.low is not None and reward.high is not None:
        left, right = cell(reward.low), cell(reward.high)
        cells[left : right + 1] = ("╌" if comparison.verdict == NOT_KNOWN else "━") * (right + 1 - left)
        cells[left], cells[right] = "├", "┤"
    cells[cell(0.0)] = "│"
    if comparison.verdict in ("better", "worse") and reward.estimate is not None:
        cells[cell(reward.estimate)] = "●"
    return "".join(cells)


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
