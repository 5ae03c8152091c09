"""Logged traffic on its way in and out: the ledger's rows as files that other tools read too.

    jsonl    one JSON object a line: lossless, and easy to write by hand
    parquet  the same columns, typed; `read_log` streams millions of rows as arrays

Everything that a row holds comes back from every format. docs/replay.md says what each carries.
"""

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import cast

from ragbandit.router.offline.logs.records import BadRow, Defaults, Logged
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.formats import known_choices

__all__ = ["FORMATS", "BadRow", "Defaults", "Logged", "format_of", "read_rows", "write_rows"]

#: format -> how its files' names end
FORMATS = {
    "jsonl": (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"),
    "parquet": (".parquet",),
}


def read_rows(
    path: str | Path,
    *,
    format: str | None = None,  # noqa: A002 - the word that people know
    defaults: Defaults | None = None,
) -> Iterator[Logged | BadRow]:
    """The rows of a log in the order of the file, what cannot be used as BadRow.

    format: one of FORMATS; None goes by the file's name. Raises InvalidInput for a file that cannot be read at all,
    ConfigError for a format whose package is not installed.
    """
    format_name = format_of(path, format=format)
    module = import_module(f"ragbandit.router.offline.logs.{format_name}")
    return cast("Iterator[Logged | BadRow]", module.read(path, defaults=defaults or Defaults()))


def write_rows(
    path: str | Path,
    rows: Iterable[Logged],
    *,
    format: str | None = None,  # noqa: A002 - as above
) -> int:
    """Write a log; the number of rows. It appears when all of it is written: an error leaves nothing behind.

    Raises InvalidInput, or ConfigError for a format whose package is not installed.
    """
    module = import_module(f"ragbandit.router.offline.logs.{format_of(path, format=format)}")
    return cast("int", module.write(path, rows))


def format_of(path: str | Path, *, format: str | None = None) -> str:  # noqa: A002 - as above
    """The format that is named, or that the file's name ends in. Raises InvalidInput."""
    if format is None:
        matching = [name for name, ends in FORMATS.items() if str(path).lower().endswith(ends)]
        if not matching:
            known = ", ".join(end for ends in FORMATS.values() for end in ends)
            raise InvalidInput(
                "its name does not say the format", field=str(path), remedy=f"name the format, or end it in {known}"
            )
        return matching[0]
    if format not in FORMATS:
        raise InvalidInput(f"unknown format {format!r}", field="format", remedy=known_choices(FORMATS, given=format))
    return format
