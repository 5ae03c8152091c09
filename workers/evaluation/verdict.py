"""Output of `advise` on a terminal."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ragbandit.router.comparison.assessment import Assessment


def print_assessment(
    assessment: Assessment, console: Console, *, show_all: bool = False, page: Path | None = None
) -> None:
    lines = [assessment.sentence, *(f"{name}: {value}" for name, value in assessment.facts.items())]
    for line in lines:
        console.print(escape(line), highlight=False, soft_wrap=True)
    for numbers in assessment.tables[: None if show_all else 1]:
        table = Table(*numbers.columns, title=escape(numbers.title))
        for row in numbers.rows:
            table.add_row(*map(escape, row))
        console.print(table)
    lines = [*(assessment.notes if show_all else ()), *assessment.actions, *([f"page: {page}"] if page else [])]
    for line in lines:
        console.print(escape(line), highlight=False, soft_wrap=True)
