"""Verbs for stored data: `migrate`, and `data` erase, backup, export, import and questions."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from sqlalchemy import func, select

from ragbandit.router.cli.console import console, errors, print_json
from ragbandit.router.cli.options import ConfigOption, JsonOption, LabelOption, SkipBadOption
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.cli.store import NewStoreOption, actor, open_store, parse_time
from ragbandit.router.cli.tables import counts_in_words, show
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.config.settings import sqlite_url
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline import logs
from ragbandit.router.offline.logs.jsonl import read_rows
from ragbandit.router.offline.logs.ledger_transfer import ImportCounts, import_rows, ledger_rows
from ragbandit.router.serving.checks.questions import plain_decision_id
from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.serving.setup.requirements import lock_store, sqlite_file
from ragbandit.router.storage import erasure
from ragbandit.router.storage.access.turn_sums import forget_all_sums
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.filling import count_unfilled, fill
from ragbandit.router.storage.sql import schema
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.deadlines import DeadlineClock
from ragbandit.router.storage.sql.leases import Lease, lease_holder
from ragbandit.router.storage.sql.move import move
from ragbandit.router.storage.sql.tables import SCHEMA_REVISION, closures, waiting
from ragbandit.shared.errors import Conflict, InvalidInput, NotFound, NotReady, RagBanditError
from ragbandit.shared.files import atomic_file, private_folder, write_file
from ragbandit.shared.json_lines import rereadable
from ragbandit.shared.texts.formats import counted
from ragbandit.shared.types import PolicyLabel

#: lease timeout of an erasure, seconds, above the duration of its transactions
ERASE_LEASE_S: Final = 300.0


def migrate(
    config: ConfigOption = None,
    pre: Annotated[
        bool, typer.Option("--pre", help="only the steps that the former release can run on, before a rolling upgrade")
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option(min=0, help="wait at most SECONDS until another process has migrated; migrate nothing"),
    ] = None,
    new_store: NewStoreOption = False,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="DATA_DIR",
            help="SQLite store to move into an empty PostgreSQL database: folder, file or URL",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Migrate the database to the schema of this release, or move a SQLite store to PostgreSQL.

    --from copies every row: decisions, outcomes, feedback, ledgers, keys, sessions, totals and the audit log. Set
    DATABASE_URL to an empty PostgreSQL database, and stop the service. An interrupted move continues if you repeat it.

    Facts of decisions that a former release made get columns of their own, in batches, while the service runs. Run this
    again when the last process of the former release has ended; until then reports read those facts from JSON.
    """
    if source is not None:
        if pre or wait is not None or new_store:
            remedy = "leave out --pre, --wait and --new-store"
            raise InvalidInput("a move has no further options", field="from", remedy=remedy)
        _move(source, config=config, as_json=as_json)
        return
    settings = configuration.load(config).settings
    if wait is None:
        database = open_database(settings, new_store=new_store, check=False)
        migrate_schema = partial(schema.migrate, pre=pre)
    else:
        database = Database(settings.database, make=False)
        migrate_schema = partial(schema.wait_for_schema, seconds=wait)
    with contextlib.closing(database):
        revision = migrate_schema(database)
        filled = 0 if wait is not None else _fill_columns(database, revision=revision)
        if wait is None:
            with database.write() as connection:
                forget_all_sums(connection)  # older processes store turns without adding them to the sums
        url = database.url.render_as_string(hide_password=True)
    if as_json:
        print_json({"database": url, "revision": revision, "filled": filled})
        return
    console.say(f"{url} is at {revision}")
    if filled:
        console.say(f"{counted(filled, 'decision')} of a former release got the columns of their facts")


def _fill_columns(database: Database, *, revision: str) -> int:
    """Fill the columns of QueriedFacts. Returns the number of filled decisions; 0 if the schema lacks the columns."""
    if revision < SCHEMA_REVISION or not count_unfilled(database):
        return 0
    with show_progress(errors) as progress:
        return fill(database, progress=partial(progress, "decisions"))


