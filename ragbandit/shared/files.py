"""Files and folders: reads of users' files, atomic writes, remote folders."""

import codecs
import contextlib
import errno
import hashlib
import importlib.util
import io
import os
import select
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from ragbandit.shared.errors import ConfigError, required_module

_PREFIX = ".new-"

#: largest file of settings, facts or a prompt that is read whole, bytes
MOST_BYTES: Final = 64 << 20
#: longest time that a named pipe may be without a writer, and time between two checks of this, seconds
PIPE_S: Final = 10.0
_CHECK_S: Final = 0.02
#: type of a path other than a regular file -> its name in messages
_KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
#: byte order mark -> encoding
_MARKS: Final = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def open_file(path: Path) -> io.BufferedReader:
    """Open a file that a user named, for reading.

    Raises OSError, also for anything but a regular file: a pipe may wait for ever, a device may have no end.
    """
    if "\0" in str(path):  # open() would raise ValueError
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int, *, mode: int = 0o777) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK, mode)  # without O_NONBLOCK, a pipe would wait for its writer
    opened = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(opened):
        os.close(descriptor)
        kind = _KINDS.get(stat.S_IFMT(opened), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", path)
    return descriptor


def pipe_data(path: Path) -> Iterator[bytes]:
    """Yield the data of a pipe that a user named. Raises OSError if no program opens it for writing within PIPE_S.

    The pipe of `/dev/stdin` or `<(...)` always has a writer, whose data are waited for.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a blocking open would wait for a writer
    with open(descriptor, "rb", buffering=0) as pipe:
        yield _first_data(pipe, path=path)
        os.set_blocking(descriptor, True)
        yield from iter(partial(pipe.read, 1 << 20), b"")


def _first_data(pipe: io.FileIO, *, path: Path) -> bytes:
    """The data at the beginning of a pipe; b"" if its writer has sent none yet, or has ended without any."""
    ended, give_up = select.poll(), time.monotonic() + PIPE_S
    ended.register(pipe, 0)  # reports only the end of a writer
    while True:
        has_ended = bool(ended.poll(0))
        data = pipe.read(1 << 20)
        if data is None:  # a writer exists, and has sent no data yet
            return b""
        if data or has_ended:
            return data
        if time.monotonic() > give_up:
            message = f"it is a pipe, and no program has opened it for writing within {PIPE_S:g} s"
            raise OSError(errno.EPIPE, message, str(path))
        time.sleep(_CHECK_S)


def read_file(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """The bytes of a file that a user named. Raises OSError, also above `most` bytes; see `open_file`."""
    with open_file(path) as stream:
        data = stream.read(most + 1)  # for files below /proc the system reports a size of 0
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB", str(path))
    return data


def read_text(path: Path) -> str:
    """The text of a file that a user named. Raises OSError as `read_file`, and ValueError as `text_of_file`."""
    return text_of_file(read_file(path))


def text_of_file(data: bytes) -> str:
    """Decode a text in UTF-8, or in the encoding of its byte order mark, which is removed. Raises ValueError."""
    encoding = next((encoding for mark, encoding in _MARKS.items() if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not {encoding.removesuffix('-sig').upper()}") from error


def temporary_folder() -> str:
    """The folder of temporary files. Raises ConfigError if this user can write none."""
    try:
        return tempfile.gettempdir()
    except OSError as error:
        remedy = "mount a folder that can be written at /tmp, or name one in TMPDIR"
        raise ConfigError("no folder of temporary files can be written", field="TMPDIR", remedy=remedy) from error


def private_socket(folder: str) -> Path:
    """Path of the Unix socket of this user's server for `folder`. The path is short, since the limit is 107 bytes."""
    name = hashlib.sha256(str(Path(folder).absolute()).encode()).hexdigest()[:16]
    path = Path(temporary_folder()) / f"ragbandit-{os.getuid()}-{name}.sock"
    return path if len(os.fsencode(path)) <= 107 else Path("/tmp", path.name)  # noqa: S108 - the name is of this user


def private_folder(path: Path) -> None:
    """Make a folder that only its owner may open, and missing parents, unless the folder exists. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def append_private(path: Path) -> BinaryIO:
    """Open a file for appending; a new file can be read only by its owner. Raises OSError, see `open_file`."""
    return os.fdopen(_open_regular(str(path), os.O_CREAT | os.O_APPEND | os.O_RDWR, mode=0o600), "a+b")


def write_file(path: Path, data: bytes, *, durable: bool) -> None:
    """Write a file that only its owner may read, and its missing folders, with `atomic_file`. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, durable=durable, private=True) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def atomic_file(path: Path, *, durable: bool, private: bool = False) -> Iterator[Path]:
    """A temporary file that replaces `path` atomically at the end of the block, or is deleted after an error.

    durable: whether the data has reached the disk when the block ends
    private: whether only the owner may read the file
    """
    temporary = path.with_name(f"{_PREFIX}{uuid.uuid4().hex}")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666))
    try:
        yield temporary
        if durable:
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(target: Path, *, private: bool = True) -> Iterator[Path]:
    """A temporary folder that becomes `target` at the end of the block, or is deleted after an error.

    `target` must be missing or empty. Raises OSError. private: whether only the owner may open the folder.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.with_name(f"{_PREFIX}{uuid.uuid4().hex}")
    work.mkdir(mode=0o700 if private else 0o777)
    try:
        yield work
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def free_folder(folder: str | Path) -> Path:
    """The path of a folder that is missing or empty. Raises ConfigError if it has files, which may be in use."""
    path = Path(folder).expanduser()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} already exists", field="out", remedy="give another folder, or empty this one")
    return path


def replace_folder(target: Path, *, source: Path) -> None:
    """Replace a folder by `source`, on the same disk, and delete the old one. Raises OSError.

    A crash between the two renames leaves no folder at `target`, never an incomplete one.
    """
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    shutil.rmtree(old, ignore_errors=True)  # `old` may exist, since process ids repeat in containers
    if target.exists():
        target.rename(old)
    source.rename(target)
    shutil.rmtree(old, ignore_errors=True)


_FSSPEC = "give a path, or a URL that fsspec knows, as s3://bucket/folder, with its package installed"


def check_root(root: str, *, field: str) -> None:
    """Raises ConfigError if fsspec does not support the URL, or needs a missing package for it. Sends no request."""
    if "://" not in root:
        return
    scheme = root.partition("://")[0]
    known = required_module("fsspec.registry", extra="replay", field=field).known_implementations.get(scheme)
    if known is None:
        raise ConfigError(f"{scheme}:// cannot be used here", field=field, remedy=_FSSPEC)
    package = known["class"].partition(".")[0]
    if importlib.util.find_spec(package) is None:
        remedy = f"pip install {package}; in the Docker image: docker build --build-arg MORE_PACKAGES={package}"
        raise ConfigError(f"the package {package}, which reads {scheme}://, is missing", field=field, remedy=remedy)


class Folder:
    """Files by name (`a/b.parquet`) in a local or remote folder. Methods raise OSError and ConfigError.

    root: path or URL
    field: setting with the root, for error messages
    """

    def __init__(self, root: str, *, field: str) -> None:
        self.root = root
        self._field = field
        self._remote = "://" in root

    def put(self, name: str, data: bytes) -> None:
        """Write a file atomically and durably."""
        if self._remote:
            system, path = self._system(name)
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            system.pipe_file(path, data)  # in object stores a file appears when it is complete
        else:
            write_file(Path(self.root, name), data, durable=True)

    def get(self, name: str) -> bytes:
        """Read a file."""
        if self._remote:
            system, path = self._system(name)
            return bytes(system.cat_file(path))
        return Path(self.root, name).read_bytes()

    def exists(self, name: str) -> bool:
        """Whether the file exists."""
        if self._remote:
            system, path = self._system(name)
            return bool(system.exists(path))
        return Path(self.root, name).is_file()

    def fingerprint(self, name: str) -> str:
        """A text, made from metadata, that changes when the file is written again. Raises OSError without a file."""
        if self._remote:
            system, path = self._system(name)
            system.invalidate_cache(path.rpartition("/")[0])
            return str(system.ukey(path))
        status = Path(self.root, name).stat()
        return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"

    def remove(self, name: str) -> None:
        """Delete a file if it exists."""
        if self._remote:
            system, path = self._system(name)
            if system.exists(path):
                system.rm_file(path)
        else:
            Path(self.root, name).unlink(missing_ok=True)

    def _system(self, name: str) -> tuple[Any, str]:
        fsspec = required_module("fsspec", extra="replay", field=self._field)
        try:
            system, path = fsspec.core.url_to_fs(self.root)
        except (ImportError, ValueError) as error:
            check_root(self.root, field=self._field)
            raise ConfigError(f"this URL cannot be used here: {error}", field=self._field, remedy=_FSSPEC) from error
        return system, f"{path}/{name}"
