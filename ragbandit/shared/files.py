"""Atomic files and folders: a reader sees all of the content or none. And a cache of arrays that take long to make."""

import contextlib
import gzip
import importlib.util
import json
import logging
import os
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy.typing as npt

from ragbandit.shared.errors import ConfigError, InvalidInput, required_module

log = logging.getLogger("ragbandit.cache")

_PREFIX = ".new-"


def cache_root(cache: Path | None = None) -> Path:
    """`cache`; without one `$XDG_CACHE_HOME/ragbandit`, or `~/.cache/ragbandit`."""
    return cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragbandit"


def private_folder(path: Path) -> None:
    """Make a folder that only its owner may open, and what is missing above it. One that exists stays as it is.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def append_private(path: Path) -> BinaryIO:
    """A file open to append to; a new one only its owner may read. Raises OSError."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600), "a+b")


def write_file(path: Path, data: bytes, *, durable: bool) -> None:
    """Write a file, and the folders above it; a reader finds what stood there before, or all of the data.

    durable: the data has reached the disk when this returns. Only the owner may read the file.
    Raises OSError, with nothing left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, durable=durable, private=True) as beside:
        beside.write_bytes(data)


@contextlib.contextmanager
def whole_file(path: Path, *, durable: bool, private: bool = False) -> Iterator[Path]:
    """An empty file beside `path` to write to, which becomes `path` at the end of the block, or is gone after an error.

    durable: the data has reached the disk when the block ends. private: only the owner may read the file.
    Raises OSError.
    """
    beside = path.with_name(f"{_PREFIX}{uuid.uuid4().hex}")
    os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666))
    try:
        yield beside
        if durable:
            with beside.open("rb") as written:
                os.fsync(written.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(target: Path, *, private: bool = True) -> Iterator[Path]:
    """An empty folder to fill, which becomes `target` at the end of the block, or is gone after an error.

    private: only the owner may open it. Raises OSError where it cannot be made, and where `target` is there and not
    empty.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.with_name(f"{_PREFIX}{uuid.uuid4().hex}")
    work.mkdir(mode=0o700 if private else 0o777)
    try:
        yield work
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def replace_folder(target: Path, *, by: Path) -> None:
    """Put a finished folder in the place of another, which is deleted; both lie on the same disk.

    A crash between the two renamings leaves no folder at `target`, never half of one. Raises OSError.
    """
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    shutil.rmtree(old, ignore_errors=True)  # of a process that was killed: in a container ids come back
    if target.exists():
        target.rename(old)
    by.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def cached_arrays(
    kind: str, key: str, *, build: Callable[[], dict[str, npt.NDArray[Any]]], cache: Path | None = None
) -> dict[str, npt.NDArray[Any]]:
    """The arrays that `build` makes, cached in a file under kind and key; made again if the file is damaged.

    key: identifies everything that they depend on. A cache that cannot be written costs time and raises nothing.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file, save

    file = cache_root(cache) / kind / f"{key[:32]}.safetensors"
    try:
        return dict(load_file(file))
    except (OSError, SafetensorError):
        arrays = build()
    try:
        write_file(file, save(arrays), durable=False)
    except OSError as error:
        log.warning("%s cannot be written to the cache: it is made again at the next start: %s", file, error)
    return arrays


_FSSPEC = "give a path, or a URL that fsspec knows, as s3://bucket/folder, with its package installed"


def check_root(root: str, *, field: str) -> None:
    """Refuse a URL of a file system that fsspec does not know, or whose package is not installed. Raises ConfigError.

    The package is not imported, and nobody is asked.
    """
    if "://" not in root:
        return
    scheme = root.partition("://")[0]
    known = required_module("fsspec.registry", extra="replay", field=field).known_implementations.get(scheme)
    if known is None:
        raise ConfigError(f"{scheme}:// cannot be used here", field=field, remedy=_FSSPEC)
    package = known["class"].partition(".")[0]
    if importlib.util.find_spec(package) is None:
        remedy = f"pip install {package}; for an image of ours: docker build --build-arg MORE_PACKAGES={package}"
        raise ConfigError(f"the package {package}, which reads {scheme}://, is missing", field=field, remedy=remedy)


def remote_system(root: str, *, field: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it. Raises ConfigError as `check_root`."""
    fsspec = required_module("fsspec", extra="replay", field=field)  # only a remote root needs it
    try:
        system, path = fsspec.core.url_to_fs(root)
    except (ImportError, ValueError) as error:
        check_root(root, field=field)
        raise ConfigError(f"cannot be used here: {error}", field=field, remedy=_FSSPEC) from error
    return system, path


