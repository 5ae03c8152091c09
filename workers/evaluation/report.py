"""Report of `evaluate`: a line per arm, and the failures."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as Printed

from ragbandit.router.cli.console import console, print_json
from ragbandit.shared.formats import NOTHING
from ragbandit.workers.evaluation.results import Evaluated, Mean

#: failures that are described; all are counted
MOST_NAMED = 20
#: as the papers head their columns
_HEADS = {
    "exact_match": "EM",
    "f1": "F1",
    "accuracy": "Acc",
    "str_em": "str-em",
    "str_hit": "str-hit",
    "answered": "Q-R",
    "word_precision": "T-P",
    "word_recall": "T-R",
    "word_f1": "T-F1",
}


def show(results: Sequence[Evaluated], *, file: Path, judge: str | None, as_json: bool) -> None:
    """The table, what failed and where the answers lie; or the same as JSON. judge: the name of its model."""
    if as_json:
        print_json([row.as_json() for row in results])
        return
    measures = results[0].measures
    heads = [*(f"{_HEADS[name]} %" for name in measures), "Step", "Time", "s"]
    table = Printed("strategy", *heads, "prompt", "written", "dollars", "failed")
    for column in table.columns:
        column.justify, column.no_wrap = "right", True
    table.columns[0].justify = "left"
    for row in results:
        table.add_row(
            escape(row.strategy),
            *(_cell(row.means[name], scale=100.0, digits=1) for name in measures),
            *(_cell(row.means[name]) for name in ("steps", "time", "seconds")),
            *(_cell(row.means[name], digits=0) for name in ("prompt_tokens", "completion_tokens")),
            _cell(row.means["dollars"], digits=_dollar_digits(row.means["dollars"])),
            str(len(row.failures)),
        )
    table.caption = f"{results[0].questions} questions; mean ± standard error; failures count as wrong"
    if judge is not None:
        table.caption += f"; judged by {escape(judge)}"
    wide = Measurement.get(console, console.options.update(width=1000), table).maximum
    Console(file=console.file, width=max(wide, console.width), emoji=False).print(table)
    _list("failed", {row.strategy: row.failures for row in results})
    _list("not judged", {row.strategy: row.unjudged for row in results})
    console.print(f"answers: {escape(str(file))}", soft_wrap=True, highlight=False)


def _list(what: str, faults: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Prints the first failures, and how many more there are."""
    named = [f"{strategy} {identity}: {error}" for strategy, listed in faults.items() for identity, error in listed]
    for line in named[:MOST_NAMED]:
        console.print(f"{what}: {escape(line)}", soft_wrap=True, highlight=False)
    if len(named) > MOST_NAMED:
        console.print(f"{what}: {len(named) - MOST_NAMED} more, see --json", highlight=False)


def _dollar_digits(mean: Mean | None) -> int:
    """Decimals that show two significant digits of the standard error, or three of the mean where there is none."""
    if mean is None:
        return 2
    size, significant = (mean.error, 2) if mean.error else (abs(mean.value), 3)
    return min(12, max(2, significant - 1 - math.floor(math.log10(size)))) if size else 2


def _cell(mean: Mean | None, *, scale: float = 1.0, digits: int = 2) -> str:
    if mean is None:
        return NOTHING
    value = f"{scale * mean.value:.{digits}f}"
    return value if mean.error is None else f"{value} ± {scale * mean.error:.{digits}f}"
