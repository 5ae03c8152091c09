"""Manifest: what a backup holds. It is written last: a folder without it is no backup, whatever else lies there.

Its own sha256 finds damage, not forgery: anybody can make it anew. Whoever reads a manifest gets names of files that
lie below the known folders, and nothing else is taken for true that a forger could use against the reader's machine.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from ragbandit.router.retention.places import Place, Progress, plain_parts, sha256_of
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import BEFORE_1_0, InvalidInput, NotFound, StoreError

MANIFEST_FILE: Final = "manifest.json"
#: a SQLite file, of whatever database it was taken
DATABASE_FILE: Final = "database.sqlite"
#: the settings that were in force, without secrets
CONFIG_FILE: Final = "config.json"
#: folder of a backup, and of a data_dir
INDEXES: Final = "indexes"
#: what a backup may hold beside its manifest
_FILES: Final = frozenset({DATABASE_FILE, CONFIG_FILE})
_FOLDERS: Final = frozenset({"snapshots", "checkpoints", "archive", INDEXES})
#: bytes of a manifest; a file takes some 150 of them
_MAX_BYTES: Final = 1 << 28
#: of the manifest; another number is refused
FORMAT: Final = 2
#: seconds since the epoch: later times have no date
_YEAR_9999: Final = 253_370_764_800
#: files that an error names
_NAMED: Final = 10
#: characters that an error shows of a name that is refused
_SHOWN: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupFile:
    """A file of a backup."""

    name: Annotated[str, Field(max_length=1024)]
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a backup holds."""

    #: seconds since the epoch at which the database was in the state that is kept
    taken_at: Annotated[float, Field(ge=0, le=_YEAR_9999)]
    #: of ragbandit
    version: str
    #: the schema of the database, as `ragbandit migrate` counts them
    revision: Annotated[str, Field(pattern="^[0-9]{4}$")]
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


def read_manifest(place: Place, *, expect: str | None = None) -> Manifest:
    """The manifest of a backup; its names are plain and lie below the known folders.

    expect: sha256 of the file of the manifest, 64 hexadecimal digits; any other is refused before it is parsed.
    Raises NotFound without one, StoreError for one that cannot be read or was damaged, InvalidInput for one of another
    format, one that is not the expected one, or one that names a file that no backup has.
    """
    data = _bytes_of_manifest(place)
    actual = hashlib.sha256(data).hexdigest()
    if expect is not None and actual != expect.lower():
        raise InvalidInput(
            f"the manifest has sha256 {actual}, not the expected one; nothing else was read, and nothing was restored",
            field="expect",
            remedy="compare it with what `ragbandit data backup` printed: the backup was changed, or it is another one",
        )
    try:
        described: dict[str, Any] = json.loads(data)
        seal = described.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged([MANIFEST_FILE]) from error
    if described.get("format") == 1:
        raise InvalidInput(f"this backup cannot be restored: {BEFORE_1_0}", field="backup")
    if described.get("format") != FORMAT:
        raise InvalidInput(
            f"this backup has format {described.get('format')!r:.40}, this version reads {FORMAT}",
            field="backup",
            remedy="restore it with the version of ragbandit that took it, or a newer one",
        )
    try:
        if _seal(described) != seal:
            raise _damaged([MANIFEST_FILE])
        manifest = TypeAdapter(Manifest).validate_python(described)
    except ValueError as error:  # text with half a surrogate pair; values of another form
        raise _damaged([MANIFEST_FILE]) from error
    _check_names([file.name for file in manifest.files])
    return manifest


def _bytes_of_manifest(place: Place) -> bytes:
    try:
        return place.get(MANIFEST_FILE, most=_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(
            f"{place.root} is no backup: it has no {MANIFEST_FILE}, which is written last",
            field="backup",
            remedy="name the folder that `ragbandit data backup` printed; one without a manifest was interrupted",
        ) from error
    except OSError as error:
        raise StoreError(
            f"{MANIFEST_FILE} of {place.root} cannot be read: {error.strerror or error}",
            field="backup",
            remedy="check that this user may read it, and that it is a file and no link",
        ) from error


def _check_names(names: Sequence[str]) -> None:
    """Raises InvalidInput unless each is plain, is known or below a known folder, stands once, and is no folder."""
    times, refused = Counter(names), list[str]()
    for name in names:
        parts = plain_parts(name) or ("",)
        known = name in _FILES or (len(parts) > 1 and parts[0] in _FOLDERS)
        folders = list(accumulate(parts, "{}/{}".format))[:-1]
        if not known or times[name] > 1 or any(folder in times for folder in folders):
            refused.append(ascii(name)[:_SHOWN])
    if refused:
        raise InvalidInput(
            f"the manifest names files that no backup has, or one twice: {_listed(refused)}; nothing was restored",
            field="backup",
            remedy="`ragbandit data backup` writes no such manifest: find out who did, and restore another backup",
        )
    if DATABASE_FILE not in times:
        raise _damaged([f"{DATABASE_FILE} (not in the manifest)"])


def check_files(place: Place, manifest: Manifest, *, progress: Progress) -> None:
    """Compare every file with its size and its sha256. Raises StoreError naming those that are damaged or missing."""
    wrong: list[str] = []
    done = 0
    for file in manifest.files:
        try:
            if sha256_of(place, file.name) != (file.bytes, file.sha256):
                wrong.append(file.name)
        except FileNotFoundError:
            wrong.append(f"{file.name} (missing)")
        except OSError as error:
            wrong.append(f"{file.name} ({error.strerror or error})")
        done += file.bytes
        progress("bytes checked", done, manifest.bytes)
    if wrong:
        raise _damaged(wrong)


def _seal(described: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(json.loads(json.dumps(described))).encode()).hexdigest()


def _damaged(names: Sequence[str]) -> StoreError:
    verb = "is" if len(names) == 1 else "are"
    return StoreError(
        f"the backup is damaged: {_listed(names)} {verb} not as taken; nothing was restored",
        field="backup",
        remedy="restore another backup, or fetch these files again from where they are kept",
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
