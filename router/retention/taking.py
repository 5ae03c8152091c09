"""Taking a backup: one state of the database, and the files that it names, while everything runs.

The database comes first, since what it names is written before it: a snapshot, a checkpoint, a segment of the archive.
Snapshots that the learner deletes meanwhile are left out; they are a cache of the ledger. The caller holds the lease of
the archive, so that no segment is written anew or deleted before it is copied. The manifest comes last.
"""

import contextlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sqlalchemy import create_engine, select

from ragbandit.router.config.settings import Settings
from ragbandit.router.retention.database_copy import copy_database, count_rows
from ragbandit.router.retention.manifest import CONFIG_FILE, DATABASE_FILE, INDEXES, MANIFEST_FILE, BackupFile, Manifest
from ragbandit.router.retention.places import Place, Progress, copy_file, sha256_of
from ragbandit.router.storage.archive.reading import segments
from ragbandit.router.storage.archive.segments import Segment, segment_files
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import checkpoints, snapshots
from ragbandit.shared.errors import Conflict, StoreError
from ragbandit.shared.files.atomic import whole_folder

#: an index that is replaced while it is copied is copied again so often
TRIES: Final = 3
#: retriever -> where its index lies that is not in data_dir
_SERVERS: Final = {"elasticsearch": "Elasticsearch", "pgvector": "PostgreSQL", "qdrant": "Qdrant"}


@dataclass(kw_only=True, slots=True)
class _Taking:
    """A backup that is being filled."""

    place: Place
    progress: Progress
    files: list[BackupFile] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def copy(self, source: Place, name: str, *, target: str) -> None:
        size, sha256 = copy_file(source, name, to=self.place, target=target)
        self.files.append(BackupFile(name=target, bytes=size, sha256=sha256))

    def add(self, name: str) -> None:
        """A file that is there already."""
        size, sha256 = sha256_of(self.place, name)
        self.files.append(BackupFile(name=name, bytes=size, sha256=sha256))

    def forget(self, folder: str) -> None:
        """Take away what was copied into a folder."""
        for file in [file for file in self.files if file.name.startswith(f"{folder}/")]:
            self.files.remove(file)
            self.place.remove(file.name)


def index_root(settings: Settings) -> str:
    """The folder of the indexes of these settings."""
    return str(Path(settings.data_dir).absolute() / INDEXES)


def take_backup(
    settings: Settings,
    *,
    database: Database,
    to: str,
    config: Sequence[tuple[str, object, str]],
    version: str,
    now: float,
    with_indexes: bool,
    progress: Progress,
) -> Manifest:
    """Copy the store of these settings to a folder or an fsspec URL that is empty or not there.

    config: (key, value, source) of every setting, without secrets. version: of ragbandit. now: seconds since 1970.
    Raises Conflict where the place is not empty, StoreError, OSError; then nothing is left that looks like a backup.
    """
    if Place(to).names():
        raise Conflict(
            f"{to} is not empty", field="to", remedy="name a folder that does not exist: every backup has its own"
        )
    with _work(to) as (place, scratch):
        taking = _Taking(place=place, progress=progress)
        file = scratch / DATABASE_FILE
        revision = copy_database(database, file=file, progress=progress)
        rows = count_rows(file)
        if place.remote:
            taking.copy(Place(str(scratch)), DATABASE_FILE, target=DATABASE_FILE)
        else:
            taking.add(DATABASE_FILE)
        _copy_named(taking, file, settings=settings)
        if with_indexes:
            _copy_indexes(taking, settings=settings)
        else:
            taking.left_out.append("indexes: asked for; `ragbandit index build` makes them again")
        place.put(CONFIG_FILE, json.dumps([list(row) for row in config], indent=1, ensure_ascii=False).encode())
        taking.add(CONFIG_FILE)
        manifest = Manifest(
            taken_at=now,
            version=version,
            revision=revision,
            database="sqlite" if database.is_sqlite else "postgresql",
            rows=rows,
            files=tuple(taking.files),
            left_out=tuple(taking.left_out),
        )
        place.put(MANIFEST_FILE, manifest.packed())
    return manifest


