"""Verb `archive`: old decisions move from the database into sealed Parquet segments."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ragbandit.router.cli.console import ConfigOption, JsonOption, errors, failing_well, show
from ragbandit.router.errors import NotReady
from ragbandit.router.process_identity import lease_holder

if TYPE_CHECKING:
    from ragbandit.router.storage.sql.database import Database

__all__ = ["add_archive", "alone"]

#: A process of another host that died while it archived lets this one begin after that long. No transaction of it
#: takes longer.
LEASE_S = 300.0


def add_archive(app: typer.Typer) -> None:
    """Put the verb on the command."""
    app.command(name="archive")(_archive)


def _archive(
    before: Annotated[str, typer.Option(help="decisions made before: a date (2026-08-01), a time, or an age (90d)")],
    config: ConfigOption = None,
    to: Annotated[str | None, typer.Option(help="a path or an fsspec URL; default: the setting archive")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only count what would move")] = False,
    as_json: JsonOption = False,
) -> None:
    """Move old decisions, with all that is known about them, from the database into sealed Parquet files.

    Those move that every ledger has learned or closed. verify, replay, export and the learner read them there.
    """
    from ragbandit.router.cli.arguments import parse_time
    from ragbandit.router.cli.progress import bars
    from ragbandit.router.config import loading as configuration
    from ragbandit.router.serving.setup.bootstrap import ledger_of
    from ragbandit.router.storage.archive.moving import archivable, archive

    with failing_well():
        settings = configuration.load(config).settings
        limit = parse_time(before, now=time.time(), field="before")
        with ledger_of(settings, label=settings.policy.label) as ledger:
            count = archivable(ledger.database, before=limit)
            facts = {"before": datetime.fromtimestamp(limit, UTC).isoformat(timespec="seconds"), "archivable": count}
            if not dry_run:
                root = to or settings.archive_root
                with alone(ledger.database) as prolong, bars(errors) as progress:

                    def report(done: int) -> None:
                        prolong()
                        progress("decisions", done, max(done, count))

                    moved = archive(ledger.database, root=root, before=limit, now=time.time(), progress=report)
                facts |= {"archive": root, **asdict(moved)}
        show(facts, as_json=as_json)


@contextlib.contextmanager
def alone(database: "Database") -> Iterator[Callable[[], None]]:
    """Hold the lease of the archive; the block calls what it is given now and then, which prolongs it.

    Raises NotReady where another process archives.
    """
    from ragbandit.router.storage.sql.leases import Lease

    lease = Lease(database=database, name="archive")
    holder = lease_holder("archive")

    def prolong() -> None:
        if not lease.acquire(holder=holder, lease_s=LEASE_S):
            held = lease.held()
            who = "" if held is None else f": {held.holder}, for {max(0.0, held.left_s):.0f} s unless it goes on"
            raise NotReady(
                f"another process archives, erases or backs up this store{who}",
                field="archive",
                remedy="wait until it has ended, then run this again",
            )

    prolong()
    try:
        yield prolong
    finally:
        lease.release(holder=holder)
