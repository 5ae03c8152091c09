"""Manifest: what a backup holds. It is written last: a folder without it is no backup, whatever else lies there."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ragbandit.router.backup.places import Place, Progress, sha256_of
from ragbandit.router.errors import InvalidInput, NotFound, StoreError
from ragbandit.router.storage.rows.conversion import canonical

__all__ = ["CONFIG_FILE", "DATABASE_FILE", "MANIFEST_FILE", "BackupFile", "Manifest", "check_files", "read_manifest"]

MANIFEST_FILE: Final = "manifest.json"
#: a SQLite file, of whatever database it was taken
DATABASE_FILE: Final = "database.sqlite"
#: the settings that were in force, without secrets
CONFIG_FILE: Final = "config.json"
#: of the manifest; another number is refused
FORMAT: Final = 1
#: damaged files that an error names
_NAMED: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupFile:
    """A file of a backup."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a backup holds."""

    #: seconds since the epoch at which the database was in the state that is kept
    taken_at: float
    #: of ragbandit
    version: str
    #: the schema of the database, as `ragbandit migrate` counts them
    revision: str
    #: of what it was taken: "sqlite" or "postgresql"
    database: str
    #: rows by table
    rows: Mapping[str, int]
    files: Sequence[BackupFile]
    #: what was left out, each with the reason
    left_out: Sequence[str] = field(default_factory=tuple)

    def packed(self) -> bytes:
        """As JSON, with the sha256 of all of it."""
        described = {"format": FORMAT, **asdict(self)}
        return json.dumps(described | {"sha256": _seal(described)}, indent=1).encode()

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files)

    def below(self, folder: str) -> list[BackupFile]:
        """The files in a folder of the backup."""
        return [file for file in self.files if file.name.startswith(f"{folder}/")]


def read_manifest(place: Place) -> Manifest:
    """The manifest of a backup. Raises NotFound without one, InvalidInput for one of another form or that was cut."""
    try:
        data = place.get(MANIFEST_FILE)
    except OSError as error:
        raise NotFound(
            f"{place.root} is no backup: it has no {MANIFEST_FILE}, which is written last",
            field="backup",
            remedy="name the folder that `ragbandit backup` printed; one without a manifest was interrupted",
        ) from error
    try:
        described: dict[str, Any] = json.loads(data)
        seal = described.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged([MANIFEST_FILE]) from error
    if described.get("format") != FORMAT:
        raise InvalidInput(
            f"this backup has format {described.get('format')!r}, this version reads {FORMAT}",
            field="backup",
            remedy="restore it with the version of ragbandit that took it, or a newer one",
        )
    if _seal(described) != seal:
        raise _damaged([MANIFEST_FILE])
    described.pop("format")
    files = [BackupFile(**each) for each in described.pop("files")]
    return Manifest(**described, files=files)


def check_files(place: Place, manifest: Manifest, *, progress: Progress) -> None:
    """Compare every file with its size and its sha256. Raises StoreError naming those that are damaged or missing."""
    wrong: list[str] = []
    done = 0
    for file in manifest.files:
        try:
            if sha256_of(place, file.name) != (file.bytes, file.sha256):
                wrong.append(file.name)
        except OSError:
            wrong.append(f"{file.name} (missing)")
        done += file.bytes
        progress("bytes checked", done, manifest.bytes)
    if wrong:
        raise _damaged(wrong)


def _seal(described: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(json.loads(json.dumps(described))).encode()).hexdigest()


def _damaged(names: Sequence[str]) -> StoreError:
    shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return StoreError(
        f"the backup is damaged: {shown} {'is' if len(names) == 1 else 'are'} not as taken; nothing was restored",
        field="backup",
        remedy="restore another backup, or fetch these files again from where they are kept",
    )