def _url_of_store(source: str) -> str:
    """The URL of a SQLite store, given by its URL, its file or its folder (`data_dir`)."""
    if "://" in source:
        return source
    return sqlite_url(source) if Path(source).is_dir() else f"sqlite:///{source}"


def _move(place: str, *, config: str | None, as_json: bool) -> None:
    settings, url = configuration.load(config).settings, _url_of_store(place)
    old = settings.model_copy(update={"database_url": url})
    file = sqlite_file(old)
    if file is None or not settings.database.startswith("postgresql"):
        remedy = "set DATABASE_URL=postgresql+psycopg://...; copy PostgreSQL with pg_dump, SQLite with `data backup`"
        raise InvalidInput("a store is moved from a file of SQLite to PostgreSQL", field="from", remedy=remedy)
    if not file.is_file():
        raise InvalidInput(f"there is no store at {file}", field="from", remedy="for example --from .ragbandit")
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock_store(old, at="ragbandit migrate --from") or contextlib.nullcontext())
        source = stack.enter_context(contextlib.closing(Database(url, make=False, read_only=True)))
        target = stack.enter_context(contextlib.closing(Database(settings.database)))
        rows = move(source, target, progress=partial(stack.enter_context(show_progress(errors)), "rows"))
        newest = Ledger(target, label=PolicyLabel(settings.policy.label)).latest_snapshots(limit=1)
    moved = {"rows": rows, "seconds": round(time.monotonic() - began, 1)}
    next_steps = ["with this DATABASE_URL: `ragbandit verify --deep`, then `ragbandit up`"]
    if newest and not SnapshotFiles(settings.snapshot_root).exists(newest[0].version):
        next_steps.insert(0, f"copy {file.parent / 'snapshots'} to {settings.snapshot_root}")
    show(moved | {"database": target.url.render_as_string(hide_password=True), "next": next_steps}, as_json=as_json)


