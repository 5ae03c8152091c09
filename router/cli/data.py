"""Verbs that move, copy or blank what is stored: migrate, backup, erase."""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from ragbandit.router import erasure
from ragbandit.router.cli.arguments import parse_time
from ragbandit.router.cli.console import ConfigOption, JsonOption, bars, console, errors, print_json
from ragbandit.router.cli.facts import show
from ragbandit.router.cli.store import opened
from ragbandit.router.config import loading as configuration
from ragbandit.router.serving.setup.requirements import check_database_file
from ragbandit.router.storage.sql import database as databases
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.shared.child_process import lease_holder
from ragbandit.shared.errors import Conflict, InvalidInput, NotReady
from ragbandit.shared.files import private_folder, whole_file, write_file

#: A process of another host that died while it erased lets the next one begin after that long. No transaction of it
#: takes longer.
ERASE_LEASE_S: Final = 300.0

PreOption = Annotated[
    bool, typer.Option("--pre", help="Only what the processes of the release before survive: before a rolling upgrade.")
]
WaitOption = Annotated[
    float | None,
    typer.Option(min=0, help="Change nothing: wait so many seconds until somebody else has brought it there."),
]


def migrate(
    config: ConfigOption = None,
    pre: PreOption = False,
    wait: WaitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the database to this version's schema."""
    settings = configuration.load(config).settings
    check_database_file(settings, make=True)
    with contextlib.closing(databases.Database(settings.database)) as database:
        revision = (
            databases.migrate(database, pre=pre, data_dir=settings.data_dir)
            if wait is None
            else databases.wait_for_schema(database, seconds=wait)
        )
        url = database.url.render_as_string(hide_password=True)
    if as_json:
        print_json({"database": url, "revision": revision})
    else:
        console.print(f"{url} is at {revision}", soft_wrap=True)


def erase(
    decision: Annotated[str | None, typer.Option(help="the decision with this id")] = None,
    tenant: Annotated[str | None, typer.Option(help="the decisions of this tenant")] = None,
    before: Annotated[
        str | None, typer.Option(help="made before: a date (2026-08-01), a time, or an age (90d)")
    ] = None,
    features: Annotated[bool, typer.Option("--features", help="also the features that policies learned from")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only count what would be erased")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="erase; without it nothing is done")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Blank the texts of decisions: questions, answers, traces, labels. `data export --before` keeps a copy.

    Probabilities, rewards and the order of the ledger stay, and so does what was learned. A decision that still waits
    is closed. The same call again goes on with one that was interrupted. Backups are yours to erase.
    """
    limit = None if before is None else parse_time(before, now=time.time(), field="before")
    selection = erasure.Selection(decision=decision, tenant=tenant, before=limit)
    with opened(config, registered=False) as (_, ledger):
        if dry_run:
            erased = erasure.erasable(ledger.database, selection)
        elif not yes:
            raise InvalidInput(
                "nothing was erased: erasing cannot be undone, so it must be confirmed",
                field="yes",
                remedy="see with --dry-run what would be erased, then add --yes",
            )
        else:
            with alone(ledger.database) as prolong, bars(errors) as progress:

                def report(done: int) -> None:
                    prolong()
                    progress("decisions", done, done)

                erased = erasure.erase(ledger.database, selection, features=features, now=time.time(), progress=report)
    show({"erased": not dry_run, **asdict(erased)}, as_json=as_json)


def backup(
    to: Annotated[Path, typer.Argument(metavar="FOLDER", help="a folder without a database")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the SQLite database and the snapshots to a folder, while everything runs. Open it as data_dir to restore it.

    It holds questions, answers and hashes of keys: keep it as you keep the database. Indexes are not copied.
    """
    with opened(config, registered=False) as (settings, ledger):
        source, root = ledger.database.url, settings.snapshot_root
        if not ledger.database.is_sqlite:
            remedy = f"use pg_dump, then copy the snapshots ({root}): docs/operations.md has the commands"
            raise InvalidInput("this verb copies SQLite, and the store is on PostgreSQL", field="to", remedy=remedy)
        private_folder(to)
        file = to / "ragbandit.db"
        if file.exists():
            raise Conflict(f"{file} is there already", field="to", remedy="name another folder for every backup")
        with (
            whole_file(file, durable=True, private=True) as beside,
            contextlib.closing(sqlite3.connect(str(source.database))) as connection,
        ):
            connection.execute("VACUUM INTO ?", (str(beside),))
        facts: dict[str, object] = {"backup": str(to), "bytes": file.stat().st_size}
        # After the database, which names only what is there by then; what the learner deletes meanwhile is left out.
        if "://" not in root:
            facts["snapshots"] = _copy_files(Path(root), to=to / "snapshots")
    show(facts, as_json=as_json)


def _copy_files(source: Path, *, to: Path) -> int:
    """Copy the files of a folder that are still there when it is their turn; their number."""
    copied = 0
    for path in source.iterdir():
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            write_file(to / path.name, path.read_bytes(), durable=True)
            copied += 1
    return copied


@contextlib.contextmanager
def alone(database: databases.Database) -> Iterator[Callable[[], None]]:
    """Hold the lease of erasures; the block calls what it is given now and then, which prolongs it.

    Raises NotReady where another process erases.
    """
    lease = Lease(database=database, name="erase")
    holder = lease_holder("erase")

    def prolong() -> None:
        if not lease.acquire(holder=holder, lease_s=ERASE_LEASE_S):
            held = lease.held()
            who = "" if held is None else f": {held.holder}, for {max(0.0, held.left_s):.0f} s unless it goes on"
            raise NotReady(
                f"another process erases in this store{who}",
                field="erase",
                remedy="wait until it has ended, then run this again",
            )

    prolong()
    try:
        yield prolong
    finally:
        lease.release(holder=holder)
