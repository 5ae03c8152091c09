"""Reads the table of outcomes that a command names (--table), with the options --columns and --skip-bad."""

from collections.abc import Sequence
from pathlib import Path

from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.router.offline.logs import MOST_NAMED, BadAnswer, BadRow, check_bad
from ragbandit.router.offline.logs.table_columns import parse_columns
from ragbandit.router.offline.logs.tables import LabelledTable, read_table
from ragbandit.shared.texts.formats import counted


def read_outcome_table(
    path: Path, *, columns: Sequence[str] | None, skip_bad: bool, schema: ContextSchema | None = None
) -> tuple[LabelledTable, list[str]]:
    """Returns (the table, lines that say how it was read and which rows were left out).

    schema: declared context keys; columns with their names become context. Raises InvalidInput with all faults.
    """
    bad: list[BadRow] = []
    table = read_table(path, columns=parse_columns(columns or ()), schema=schema, bad=bad)
    check_bad(bad, good=len(table.rows), path=path, skip=skip_bad)
    return table, [*table.remarks, *left_out_lines(bad)]


def left_out_lines(bad: Sequence[BadRow]) -> list[str]:
    """Lines about the first MOST_NAMED unusable rows, and if there are more, about the number of all."""
    lines = [f"left out: line {row.line} {row.field} {row.reason}" for row in bad[:MOST_NAMED]]
    if len(bad) > MOST_NAMED:
        unit = "question" if isinstance(bad[0], BadAnswer) else "row"
        lines.append(f"left out: {counted(len({row.question_line for row in bad}), unit)} in all")
    return lines
