"""`ragbandit data export` and `ragbandit data import`: logged traffic out of the store and into it."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ragbandit.router.cli.console import ConfigOption, JsonOption, bars, console, errors, in_words, show
from ragbandit.router.cli.store import opened, parse_time
from ragbandit.router.offline.logs import FORMATS, BadRow, Logged, format_of, read_rows, write_rows
from ragbandit.router.offline.logs.ledger_transfer import ImportCounts, ledger_rows, take_in
from ragbandit.router.offline.logs.records import reward_defaults
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.errors import InvalidInput, NotFound, RagBanditError

#: bad rows that are described; all are counted
MOST_NAMED = 20
#: a count of an import -> what it means
_MEANINGS = {
    "added": "rows that are new in the ledger",
    "known": "rows that it had already, skipped",
    "made_elsewhere": "of the added ones were drawn by another system: `verify` cannot draw them again",
    "bad": "rows that could not be used",
    "left_out": "fields of rows that the store has no column for",
}
#: as the configuration takes it
_LABEL = re.compile(r"[a-z0-9_]{1,40}")

FileArgument = Annotated[Path, typer.Argument(help="its name says the format, unless --format does")]
FormatOption = Annotated[str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}; default: by the name")]


def export(
    file: FileArgument,
    *,
    format_: FormatOption = None,
    since: Annotated[str | None, typer.Option(help="decided since a date, a time, or an age such as 7d")] = None,
    before: Annotated[str | None, typer.Option(help="decided before a date, a time, or an age such as 90d")] = None,
    label: Annotated[str | None, typer.Option(help="the ledger; default: the configured one")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write what a ledger learned as a log, in its order; the file is whole or not there.

    What each format carries: docs/replay.md.
    """
    log_format = format_of(file, format=format_)
    now = time.time()
    first = None if since is None else parse_time(since, now=now)
    end = None if before is None else parse_time(before, now=now, field="before")
    with opened(config, label=label) as (_, ledger):
        count = write_rows(file, _exported(ledger, since=first, before=end), format=log_format)
    facts = {"rows": count, "file": str(file), "format": log_format, "label": ledger.label}
    show(facts | {"bytes": file.stat().st_size}, as_json=as_json)


def _exported(ledger: Ledger, *, since: float | None, before: float | None) -> Iterator[Logged]:
    """The rows, with a bar. Raises NotFound where there are none."""
    last, count = ledger.last_seq(), 0
    with bars(errors) as progress:
        for row in ledger_rows(ledger, since=since, before=before, upto=last):
            count += 1
            if row.seq % 100 == 0 or row.seq == last:
                progress("rows", row.seq, last)
            yield row
    if not count:
        raise NotFound(
            f"the ledger {ledger.label!r} has no rows" + ("" if since is None and before is None else " of that time"),
            field="label",
            remedy=f"see: ragbandit status --label {ledger.label}",
        )


def import_(
    file: FileArgument,
    *,
    format_: FormatOption = None,
    label: Annotated[str, typer.Option(help="the ledger that the rows are added to")] = "imported",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="leave out rows that cannot be used")] = False,
    minimum: Annotated[float | None, typer.Option(help="of rewards that name no bounds; default: config")] = None,
    maximum: Annotated[float | None, typer.Option(help="of rewards that name no bounds; default: config")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a log's rows to a ledger, in the file's order; duplicates are skipped.

    The least that a row needs, and what each format carries: docs/replay.md.
    """
    log_format = format_of(file, format=format_)
    if not _LABEL.fullmatch(label):
        raise InvalidInput(
            f"{label!r} is no name of a ledger", field="label", remedy="use 1 to 40 of a-z, 0-9 and underscore"
        )
    with opened(config, label=label, make=True) as (settings, ledger):
        defaults = reward_defaults(settings.reward, minimum=minimum, maximum=maximum)
        rows = read_rows(file, format=log_format, defaults=defaults)
        reading = _GoodRows(file=file, skip_bad=skip_bad)
        with _progress_of(reading) as progress:
            take_in(
                ledger,
                reading.rows(rows),
                origin=log_format,
                source=str(file),
                lease_s=settings.learning.lease_s,
                progress=progress,
            )
        facts = {
            **asdict(reading.taken),
            "bad": reading.bad,
            "left_out": sorted(reading.left_out),
            "label": label,
            "last_seq": ledger.last_seq(),
        }
    if as_json:
        show(facts, as_json=True)
    else:
        counts = {**asdict(reading.taken), "bad": reading.bad, "left_out": len(reading.left_out)}
        show(in_words(counts, meanings=_MEANINGS) | {"label": label, "last update": ledger.last_seq()}, as_json=False)
        if reading.left_out:
            console.print(escape(f"fields left out: {', '.join(sorted(reading.left_out))}"), soft_wrap=True)
        where = "" if config is None else f" --config {config}"
        line = f"next: ragbandit replay --label {label} --policy ...{where}"
        console.print(escape(line), soft_wrap=True, highlight=False)


class _GoodRows:
    """The good rows of a file, and what was met on the way."""

    def __init__(self, *, file: Path, skip_bad: bool) -> None:
        self.file = file
        self.skip_bad = skip_bad
        self.bad = 0
        #: keys that the store has no place for
        self.left_out: set[str] = set()
        #: rows imported so far
        self.taken = ImportCounts()

    def rows(self, entries: Iterator[Logged | BadRow]) -> Iterator[Logged]:
        """The rows that can be used. Raises InvalidInput at the first that cannot, unless they are skipped."""
        for row in entries:
            if isinstance(row, Logged):
                self.left_out.update(row.extra)
                yield row
                continue
            self.bad += 1
            fault = InvalidInput(row.reason, field=f"{self.file}:{row.line} {row.field}".rstrip(), remedy=row.remedy)
            if not self.skip_bad:
                raise fault
            if self.bad <= MOST_NAMED:
                errors.print(f"left out: {escape(str(fault))}", soft_wrap=True, highlight=False)


@contextlib.contextmanager
def _progress_of(reading: _GoodRows) -> Iterator[Callable[[ImportCounts], None]]:
    """Shows rows done and rate; an error in the block says which rows were added, and that nothing has to be undone.

    The number of rows is not known before the end of the file.
    """
    with bars(errors) as progress:

        def show(taken: ImportCounts) -> None:
            reading.taken = taken
            progress("rows", taken.added + taken.known, 0)

        try:
            yield show
        except RagBanditError as error:
            so_far = (
                f"{reading.taken.added} rows were added; the corrected file can be imported again and adds the rest"
            )
            remedy = f"{error.remedy}; {so_far}" if error.remedy else so_far
            raise type(error)(error.message, field=error.field, remedy=remedy) from error
