"""Places: folders on this machine or under an fsspec URL whose files are read and written as streams.

Files of a backup may be larger than memory, so that they are never read whole, and their sha256 is taken on the way.
Names may come from a manifest that anybody wrote: one that is not plain is refused, and on this machine every folder
of a name is opened on its own without following a link, so that no name leads out of the place.
"""

import contextlib
import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from ragbandit.shared.files.atomic import private_folder
from ragbandit.shared.files.folders import remote_system

#: (name of the work, done, total); total 0 is not known
Progress = Callable[[str, int, int], None]

#: bytes that are read at once
CHUNK: Final = 1 << 20
#: folders and files that are being written or replaced begin so; they are part of nothing
_UNFINISHED: Final = "."
#: URLs of folders of this machine: fsspec would follow links in them
_LOCAL_URLS: Final = ("file://", "local://")
#: in a part of a name: controls, backslashes, halves of surrogate pairs; a drive of Windows at its begin
_NOT_PLAIN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]|^[A-Za-z]:")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
#: what opening a link ends with where links are not followed
_IS_LINK: Final = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR)


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Progress that nobody watches."""


def plain_parts(name: str) -> tuple[str, ...] | None:
    """The parts of a relative name with "/" between them; None for a name that could lead out of its folder.

    Not plain are "..", ".", empty parts (an absolute name begins with one), backslashes, drives and control characters.
    """
    parts = tuple(name.split("/"))
    return None if any(part in ("", ".", "..") or _NOT_PLAIN.search(part) for part in parts) else parts


class Place:
    """Files by name, `a/b.db` for one in a folder below. Methods raise OSError, also for a name that is not plain.

    follow_links: follow links below the root, as in folders of a store that its operator may have moved. Without it
    they are errors; links in the root itself are always followed, and those of a remote server are its own affair.
    """

    def __init__(self, root: str, *, follow_links: bool = False) -> None:
        local = remote_system(root)[1] if root.startswith(_LOCAL_URLS) else root
        self.remote = "://" in local
        self.root = local.rstrip("/") if self.remote else local
        self._no_link = 0 if follow_links else os.O_NOFOLLOW
        #: parts of the names of folders and files that were created here, in that order
        self._created: list[tuple[str, ...]] = []

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[BinaryIO]:
        """A file, open to read."""
        if self.remote:
            system, path = self._system(name)
            with system.open(path, "rb") as file:
                yield file
            return
        # Not blocking: opening a pipe would wait for whoever writes to it.
        with os.fdopen(self._open(name, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is no regular file", self._path(name))
            yield file

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """A new file, open to write, that only its owner may read; on the disk when the block ends.

        Raises FileExistsError where there is one of this name.
        """
        if self.remote:
            system, path = self._system(name)
            if system.exists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._path(name))
            self._created.append(self._parts(name))
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            with system.open(path, "wb") as file:
                yield file
            return
        descriptor = self._open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, create_folders=True)
        self._created.append(self._parts(name))
        with _naming(self._path(name)), os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def get(self, name: str, *, most: int) -> bytes:
        """A small file, whole. Raises OSError for one of more than `most` bytes."""
        with self.reading(name) as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), self._path(name))
        return data

    def put(self, name: str, data: bytes) -> None:
        """Write a small new file."""
        with self.writing(name) as file:
            file.write(data)

    def names(self) -> list[str]:
        """Every file below, sorted, without what is being written; [] where there is no such folder."""
        if self.remote:
            system, path = remote_system(self.root, field="the backup")
            path = path.rstrip("/")
            system.invalidate_cache()
            names = [str(each)[len(path) :].lstrip("/") for each in system.find(path)] if system.exists(path) else []
        else:
            top = Path(self.root)
            names = [each.relative_to(top).as_posix() for each in top.rglob("*") if each.is_file()]
        return sorted(name for name in names if not any(part.startswith(_UNFINISHED) for part in name.split("/")))

    def remove(self, name: str) -> None:
        """Delete a file; one that is not there is fine."""
        if self.remote:
            system, path = self._system(name)
            if system.exists(path):
                system.rm_file(path)
            return
        *folders, last = self._parts(name)
        with contextlib.suppress(FileNotFoundError), self._folder(folders) as folder:
            os.unlink(last, dir_fd=folder)

    def remove_created(self) -> None:
        """Delete the files and folders that were created here, as far as that can be done; folders only if empty."""
        while self._created:
            parts = self._created.pop()
            with contextlib.suppress(OSError):
                if not parts:
                    Path(self.root).rmdir()
                elif self.remote:
                    self.remove("/".join(parts))
                else:
                    with self._folder(parts[:-1]) as folder:
                        there = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
                        (os.rmdir if stat.S_ISDIR(there.st_mode) else os.unlink)(parts[-1], dir_fd=folder)

    def _open(self, name: str, flags: int, *, create_folders: bool = False) -> int:
        """Descriptor of a file, which is created for its owner alone."""
        *folders, last = self._parts(name)
        try:
            with self._folder(folders, create=create_folders) as folder:
                return os.open(last, flags | self._no_link, 0o600, dir_fd=folder)
        except OSError as error:
            fault = error.strerror
            if self._no_link and error.errno in _IS_LINK:
                fault = "it is a link, or lies behind one, which is not followed"
            raise OSError(error.errno, fault, self._path(name)) from error

    @contextlib.contextmanager
    def _folder(self, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
        """Descriptor of a folder below the root, opened part by part."""
        if create and not Path(self.root).is_dir():
            private_folder(Path(self.root))
            self._created.append(())
        folder = os.open(self.root, _FOLDER)
        try:
            for depth, part in enumerate(parts, start=1):
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=folder)
                        self._created.append(tuple(parts[:depth]))
                below = os.open(part, _FOLDER | self._no_link, dir_fd=folder)
                os.close(folder)
                folder = below
            yield folder
        finally:
            os.close(folder)

    def _parts(self, name: str) -> tuple[str, ...]:
        parts = plain_parts(name)
        if parts is None:
            raise OSError(errno.EINVAL, "it is no name of a file below this folder", self._path(name))
        return parts

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _system(self, name: str) -> tuple[Any, str]:
        system, path = remote_system(self.root, field="the backup")
        return system, "/".join((path, *self._parts(name)))


def copy_file(source: Place, name: str, *, to: Place, target: str) -> tuple[int, str]:
    """Copy a file to a new one; the bytes that were read and their sha256. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with source.reading(name) as read, to.writing(target) as written:
        while block := _read(read, name):
            digest.update(block)
            size += len(block)
            written.write(block)
    return size, digest.hexdigest()


def sha256_of(place: Place, name: str) -> tuple[int, str]:
    """Bytes and sha256 of a file. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with place.reading(name) as file:
        while block := _read(file, name):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _read(file: BinaryIO, name: str) -> bytes:
    with _naming(name):
        return file.read(CHUNK)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """What the system says of an open file does not name it: have the error do so."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = name
        raise
