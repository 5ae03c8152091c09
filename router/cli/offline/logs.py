"""`ragbandit export` and `ragbandit import`: logged traffic out of the store and into it."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ragbandit.router.cli.console import ConfigOption, JsonOption, console, errors, failing_well, print_json
from ragbandit.router.errors import InvalidInput, NotFound, RagBanditError

if TYPE_CHECKING:
    from ragbandit.router.config.settings import Settings
    from ragbandit.router.offline.logs import BadRow, Logged
    from ragbandit.router.offline.logs.ledger_transfer import ImportCounts
    from ragbandit.router.storage.ledgers.ledger import Ledger

__all__ = ["add_log_verbs"]

#: bad rows that are described; all are counted
MOST_NAMED = 20
#: as the configuration takes it
_LABEL = re.compile(r"[a-z0-9_]{1,40}")

FileArgument = Annotated[Path, typer.Argument(help="its name says the format, unless --format does")]
#: the names of offline.logs.FORMATS, written out: the help of a verb loads nothing that reads logs
FORMATS_HELP = "jsonl, parquet, dsjson"
FormatOption = Annotated[str | None, typer.Option("--format", help=f"{FORMATS_HELP}; default: by the name")]


def add_log_verbs(app: typer.Typer) -> None:
    """Put export and import on the command."""
    _add_export(app)
    _add_import(app)


def _add_export(app: typer.Typer) -> None:
    @app.command(name="export")
    def export_(
        file: FileArgument,
        *,
        format_: FormatOption = None,
        since: Annotated[str | None, typer.Option(help="decided since a date, a time, or an age such as 7d")] = None,
        label: Annotated[str | None, typer.Option(help="the ledger; default: the configured one")] = None,
        config: ConfigOption = None,
        as_json: JsonOption = False,
    ) -> None:
        """Write what a ledger learned as a log, in its order; the file is whole or not there.

        What each format carries: docs/replay.md.
        """
        from ragbandit.router.cli.arguments import parse_time
        from ragbandit.router.config import loading as configuration
        from ragbandit.router.learning.status import check_registered
        from ragbandit.router.offline.logs import format_of, write_rows
        from ragbandit.router.serving.setup.bootstrap import ledger_of

        with failing_well():
            said = format_of(file, format=format_)
            first = None if since is None else parse_time(since, now=time.time())
            settings = configuration.load(config).settings
            with ledger_of(settings, label=label or settings.policy.label) as ledger:
                check_registered(ledger)
                rows = _exported(ledger, since=first)
                count = write_rows(file, rows, format=said)
            facts = {"rows": count, "file": str(file), "format": said, "label": ledger.label}
            _show(facts | {"bytes": file.stat().st_size}, as_json=as_json)


def _exported(ledger: "Ledger", *, since: float | None) -> "Iterator[Logged]":
    """The rows, with a bar. Raises NotFound where there are none."""
    from ragbandit.router.cli.progress import bars
    from ragbandit.router.offline.logs.ledger_transfer import ledger_rows

    last, count = ledger.last_seq(), 0
    with bars(errors) as progress:
        for row in ledger_rows(ledger, since=since, upto=last):
            count += 1
            if row.seq % 100 == 0 or row.seq == last:
                progress("rows", row.seq, last)
            yield row
    if not count:
        raise NotFound(
            f"the ledger {ledger.label!r} has no rows" + ("" if since is None else " since then"),
            field="label",
            remedy=f"see: ragbandit status --label {ledger.label}",
        )


def _add_import(app: typer.Typer) -> None:
    @app.command(name="import")
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
        """Add a log's rows to a ledger, in the file's order; rows that it has already add nothing.

        The least that a row needs, and what each format carries: docs/replay.md.
        """
        from ragbandit.router.config import loading as configuration
        from ragbandit.router.offline.logs import format_of, read_rows
        from ragbandit.router.offline.logs.ledger_transfer import take_in
        from ragbandit.router.offline.logs.records import reward_defaults

        with failing_well():
            said = format_of(file, format=format_)
            settings = configuration.load(config).settings
            defaults = reward_defaults(settings.reward, minimum=minimum, maximum=maximum)
            found = read_rows(file, format=said, defaults=defaults)
            with _new_ledger(settings, label=label) as ledger:
                reading = _Reading(file=file, skip_bad=skip_bad)
                with _told(reading) as show:
                    take_in(
                        ledger,
                        reading.rows(found),
                        origin=said,
                        source=str(file),
                        lease_s=settings.learning.lease_s,
                        progress=show,
                    )
                facts = {
                    **asdict(reading.taken),
                    "bad": reading.bad,
                    "left_out": sorted(reading.left_out),
                    "label": label,
                    "last_seq": ledger.last_seq(),
                }
            _show(facts, as_json=as_json)
            if not as_json:
                where = "" if config is None else f" --config {config}"
                _print(f"next: ragbandit replay --label {label} --policy ...{where}")


class _Reading:
    """The good rows of a file, and what was met on the way."""

    def __init__(self, *, file: Path, skip_bad: bool) -> None:
        from ragbandit.router.offline.logs.ledger_transfer import ImportCounts

        self.file = file
        self.skip_bad = skip_bad
        self.bad = 0
        #: keys that the store has no place for
        self.left_out: set[str] = set()
        #: rows imported so far
        self.taken = ImportCounts()

    def rows(self, found: "Iterator[Logged | BadRow]") -> "Iterator[Logged]":
        """The rows that can be used. Raises InvalidInput at the first that cannot, unless they are skipped."""
        from ragbandit.router.offline.logs import Logged

        for row in found:
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
def _new_ledger(settings: "Settings", *, label: str) -> "Iterator[Ledger]":
    """A ledger of the configured store; both are made if they are not there."""
    from ragbandit.router.serving.setup.bootstrap import open_database
    from ragbandit.router.storage.ledgers.ledger import Ledger
    from ragbandit.router.types import PolicyLabel

    if not _LABEL.fullmatch(label):
        raise InvalidInput(
            f"{label!r} is no name of a ledger", field="label", remedy="use 1 to 40 of a-z, 0-9 and underscore"
        )
    database = open_database(settings)
    try:
        yield Ledger(database, label=PolicyLabel(label))
    finally:
        database.close()


@contextlib.contextmanager
def _told(reading: _Reading) -> "Iterator[Callable[[ImportCounts], None]]":
    """Shows rows done and rate; an error in the block says which rows were added, and that nothing has to be undone.

    The number of rows is not known before the end of the file.
    """
    from ragbandit.router.cli.progress import bars

    with bars(errors) as progress:

        def show(taken: "ImportCounts") -> None:
            reading.taken = taken
            progress("rows", taken.added + taken.known, 0)

        try:
            yield show
        except RagBanditError as error:
            kept = f"{reading.taken.added} rows were added; the corrected file can be imported again and adds the rest"
            remedy = f"{error.remedy}; {kept}" if error.remedy else kept
            raise type(error)(error.message, field=error.field, remedy=remedy) from error


def _show(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    for key, value in facts.items():
        _print(f"{key}: {', '.join(map(str, value)) if isinstance(value, list) else value}")


def _print(line: str) -> None:
    console.print(escape(line), soft_wrap=True, highlight=False)
