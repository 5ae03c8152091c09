"""Restoring a backup into an empty place: everything is checked first, the database comes last.

The files are put where the settings say that snapshots, checkpoints, archive and indexes lie. The database is written
in one step: a SQLite file that is renamed when it is whole, or one transaction of PostgreSQL. What only held for the
processes of before is taken out of it: leases, and transaction numbers of the former server.

A backup may be changed while it is restored: every copy is compared with the manifest again. Files are created anew and
replace nothing, and a failure takes away no file that was not created here.
"""

import os
import tempfile
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, delete, inspect, make_url, update

from ragbandit.router.config.settings import Settings
from ragbandit.router.retention.database_copy import fill_database
from ragbandit.router.retention.manifest import DATABASE_FILE, INDEXES, BackupFile, Manifest, check_files, read_manifest
from ragbandit.router.retention.places import Place, Progress, copy_file
from ragbandit.router.retention.taking import index_root
from ragbandit.router.serving.setup.data_dir import RESTORING
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.sql.database import Database, migrate
from ragbandit.router.storage.sql.tables import (
    SCHEMA_REVISION,
    archive_segments,
    leases,
    metadata,
    policies,
)
from ragbandit.shared.errors import Conflict, InvalidInput, StoreError
from ragbandit.shared.files.atomic import private_folder, write_file

#: of the audit log
ACTION: Final = "store.restore"


def check_backup(source: str, *, progress: Progress, expect: str | None = None) -> Manifest:
    """The manifest of a backup whose every file is as it was taken.

    expect: sha256 of the manifest's file; nothing else is read of a backup with another one.
    Raises NotFound, InvalidInput, and StoreError naming what is damaged.
    """
    place = Place(source)
    manifest = read_manifest(place, expect=expect)
    if manifest.revision > SCHEMA_REVISION:
        raise InvalidInput(
            f"this backup has schema {manifest.revision}, this version knows up to {SCHEMA_REVISION}",
            field="backup",
            remedy=f"restore it with ragbandit {manifest.version}, which took it, or a newer one",
        )
    check_files(place, manifest, progress=progress)
    return manifest


def restore_backup(
    source: str, *, settings: Settings, manifest: Manifest, actor: str, now: float, progress: Progress
) -> None:
    """Put a backup that `check_backup` has passed into the empty place of these settings.

    now: seconds since the epoch. actor: for the audit log. Raises Conflict where something is there already,
    StoreError, OSError. What was copied before a failure is taken away again.
    """
    roots = {
        "snapshots": settings.snapshot_root,
        "checkpoints": settings.checkpoint_root,
        "archive": settings.archive_root,
        INDEXES: index_root(settings),
    }
    _refuse_full(settings, roots)
    private_folder(Path(settings.data_dir))
    place, targets = Place(source), {folder: Place(root) for folder, root in roots.items()}
    unfinished = Path(settings.data_dir, RESTORING)
    write_file(unfinished, f"restore of {source}\n".encode("utf-8", "replace"), durable=True)
    try:
        for folder, target in targets.items():
            files = manifest.below(folder)
            for done, file in enumerate(files, start=1):
                _copy(place, file, to=target, name=file.name.removeprefix(f"{folder}/"))
                progress(folder, done, len(files))
        settle = partial(_settle, settings=settings, manifest=manifest, source=source, actor=actor, now=now)
        _put_database(place, settings=settings, manifest=manifest, settle=settle, progress=progress)
    except BaseException:
        for target in reversed(targets.values()):  # checkpoints may lie in the folder of snapshots
            target.remove_created()
        raise
    finally:  # one that is killed leaves it
        unfinished.unlink(missing_ok=True)


def _copy(place: Place, file: BackupFile, *, to: Place, name: str) -> None:
    """Copy a file of the backup to a new one. Raises StoreError where it is not the one that the manifest describes."""
    if copy_file(place, file.name, to=to, target=name) != (file.bytes, file.sha256):
        raise StoreError(f"{file.name} has changed since it was checked", field="backup")


def _refuse_full(settings: Settings, roots: Mapping[str, str]) -> None:
    """Raise Conflict where what is to be restored would meet what is there."""
    for field, root in roots.items():
        if Place(root).names():
            raise _full(f"{root} is not empty", field="data_dir" if field == INDEXES else field)
    url = make_url(settings.database)
    if url.get_backend_name() == "sqlite":
        file = Path(str(url.database))
        if any(file.with_name(f"{file.name}{end}").exists() for end in ("", "-wal", "-journal")):
            raise _full(f"there is a database at {file}", field="data_dir")
        return
    database = Database(settings.database)
    try:
        with database.read() as connection:
            there = sorted(set(inspect(connection).get_table_names()) & {*metadata.tables, "alembic_version"})
    finally:
        database.close()
    if there:
        raise _full(f"the database has tables already: {', '.join(there[:3])}, ...", field="database_url")


def _full(message: str, *, field: str) -> Conflict:
    return Conflict(
        f"{message}; a backup is restored into an empty place, and nothing was changed",
        field=field,
        remedy="name a new folder with --to (and a new database in DATABASE_URL), then point the service at it",
    )


def _put_database(
    place: Place,
    *,
    settings: Settings,
    manifest: Manifest,
    settle: Callable[[Connection], None],
    progress: Progress,
) -> None:
    source = next(file for file in manifest.files if file.name == DATABASE_FILE)
    url = make_url(settings.database)
    if url.get_backend_name() == "sqlite":
        _put_sqlite(place, source, target=Path(str(url.database)), settle=settle, progress=progress)
        return
    database = Database(settings.database)
    try:
        with tempfile.TemporaryDirectory(prefix=".new-", dir=settings.data_dir) as scratch:
            _copy(place, source, to=Place(scratch), name=DATABASE_FILE)
            with database.write() as connection:
                fill_database(
                    Path(scratch, DATABASE_FILE),
                    connection=connection,
                    revision=manifest.revision,
                    progress=progress,
                    totals=lambda table: manifest.rows.get(table, 0),
                )
                settle(connection)
    finally:
        database.close()


def _put_sqlite(
    place: Place, source: BackupFile, *, target: Path, settle: Callable[[Connection], None], progress: Progress
) -> None:
    """Migrate the file beside its place, and rename it when it is whole."""
    private_folder(target.parent)
    beside = target.with_name(f".new-{uuid.uuid4().hex}.db")
    try:
        _copy(place, source, to=Place(str(beside.parent)), name=beside.name)
        database = Database(f"sqlite:///{beside}")
        try:
            progress("migration", 0, 1)
            migrate(database)
            with database.write() as connection:
                settle(connection)
            progress("migration", 1, 1)
        finally:
            database.close()
        # A database that somebody made here meanwhile is not replaced.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        beside.replace(target)
    finally:
        for end in ("", "-wal", "-shm"):
            beside.with_name(f"{beside.name}{end}").unlink(missing_ok=True)


def _settle(
    connection: Connection, *, settings: Settings, manifest: Manifest, source: str, actor: str, now: float
) -> None:
    """Take out what held for the processes and the places of before, and note in the audit log what was restored."""
    connection.execute(delete(leases))
    connection.execute(update(policies).values(inherit_after=None))
    connection.execute(update(archive_segments).values(root=settings.archive_root))
    facts = {"taken_at": manifest.taken_at, "version": manifest.version, "revision": manifest.revision}
    record(connection, actor=actor, action=ACTION, target=source[-128:], facts=facts, now=now)