class Folder:
    """Files by name, `a/b.parquet` for one in a folder below. Methods raise OSError, and ConfigError as `check_root`.

    field: the setting that the root comes from, for messages.
    """

    def __init__(self, root: str, *, field: str) -> None:
        self.root, self._field, self._remote = root, field, "://" in root

    def put(self, name: str, data: bytes) -> None:
        """Write a file; a reader sees all of it or none, and it is durable when this returns."""
        if self._remote:
            system, path = self._system(name)
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            system.pipe_file(path, data)  # object stores show a file when it is whole
        else:
            write_file(Path(self.root, name), data, durable=True)

    def get(self, name: str) -> bytes:
        """The whole file."""
        if self._remote:
            system, path = self._system(name)
            return bytes(system.cat_file(path))
        return Path(self.root, name).read_bytes()

    def exists(self, name: str) -> bool:
        """Whether the file is there."""
        if self._remote:
            system, path = self._system(name)
            return bool(system.exists(path))
        return Path(self.root, name).is_file()

    def fingerprint(self, name: str) -> str:
        """Another text after the file was written again, by whomever. Reads no content; OSError if it is missing."""
        if self._remote:
            system, path = self._system(name)
            system.invalidate_cache(path.rpartition("/")[0])
            return str(system.ukey(path))
        status = Path(self.root, name).stat()
        return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"

    def remove(self, name: str) -> None:
        """Delete a file; one that is not there is fine."""
        if self._remote:
            system, path = self._system(name)
            if system.exists(path):
                system.rm_file(path)
        else:
            Path(self.root, name).unlink(missing_ok=True)

    def _system(self, name: str) -> tuple[Any, str]:
        system, path = remote_system(self.root, field=self._field)
        return system, f"{path}/{name}"


_GZIP = b"\x1f\x8b"
#: longest line of a file of rows, bytes
MAX_LINE: Final = 16 * 1024 * 1024


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes) of every line that is not blank.

    Raises InvalidInput for a file that cannot be read, has no row or a line above MAX_LINE, or is a gzip that ends too
    early or is damaged: then after its last whole row.
    """
    number = rows = 0
    try:
        with open_binary(path) as stream:
            for number, raw in enumerate(iter(partial(stream.readline, MAX_LINE + 1), b""), start=1):
                if len(raw) > MAX_LINE:
                    message = f"line {number} has more than {MAX_LINE >> 20} MiB"
                    remedy = "write one JSON object a line, and cut long texts into parts"
                    raise InvalidInput(message, field=str(path), remedy=remedy)
                line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                if line.strip():
                    rows += 1
                    yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        message = f"the gzip is cut short or damaged: the last whole row is on line {number}"
        remedy = "fetch the file again, or keep the whole rows: gzip -cd FILE | head -n LINES"
        raise InvalidInput(message, field=str(path), remedy=remedy) from error
    except OSError as error:
        remedy = "give the path of a file that this user can read"
        raise InvalidInput(f"cannot be read: {error.strerror}", field=str(path), remedy=remedy) from error
    if not rows:
        raise InvalidInput("has no rows", field=str(path), remedy="give a file with at least one JSON object")


#: bytes of a pipe that are kept to be read again
_MOST_PIPED = 1 << 30


@contextlib.contextmanager
def rereadable(path: Path) -> Iterator[Path]:
    """The file, or for a pipe a temporary copy of what it sends: it can be read twice. Raises InvalidInput."""
    if not path.is_fifo():
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        with path.open("rb") as stream, copy.open("wb") as kept:
            while data := stream.read(1 << 20):
                kept.write(data)
                if kept.tell() > _MOST_PIPED:
                    message = f"sends more than {_MOST_PIPED >> 20} MB"
                    raise InvalidInput(message, field=str(path), remedy="save it, and give the file")
        yield copy


def open_binary(path: Path) -> BinaryIO:
    """The file open for reading, unpacked if it is a gzip by its name or by its first bytes."""
    packed = path.suffix == ".gz"
    if not packed and path.is_file():
        with path.open("rb") as stream:
            packed = stream.read(len(_GZIP)) == _GZIP
    return cast("BinaryIO", gzip.open(path, "rb")) if packed else path.open("rb")


def parsed(raw: bytes) -> dict[str, Any]:
    """The line's JSON object. Raises InvalidInput, also for a key that stands twice."""
    try:
        value = _DECODER.decode(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        fault = f"is not UTF-8: its byte {error.start + 1} is 0x{raw[error.start]:02x}"
        raise InvalidInput(fault, remedy="save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON: {error}", remedy="write one JSON object a line, in UTF-8") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"is a {type(value).__name__}", remedy="write one JSON object a line")
    return value


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook`. Raises ValueError for a key that stands twice: the second would win silently."""
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r:.80} stands twice in one object")
    return mapping


#: made once: json.loads would make one for every line
_DECODER: Final = json.JSONDecoder(object_pairs_hook=each_key_once)


@contextlib.contextmanager
def naming(path: Path, *, line: int) -> Iterator[None]:
    """Puts "<file>:<line>" before the field of an InvalidInput that the block raises."""
    try:
        yield
    except InvalidInput as error:
        where = f"{path}:{line} {error.field or ''}".rstrip()
        message = error.message.removeprefix(f'"{error.field}" ')  # the place names the field already
        raise InvalidInput(message, field=where, remedy=error.remedy) from error


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """`whole_file` for a file that a user named: raises InvalidInput where it cannot be written.

    It holds questions and answers: only its owner may read it.
    """
    try:
        with whole_file(path, durable=True, private=True) as beside:
            yield beside
    except OSError as error:
        remedy = "choose a place that can be written"
        raise InvalidInput(f"cannot be written: {error.strerror}", field=str(path), remedy=remedy) from error


@contextlib.contextmanager
def new_lines(path: Path) -> Iterator[BinaryIO]:
    """`new_file`, open for writing; gzipped if its name ends in .gz. The same lines give the same bytes."""
    with new_file(path) as beside, beside.open("wb") as plain:
        if path.suffix != ".gz":
            yield plain
            return
        # Without name and time, which would make every file another one.
        with gzip.GzipFile(filename="", mode="wb", fileobj=plain, mtime=0) as packed:
            yield cast("BinaryIO", packed)
