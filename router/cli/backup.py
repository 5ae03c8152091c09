"""Verbs `backup` and `restore`: the whole store as one folder, taken while everything runs, and put back."""

import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer

import ragbandit
from ragbandit.router.cli.access import actor
from ragbandit.router.cli.console import ConfigOption, JsonOption, bars, errors
from ragbandit.router.cli.data import alone
from ragbandit.router.cli.facts import show
from ragbandit.router.cli.store import registered_policy
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.audit.verdict import Verdict
from ragbandit.router.learning.audit.verify import verify
from ragbandit.router.learning.checkpoints import Checkpoints
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.retention.manifest import Manifest
from ragbandit.router.retention.restoring import check_backup, restore_backup
from ragbandit.router.retention.taking import take_backup
from ragbandit.router.serving.setup.bootstrap import ledger_of
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.waiting import labels_in_use
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.formats import moment
from ragbandit.shared.types import PolicyLabel

#: the archive's lease is prolonged that often, seconds
PROLONG_S = 30.0


def backup(
    to: Annotated[str, typer.Argument(metavar="FOLDER|URL", help="a folder that is not there, or an fsspec URL")],
    without_indexes: Annotated[
        bool, typer.Option("--without-indexes", help="leave the indexes out: `index build` makes them again")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy database, snapshots, checkpoints, archive and indexes to a folder while everything runs.

    It holds questions, answers and hashes of keys: keep it as you keep the database. docs/backup.md says more.
    Note `manifest_sha256` in another place: `restore --expect` refuses a backup that was changed.
    """
    began = time.monotonic()
    loaded = configuration.load(config)
    settings = loaded.settings
    with (
        ledger_of(settings, label=settings.policy.label) as ledger,
        alone(ledger.database) as prolong,
        bars(errors) as progress,
    ):
        prolonged = time.monotonic()

        def report(what: str, done: int, total: int) -> None:
            nonlocal prolonged
            if time.monotonic() - prolonged > PROLONG_S:
                prolong()
                prolonged = time.monotonic()
            progress(what, done, total)

        manifest = take_backup(
            settings,
            database=ledger.database,
            to=to,
            config=configuration.effective(loaded),
            version=ragbandit.__version__,
            now=time.time(),
            with_indexes=not without_indexes,
            progress=report,
        )
    facts = {"backup": to, **_facts(manifest), "seconds": round(time.monotonic() - began, 2)}
    show(facts | {"manifest_sha256": sha256(manifest.packed()).hexdigest()}, as_json=as_json)


def restore(
    source: Annotated[str, typer.Argument(metavar="FOLDER|URL", help="what `ragbandit data backup` wrote")],
    to: Annotated[
        str | None, typer.Option("--to", help="the new data_dir; default: that of the configuration, if it is empty")
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="SHA256", help="the manifest_sha256 that `backup` printed; refuse any other"),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="end with `verify --deep` instead of `verify --whole`")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a backup, put it into an empty place, migrate it and verify it; exit code 1 on any difference.

    The database is the configured one: SQLite in the new data_dir, or what DATABASE_URL names. Either takes any backup.
    Without --expect restore only what you trust like the database: whoever can write a backup can make it pass.
    """
    began = time.monotonic()
    if expect is not None and not re.fullmatch("[0-9a-fA-F]{64}", expect):
        raise InvalidInput("64 hexadecimal digits are needed", field="expect", remedy="copy what `backup` printed")
    settings = _into(configuration.load(config).settings, to)
    with bars(errors) as progress:
        manifest = check_backup(source, progress=progress, expect=expect)
        restore_backup(
            source,
            settings=settings,
            manifest=manifest,
            actor=actor(),
            now=time.time(),
            progress=progress,
        )
        verdicts = dict(_verdicts(settings, deep=deep))
    ok = all(verdict.ok for verdict in verdicts.values())
    database = Database(settings.database)
    shown = database.url.render_as_string(hide_password=True)
    database.close()
    facts = {"data_dir": settings.data_dir, "database": shown, **_facts(manifest)}
    facts |= {"seconds": round(time.monotonic() - began, 2), "ok": ok}
    line = (lambda one: asdict(one) | {"ok": one.ok}) if as_json else _verified
    facts |= {f"verify {label}": line(verdict) for label, verdict in verdicts.items()}
    show(facts, as_json=as_json)
    if not ok:
        raise typer.Exit(1)


def _verified(verdict: Verdict) -> str:
    """What `verify` found, in a line, with every count that should be 0 and is not."""
    facts = asdict(verdict)
    wrong = [f"{key} {facts[key]}" for key in facts if (key.endswith("_mismatches") or key == "refused") and facts[key]]
    counts = f"{verdict.decisions:,} decisions, {verdict.updates:,} updates"
    return f"ok: {counts}" if verdict.ok else f"differs ({', '.join([*wrong, *verdict.notes])}): {counts}"


def _into(settings: Settings, to: str | None) -> Settings:
    """The settings with another data_dir."""
    if to is None:
        return settings
    if "://" in to:
        raise ConfigError(
            "--to names the folder of the new data_dir, not a URL",
            field="to",
            remedy="set DATABASE_URL for the database, and the settings snapshots, checkpoints and archive for files",
        )
    return settings.model_copy(update={"data_dir": str(Path(to))})


def _facts(manifest: Manifest) -> dict[str, object]:
    taken = moment(manifest.taken_at)
    return {
        "taken_at": taken,
        "taken_of": manifest.database,
        "schema": manifest.revision,
        "decisions": manifest.rows.get("decisions", 0),
        "files": len(manifest.files),
        "bytes": manifest.bytes,
        "left_out": list(manifest.left_out),
    }


def _verdicts(settings: Settings, *, deep: bool) -> Iterator[tuple[str, Verdict]]:
    """What `verify` says of every ledger that is in use."""
    with ledger_of(settings, label=settings.policy.label) as first:
        with first.database.read() as connection:
            labels = sorted(labels_in_use(connection, label=settings.policy.label))
        for label in labels:
            ledger = Ledger(first.database, label=PolicyLabel(label))
            files = SnapshotFiles(settings.snapshot_root)
            checkpoints = Checkpoints(ledger, files=SnapshotFiles(settings.checkpoint_root))
            serving = registered_policy(ledger)
            yield label, verify(ledger, files=files, serving=serving, checkpoints=checkpoints, whole=True, deep=deep)
