"""Reads the table of outcomes that a command names (--table), with the options --columns and --skip-bad."""

from collections.abc import Sequence
from pathlib import Path

from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.router.offline.logs import MOST_NAMED, BadAnswer, BadRow, check_bad
from ragbandit.router.offline.logs.table_columns import parse_columns
from ragbandit.router.offline.logs.tables import LabelledTable, read_table
from ragbandit.shared.texts.formats import counted


def outcome_table(
    path: Path, *, columns: Sequence[str] | None, skip_bad: bool, schema: ContextSchema | None = None
) -> tuple[LabelledTable, list[str]]:
    """Returns (the table, how it was read and which rows were left out, in words).

    schema: declared keys of the context, whose columns become context. Raises InvalidInput with all faults of the file.
    """
    bad: list[BadRow] = []
    table = read_table(path, columns=parse_columns(columns or ()), schema=schema, bad=bad)
    check_bad(bad, good=len(table.rows), path=path, skip=skip_bad)
    return table, [*table.remarks, *left_out_rows(bad)]


def left_out_rows(bad: Sequence[BadRow]) -> list[str]:
    """The unusable rows in words: the first ones, and their number."""
    said = [f"left out: line {row.line} {row.field} {row.reason}" for row in bad[:MOST_NAMED]]
    if len(bad) > MOST_NAMED:
        unit = "task" if isinstance(bad[0], BadAnswer) else "row"
        said.append(f"left out: {counted(len({row.task for row in bad}), unit)} in all")
    return said