@contextlib.contextmanager
def _work(to: str) -> Iterator[tuple[Place, Path]]:
    """Where the files go while the backup is made, and a folder of this machine for its database."""
    place = Place(to)
    if not place.remote:
        with whole_folder(Path(place.root).absolute()) as work:
            yield Place(str(work)), work
        return
    scratch = Path(tempfile.mkdtemp(prefix="ragbandit-backup-"))
    try:
        yield place, scratch
    except BaseException:
        place.remove_created()
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _copy_named(taking: _Taking, file: Path, *, settings: Settings) -> None:
    """Copy the snapshots, checkpoints and segments that the copied database names."""
    # Not by Database, which would give the file a journal of its own.
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    )
    with engine.connect() as connection:
        versions = set(connection.execute(select(snapshots.c.version)).scalars())
        checked = set(connection.execute(select(checkpoints.c.version)).scalars())
        sealed = segments(connection)
    engine.dispose()
    _copy_pairs(taking, versions, root=settings.snapshot_root, folder="snapshots")
    _copy_pairs(taking, checked, root=settings.checkpoint_root, folder="checkpoints")
    _copy_archive(taking, sealed)


def _copy_pairs(taking: _Taking, versions: set[str], *, root: str, folder: str) -> None:
    """Both files of every version that is there; one that is deleted meanwhile is left out."""
    source = Place(root, follow_links=True)
    there = set(source.names())
    complete = sorted(v for v in versions if {f"{v}.safetensors", f"{v}.json"} <= there)
    for done, version in enumerate(complete, start=1):
        names = [f"{version}.safetensors", f"{version}.json"]
        try:
            for name in names:
                taking.copy(source, name, target=f"{folder}/{name}")
        except FileNotFoundError:
            for name in names:
                taking.files[:] = [file for file in taking.files if file.name != f"{folder}/{name}"]
                taking.place.remove(f"{folder}/{name}")
        taking.progress(folder, done, len(complete))


def _copy_archive(taking: _Taking, sealed: Sequence[Segment]) -> None:
    for done, segment in enumerate(sealed, start=1):
        source = Place(segment.root, follow_links=True)
        for name in segment_files(segment):
            try:
                taking.copy(source, name, target=f"archive/{name}")
            except OSError as error:
                raise StoreError(
                    f"{name} cannot be read from the archive {segment.root}: {error}",
                    field="archive",
                    remedy="`ragbandit verify` names what is missing; put the segment back, then take the backup",
                ) from error
        taking.progress("segments of the archive", done, len(sealed))


def _copy_indexes(taking: _Taking, *, settings: Settings) -> None:
    retrievers = settings.named_retrievers.values()
    for server in sorted({_SERVERS[each.name] for each in retrievers if each.name in _SERVERS}):
        taking.left_out.append(f"the index in {server}: back it up there, or build it again")
    for index in sorted({each.index for each in retrievers if Path(each.index).is_absolute()}):
        taking.left_out.append(f"the index {index}: it lies outside of data_dir")
    root = Path(index_root(settings))
    folders = sorted(each for each in root.iterdir() if _is_whole(each)) if root.is_dir() else []
    for done, folder in enumerate(folders, start=1):
        for _ in range(TRIES):
            before = _listing(folder)
            with contextlib.suppress(FileNotFoundError):
                for name in sorted(before):
                    taking.copy(Place(str(root), follow_links=True), name, target=f"{INDEXES}/{name}")
                if _listing(folder) == before:
                    break
            taking.forget(f"{INDEXES}/{folder.name}")
        else:
            raise StoreError(
                f"the index {folder.name} changes while it is copied",
                field="indexes",
                remedy="wait until it is built, or leave the indexes out: --without-indexes",
            )
        taking.progress(INDEXES, done, len(folders))


def _is_whole(folder: Path) -> bool:
    return folder.is_dir() and not folder.name.startswith(".")


def _listing(folder: Path) -> dict[str, Any]:
    """File -> what changes when it is written anew, named within the folder above."""
    listed = {}
    for name in Place(str(folder)).names():
        with contextlib.suppress(FileNotFoundError):
            there = (folder / name).stat()
            listed[f"{folder.name}/{name}"] = (there.st_ino, there.st_size, there.st_mtime_ns)
    return listed
