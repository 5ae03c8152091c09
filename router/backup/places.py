"""Places: folders on this machine or under an fsspec URL whose files are read and written as streams.

Files of a backup may be larger than memory, so that they are never read whole, and their sha256 is taken on the way.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from ragbandit.router.storage.files.atomic import private_folder
from ragbandit.router.storage.files.folders import remote_system

__all__ = ["Place", "Progress", "copy_file", "no_progress", "sha256_of"]

#: (name of the work, done, total); total 0 is not known
Progress = Callable[[str, int, int], None]

#: bytes that are read at once
CHUNK: Final = 1 << 20
#: folders and files that are being written or replaced begin so; they are part of nothing
_UNFINISHED: Final = "."


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Progress that nobody watches."""


class Place:
    """Files by name, `a/b.db` for one in a folder below. Methods raise OSError."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") if "://" in root else root
        self.remote = "://" in root

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[BinaryIO]:
        """A file, open to read."""
        if self.remote:
            system, path = self._system(name)
            with system.open(path, "rb") as file:
                yield file
            return
        with Path(self.root, name).open("rb") as file:
            yield file

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """A file, open to write, that only its owner may read; on the disk when the block ends."""
        if self.remote:
            system, path = self._system(name)
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            with system.open(path, "wb") as file:
                yield file
            return
        target = Path(self.root, name)
        private_folder(target.parent)
        with os.fdopen(os.open(target, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def get(self, name: str) -> bytes:
        """A small file, whole."""
        with self.reading(name) as file:
            return file.read()

    def put(self, name: str, data: bytes) -> None:
        """Write a small file."""
        with self.writing(name) as file:
            file.write(data)

    def names(self) -> list[str]:
        """Every file below, sorted, without what is being written; [] where there is no such folder."""
        if self.remote:
            system, path = self._system("")
            path = path.rstrip("/")
            system.invalidate_cache()
            found = [str(each)[len(path) :].lstrip("/") for each in system.find(path)] if system.exists(path) else []
        else:
            top = Path(self.root)
            found = [each.relative_to(top).as_posix() for each in top.rglob("*") if each.is_file()]
        return sorted(name for name in found if not any(part.startswith(_UNFINISHED) for part in name.split("/")))

    def remove(self, name: str) -> None:
        """Delete a file; one that is not there is fine."""
        if self.remote:
            system, path = self._system(name)
            if system.exists(path):
                system.rm_file(path)
        else:
            Path(self.root, name).unlink(missing_ok=True)

    def _system(self, name: str) -> tuple[Any, str]:
        system, path = remote_system(self.root, field="the backup")
        return system, f"{path}/{name}"


def copy_file(source: Place, name: str, *, to: Place, target: str) -> tuple[int, str]:
    """Copy a file; the bytes that were read and their sha256. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with source.reading(name) as read, to.writing(target) as written:
        while block := read.read(CHUNK):
            digest.update(block)
            size += len(block)
            written.write(block)
    return size, digest.hexdigest()


def sha256_of(place: Place, name: str) -> tuple[int, str]:
    """Bytes and sha256 of a file. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with place.reading(name) as file:
        while block := file.read(CHUNK):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()
