"""Verbs on what is stored: `keys`, `audit`, `migrate`, `data erase` and `data backup`."""

import contextlib
import getpass
import json
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml
from rich.markup import escape

from ragbandit.router import erasure
from ragbandit.router.cli.console import ConfigOption, JsonOption, bars, console, errors, print_json, show, show_rows
from ragbandit.router.cli.store import is_age, opened, parse_time
from ragbandit.router.config import loading as configuration
from ragbandit.router.serving.setup.requirements import check_database_file
from ragbandit.router.storage.access.api_keys import ApiKey, KeyStore, NewKey
from ragbandit.router.storage.access.audit_log import check_entries, entries
from ragbandit.router.storage.sql import database as databases
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.shared.child_process import lease_holder
from ragbandit.shared.errors import Conflict, InvalidInput, NotReady
from ragbandit.shared.files import private_folder, whole_file, write_file

_IdArgument = Annotated[str, typer.Argument(metavar="ID", help="the public id of the key")]


def actor() -> str:
    """Who runs this command, for the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "unknown"
    return f"cli:{user}@{socket.gethostname()}"


def create_key(
    name: Annotated[str, typer.Option(help="what the key is for; 1 to 64 characters")],
    role: Annotated[str, typer.Option(help="reader, app, rater, worker, operator or admin")],
    tenant: Annotated[str | None, typer.Option(help="it sees and judges this tenant's decisions alone")] = None,
    expires: Annotated[str | None, typer.Option(help="when it ends: a date, a time, or from now on (90d)")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=VALUE: arms=[a,b], forced=false, rate=600/minute, cost_weight=economy, cost_weights=[0.01,0.2] "
            "or dollars_per_day=5; repeat it"
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key. It is printed here, once: the store keeps the sha256 of its secret only."""
    with _key_store(config) as store:
        now = time.time()
        ends = None if expires is None else _end(expires, now=now)
        new = store.create(
            name=name, role=role, tenant=tenant, scopes=_scopes(scope or ()), expires_at=ends, actor=actor(), now=now
        )
        _show_new(new, as_json=as_json)


def list_keys(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List all keys: what they may do, until when, and when they were last used."""
    with _key_store(config) as store:
        keys, now = store.listed(), time.time()
    if as_json:
        print_json([_facts(key, now=now) for key in keys])
        return
    titles = ("id", "name", "role", "tenant", "state", "expires", "last used", "scopes")
    show_rows(titles, (_cells(key, now=now) for key in keys), none="no key yet (ragbandit keys create --help)")


def _cells(key: ApiKey, *, now: float) -> list[str]:
    scopes = ", ".join(f"{name}={value}" for name, value in key.scopes.items())
    cells = [key.public_id, key.name, key.role, key.tenant or "every", key.state(now), _day(key.expires_at)]
    return [*cells, _day(key.last_used_at), scopes]


def rotate_key(
    key: _IdArgument,
    grace: Annotated[str, typer.Option(help="how long the former key stays valid: 0h, 30m, 24h, 7d")] = "24h",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key that takes the place of another; both are valid while the grace lasts."""
    with _key_store(config) as store:
        now = time.time()
        new = store.rotate(_public_id(key), grace_s=_seconds(grace, now=now), actor=actor(), now=now)
        _show_new(new, as_json=as_json)


def revoke_key(key: _IdArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """End a key: services refuse it within a second."""
    with _key_store(config) as store:
        revoked = store.revoke(_public_id(key), actor=actor(), now=time.time())
        if as_json:
            print_json(_facts(revoked, now=time.time()))
        else:
            console.print(f"revoked: {escape(revoked.name)} ({revoked.public_id})", highlight=False)


@contextmanager
def _key_store(config: str | None) -> Iterator[KeyStore]:
    with opened(config, make=True) as (_, ledger):
        yield KeyStore(ledger.database)


def _show_new(new: NewKey, *, as_json: bool) -> None:
    if as_json:
        print_json({"key": new.text, **_facts(new.key, now=new.key.made_at)})
        return
    console.print(new.text, soft_wrap=True, highlight=False, markup=False)
    whose = f" of the tenant {new.key.tenant}" if new.key.tenant else ""
    note = f"{new.key.role}{whose}, expires: {_day(new.key.expires_at)}. The key is not shown again: keep it now."
    errors.print(escape(note), soft_wrap=True, highlight=False)


def _facts(key: ApiKey, *, now: float) -> dict[str, Any]:
    return {**asdict(key), "scopes": dict(key.scopes), "state": key.state(now)}


def _day(at: float | None) -> str:
    return "never" if at is None else datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d %H:%M")


def _public_id(text: str) -> str:
    """The public id in what was given: it alone, or with rb_ before it. A whole key is no argument: it would be in the
    shell's history.
    """
    bare = text.removeprefix("rb_")
    if "_" in bare:
        remedy = "give the part between rb_ and the secret; and rotate that key, for the shell has noted it"
        raise InvalidInput("this is a whole key", field="key", remedy=remedy)
    return bare


def _seconds(text: str, *, now: float) -> float:
    if not is_age(text):
        raise InvalidInput(f"{text!r:.40} is no time span", field="grace", remedy="for example 30m, 24h or 7d")
    return now - parse_time(text, now=now, field="grace")


def _end(text: str, *, now: float) -> float:
    at = parse_time(text, now=now, field="expires")
    return 2 * now - at if is_age(text) else at


def _scopes(given: Sequence[str]) -> dict[str, object]:
    scopes: dict[str, object] = {}
    for each in given:
        name, equals, text = each.partition("=")
        try:
            scopes[name.strip()] = yaml.safe_load(text)
        except yaml.YAMLError:
            equals = ""
        if not equals:
            raise InvalidInput(f"{each!r:.80} is not NAME=VALUE", field="scopes", remedy="for example arms=[a,b]")
    return scopes


def audit(
    known: Annotated[
        str | None, typer.Option("--known", help="NUMBER:SHA256 that a former check printed: that entry must be there")
    ] = None,
    export: Annotated[
        bool, typer.Option("--export", help="print the entries as JSON lines instead, the oldest first")
    ] = False,
    after: Annotated[int, typer.Option(help="of --export: only entries with a larger number")] = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that no entry of the audit log was changed or removed; exit code 1 if one was.

    Keep the last number and sha256 elsewhere, or the entries in a system that keeps them (--export).
    """
    with opened(config, registered=False) as (_, ledger):
        if export:
            for entry in entries(ledger.database, after=after):
                sys.stdout.write(json.dumps(asdict(entry)) + "\n")
            return
        verdict = check_entries(ledger.database, known=_entry(known))
        show({"whole": verdict.fault is None, **asdict(verdict)}, as_json=as_json)
    if verdict.fault is not None:
        raise typer.Exit(1)


def _entry(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    number, _, sha256 = text.partition(":")
    if not number.isdecimal() or len(sha256) != 64:
        raise InvalidInput(f"{text!r:.80} is not NUMBER:SHA256", field="known", remedy="as `audit` printed it")
    return int(number), sha256


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