def erase(
    decision: Annotated[str | None, typer.Option(help="the decision with this id")] = None,
    session: Annotated[str | None, typer.Option(help="the decisions of this conversation")] = None,
    tenant: Annotated[str | None, typer.Option(help="the decisions of this tenant")] = None,
    before: Annotated[str | None, typer.Option(help="made before a date (2026-08-01), a time, or an age (90d)")] = None,
    features: Annotated[bool, typer.Option("--features", help="also the features that policies learned from")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only count what would be erased")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="confirm: without this option nothing is erased")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Erase the texts of decisions: questions, answers, traces, labels. `data export --before` makes a copy.

    Probabilities, rewards, the order of the ledger and everything learned are kept. A decision that still waits for
    an outcome or feedback is closed. Repeat the call to finish an interrupted one. You have to erase backups yourself.
    """
    decision = None if decision is None else plain_decision_id(decision)
    with open_store(config, must_exist=False) as (_, ledger):
        now = DeadlineClock(ledger.database).for_deletion()
        limit = None if before is None else parse_time(before, now=now, field="before")
        selection = erasure.Selection(decision=decision, session=session, tenant=tenant, before=limit)
        if dry_run:
            erased = erasure.erasable(ledger.database, selection)
        elif not yes:
            message = "nothing was erased: erasing cannot be undone, so it must be confirmed"
            raise InvalidInput(message, field="yes", remedy="see with --dry-run what would be erased, then add --yes")
        else:
            with erasure_lease(ledger.database) as prolong, show_progress(errors) as progress:

                def report(done: int) -> None:
                    prolong()
                    progress("decisions", done, 0)

                erased = erasure.erase(
                    ledger.database, selection, features=features, actor=actor(), now=time.time(), progress=report
                )
    facts = {name: value for name, value in asdict(erased).items() if name != "may_repeat" or value}
    show({"erased": not dry_run, **facts}, as_json=as_json)


def backup(
    to: Annotated[Path, typer.Argument(metavar="FOLDER", help="a folder without a database")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the SQLite database and the snapshots to FOLDER, while services run. To restore, set data_dir to FOLDER.

    The copy contains questions, answers and hashes of keys, so protect it like the database. Indexes are not copied.
    """
    with open_store(config, must_exist=False) as (settings, ledger):
        root = settings.snapshot_root
        if not ledger.database.is_sqlite:
            remedy = f"use pg_dump, then copy the snapshots ({root}): docs/operations.md has the commands"
            raise InvalidInput("only SQLite is copied, but the store is on PostgreSQL", field="to", remedy=remedy)
        for folder in (to, to / "snapshots"):
            if folder.is_symlink():
                remedy = "name a new folder, or the folder that the link leads to"
                raise InvalidInput(f"{folder} is a link, and a backup follows no links", field="to", remedy=remedy)
        private_folder(to)
        file = to / "ragbandit.db"
        if file.exists():
            raise Conflict(f"{file} exists already", field="to", remedy="name a new folder for every backup")
        with atomic_file(file, durable=True, private=True) as temporary:
            ledger.database.copy_sqlite(temporary)
        result: dict[str, object] = {"backup": str(to), "bytes": file.stat().st_size}
        # The snapshots come after the database: one copied later could name snapshots that the copy lacks.
        if "://" not in root:
            result["snapshots"] = _copy_files(Path(root), to=to / "snapshots")
    show(result, as_json=as_json)


def _copy_files(source: Path, *, to: Path) -> int:
    """Copy the files of a folder, except files deleted meanwhile. Returns their number; 0 if there is no folder."""
    copied = 0
    for path in source.iterdir() if source.is_dir() else ():
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            write_file(to / path.name, path.read_bytes(), durable=True)
            copied += 1
    return copied


@contextlib.contextmanager
def erasure_lease(database: Database) -> Iterator[Callable[[], None]]:
    """Hold the lease of erasures. Yields a function that the block calls regularly to prolong it. Raises NotReady."""
    lease, holder = Lease(database=database, name="erase"), lease_holder("erase")

    def prolong() -> None:
        if not lease.acquire(holder=holder, lease_s=ERASE_LEASE_S):
            present = lease.last_holder()
            detail = f": {present.holder}, its lease ends in {max(0.0, present.left_s):.0f} s" if present else ""
            remedy = "wait until that process has ended, then run this again"
            raise NotReady(f"another process is erasing in this store{detail}", field="erase", remedy=remedy)

    prolong()
    try:
        yield prolong
    finally:
        lease.release(holder=holder)


#: maximum number of unusable rows whose faults are printed; all unusable rows are counted
MOST_NAMED = 20
_MEANINGS = {
    "added": "rows that are new in the ledger",
    "known": "rows that it had already, skipped",
    "bad": "rows that could not be used",
    "left_out": "fields of rows that the store has no column for",
}


def export(
    file: Annotated[
        Path, typer.Argument(help="file to write; its ending sets the format: .jsonl, .jsonl.gz or .parquet")
    ],
    *,
    since: Annotated[str | None, typer.Option(help="decided since a date, a time, or an age such as 7d")] = None,
    before: Annotated[str | None, typer.Option(help="decided before a date, a time, or an age such as 90d")] = None,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the decisions that a ledger learned to a log file, in the ledger's order. A failed export changes no file.

    Other decisions, answers, feedback, keys and sessions are left out: `migrate --from` moves a whole store.
    docs/replay.md lists the fields of each format.
    """
    log_format = logs.form_of_name(file)
    now = time.time()
    first = None if since is None else parse_time(since, now=now)
    end = None if before is None else parse_time(before, now=now, field="before")
    with open_store(config, label=label) as (_, ledger):
        count = logs.write_rows(file, _export_rows(ledger, since=first, before=end))
        counts = [select(func.count()).where(table.c.policy == ledger.label) for table in (waiting, closures)]
        with ledger.database.read() as connection:
            left_out = sum(connection.execute(query).scalar_one() for query in counts)
    result = {"rows": count, "left_out": left_out, "file": str(file), "format": log_format, "label": ledger.label}
    show(result | {"bytes": file.stat().st_size}, as_json=as_json)
    if left_out and not as_json:
        console.say(
            "left out: decisions that the ledger has not learned; `ragbandit migrate --from SQLITE_URL` moves all of a "
            "store"
        )


def _export_rows(ledger: Ledger, *, since: float | None, before: float | None) -> Iterator[logs.Logged]:
    last, count = ledger.last_seq(), 0
    with show_progress(errors) as progress:
        for row in ledger_rows(ledger, since=since, before=before, upto=last):
            count += 1
            if row.seq % 100 == 0 or row.seq == last:
                progress("rows", row.seq, last)
            yield row
    if not count:
        time_span = "" if since is None and before is None else " of that time"
        remedy = f"see: `ragbandit status --label {ledger.label}`"
        raise NotFound(f"the ledger {ledger.label!r} has no rows{time_span}", field="label", remedy=remedy)


def import_(
    file: Annotated[Path, typer.Argument(help="JSON Lines, a JSON list, CSV or Parquet: one decision a row")],
    *,
    label: Annotated[str, typer.Option(help="the ledger that the rows are added to")] = "imported",
    skip_bad: SkipBadOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add the rows of a log file to a ledger, in the file's order. Duplicates are skipped.

    docs/replay.md lists the fields of each format, and which of them are required. `migrate --from` moves a store.
    """
    if not re.fullmatch(r"[a-z0-9_]{1,40}", label):  # the pattern of the setting `policy.label`
        remedy = "use 1 to 40 of a-z, 0-9 and underscore"
        raise InvalidInput(f"{label!r} is not a valid name of a ledger", field="label", remedy=remedy)
    with rereadable(file) as readable, open_store(config, label=label, make=True) as (settings, ledger):
        reading = _ImportedFile(file=readable, reward=settings.reward, skip_bad=skip_bad)
        try:
            with show_progress(errors) as progress:
                import_rows(
                    ledger,
                    reading.rows,
                    origin=logs.form_of(readable),
                    source=str(file),
                    lease_s=settings.learning.lease_s,
                    progress=partial(reading.show, progress),
                )
        except RagBanditError as error:
            added = reading.counts.added
            so_far = f"added {counted(added, 'row')}; the same file adds the rest" if added else "nothing was imported"
            remedy = f"{error.remedy}; {so_far}" if error.remedy else so_far
            raise type(error)(error.message, field=error.field, remedy=remedy) from error
        for bad in reading.bad[:MOST_NAMED]:
            errors.say(f"left out: {file}:{bad.line} {bad.field} {bad.reason} ({bad.remedy})")
        last_seq = ledger.last_seq()
    counts, left_out = {**asdict(reading.counts), "bad": len(reading.bad)}, sorted(reading.left_out)
    if as_json:
        print_json({**counts, "left_out": left_out, "label": label, "last_seq": last_seq})
    else:
        facts = counts_in_words({**counts, "left_out": len(left_out)}, meanings=_MEANINGS)
        show(facts | {"label": label, "last update": last_seq}, as_json=False)
        if left_out:
            console.say(f"fields left out: {', '.join(left_out)}")
        where = "" if config is None else f" --config {config}"
        if label != settings.policy.label:
            console.say(f"the ledger {settings.policy.label!r} of the service does not learn these rows")
        console.say(f"next: `ragbandit replay --label {label}{where}`, or `ragbandit status --label {label}{where}`")


@dataclass(kw_only=True)
class _ImportedFile:
    file: Path
    reward: RewardSettings
    skip_bad: bool
    bad: list[logs.BadRow] = field(default_factory=list)
    #: keys of rows for which the store has no column
    left_out: set[str] = field(default_factory=set)
    counts: ImportCounts = field(default_factory=ImportCounts)

    def rows(self) -> Iterator[logs.Logged]:
        """Yield the usable rows. At the end, raises InvalidInput if there are unusable rows, unless `skip_bad`."""
        entries = read_rows(self.file, defaults=self.reward)
        for row in logs.usable_rows(entries, path=self.file, skip=self.skip_bad, bad=self.bad):
            self.left_out.update(row.extra)
            yield row

    def show(self, progress: Callable[[str, int, int], None], counts: ImportCounts) -> None:
        """Show the progress without a total: the number of rows is only known at the end of the file."""
        self.counts = counts
        progress("rows", counts.added + counts.known, 0)
