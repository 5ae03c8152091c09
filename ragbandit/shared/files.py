"""Files: atomic writes, remote folders, cached arrays, and JSON Lines with line numbers in errors."""

import codecs
import contextlib
import gzip
import importlib.util
import io
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
    """`cache`; if that is None, `$XDG_CACHE_HOME/ragbandit` or `~/.cache/ragbandit`."""
    return cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragbandit"


def private_folder(path: Path) -> None:
    """Make a folder that only its owner may open, and missing parents, unless the folder exists. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def append_private(path: Path) -> BinaryIO:
    """Open a file for appending; a new file can be read only by its owner. Raises OSError."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600), "a+b")


def write_file(path: Path, data: bytes, *, durable: bool) -> None:
    """Write a file that only its owner may read, with `whole_file`. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, durable=durable, private=True) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def whole_file(path: Path, *, durable: bool, private: bool = False) -> Iterator[Path]:
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
def whole_folder(target: Path, *, private: bool = True) -> Iterator[Path]:
    """A temporary folder that becomes `target` at the end of the block, or is deleted after an error.

    Raises OSError, also if `target` exists and is not empty. private: whether only the owner may open the folder.
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
    """Replace a folder by another one on the same disk, and delete the old one. Raises OSError.

    A crash between the two renames leaves no folder at `target`, never an incomplete one.
    """
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    shutil.rmtree(old, ignore_errors=True)  # `old` may exist, since process ids repeat in containers
    if target.exists():
        target.rename(old)
    by.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def cached_arrays(
    kind: str, key: str, *, build: Callable[[], dict[str, npt.NDArray[Any]]], cache: Path | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Load arrays from a cache file, or build and cache them if the file is missing or damaged.

    kind: subfolder of the cache
    key: name of the file; it must identify everything that the arrays depend on
    cache: root folder, see `cache_root`
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
        log.warning("the cache file %s cannot be written, so it is computed again at the next start: %s", file, error)
    return arrays


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


def remote_system(root: str, *, field: str) -> tuple[Any, str]:
    """Returns (file system of a URL, path in it). Raises ConfigError, see `check_root`."""
    fsspec = required_module("fsspec", extra="replay", field=field)
    try:
        system, path = fsspec.core.url_to_fs(root)
    except (ImportError, ValueError) as error:
        check_root(root, field=field)
        raise ConfigError(f"this URL cannot be used here: {error}", field=field, remedy=_FSSPEC) from error
    return system, path


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
        """A text that changes when the file is written again, made from metadata. Raises OSError without a file."""
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
        system, path = remote_system(self.root, field=self._field)
        return system, f"{path}/{name}"


_GZIP = b"\x1f\x8b"
#: longest line, bytes
MAX_LINE: Final = 16 * 1024 * 1024


def lines(path: Path, *, blank: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, bytes) of every line that is not blank, or of all lines. UTF-16 with a mark becomes UTF-8.

    Raises InvalidInput if the file cannot be read, is blank, or has a line above MAX_LINE. The readable lines of a
    damaged gzip file are yielded first.
    """
    number = rows = 0
    try:
        with open_binary(path) as stream:
            for number, raw in enumerate(_raw_lines(stream), start=1):
                if len(raw) > MAX_LINE:
                    message = f"line {number} has more than {MAX_LINE >> 20} MiB"
                    remedy = "write one JSON object a line, and cut long texts into parts"
                    raise InvalidInput(message, field=str(path), remedy=remedy)
                line = raw.removeprefix(b"\xef\xbb\xbf")  # `cat` of several files leaves marks between them
                rows += bool(line.strip())
                if blank or line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        message = f"its UTF-16 is cut short or damaged after line {number}"
        raise InvalidInput(message, field=str(path), remedy="save the file as UTF-8") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        message = f"the gzip is cut short or damaged: the last whole row is on line {number}"
        remedy = "fetch the file again, or keep the whole rows: gzip -cd FILE | head -n LINES"
        raise InvalidInput(message, field=str(path), remedy=remedy) from error
    except OSError as error:
        remedy = "give the path of a file that this user can read"
        raise InvalidInput(f"the file cannot be read: {error.strerror}", field=str(path), remedy=remedy) from error
    if not rows:
        raise InvalidInput("the file has no rows", field=str(path), remedy="give a file with at least one JSON object")


def _raw_lines(stream: Any) -> Iterator[bytes]:
    if stream.peek(2)[:2] not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        yield from iter(partial(stream.readline, MAX_LINE + 1), b"")
        return
    with io.TextIOWrapper(stream, encoding="utf-16", newline="") as text:
        for line in iter(partial(text.readline, MAX_LINE + 1), ""):
            yield line.encode()


_MOST_PIPED_BYTES = 1 << 30


@contextlib.contextmanager
def rereadable(path: Path) -> Iterator[Path]:
    """A path that can be read several times: the file, or a temporary copy of a pipe. Raises InvalidInput."""
    if not path.is_fifo():
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        with path.open("rb") as pipe, copy.open("wb") as file:
            while data := pipe.read(1 << 20):
                file.write(data)
                if file.tell() > _MOST_PIPED_BYTES:
                    message = f"the pipe sends more than {_MOST_PIPED_BYTES >> 20} MB"
                    raise InvalidInput(message, field=str(path), remedy="save the data in a file, and name the file")
        yield copy


def open_binary(path: Path) -> BinaryIO:
    """Open a file for reading. A gzip file is recognised by its first bytes, a pipe by its name, and unpacked."""
    packed = path.suffix == ".gz"
    if path.is_file():
        with path.open("rb") as stream:
            packed = stream.read(len(_GZIP)) == _GZIP
    return cast("BinaryIO", gzip.open(path, "rb")) if packed else path.open("rb")


def decoded(raw: bytes) -> str:
    """The text of a line. Raises InvalidInput if it is not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        fault = f"is not UTF-8: its byte {error.start + 1} is 0x{raw[error.start]:02x}"
        raise InvalidInput(fault, remedy="save the file as UTF-8, plain or packed with gzip") from error


def parsed(raw: bytes) -> dict[str, Any]:
    """Parse the JSON object of a line. Raises InvalidInput, also if a key is repeated."""
    try:
        value = DECODER.decode(decoded(raw))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON: {error}", remedy="write one JSON object a line, in UTF-8") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"is a {type(value).__name__}", remedy="write one JSON object a line")
    return value


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` that raises ValueError if a key is repeated. By default json uses the last value."""
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r:.80} stands twice in one object")
    return mapping


#: shared by all calls, since json.loads with a hook makes a new decoder at every call
DECODER: Final = json.JSONDecoder(object_pairs_hook=each_key_once)


@contextlib.contextmanager
def naming(path: Path, *, line: int) -> Iterator[None]:
    """A block in which an InvalidInput gets "<file>:<line>" before its field."""
    try:
        yield
    except InvalidInput as error:
        where = f"{path}:{line} {error.field or ''}".rstrip()
        message = error.message.removeprefix(f'"{error.field}" ')  # `where` names the field already
        raise InvalidInput(message, field=where, remedy=error.remedy) from error


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """`whole_file` for a file that a user named. Only its owner may read it. Raises InvalidInput instead of OSError."""
    try:
        with whole_file(path, durable=True, private=True) as temporary:
            yield temporary
    except OSError as error:
        remedy = "choose a place that can be written"
        raise InvalidInput(f"the file cannot be written: {error.strerror}", field=str(path), remedy=remedy) from error


@contextlib.contextmanager
def new_lines(path: Path) -> Iterator[BinaryIO]:
    """`new_file`, opened for writing, and compressed if the name ends in .gz."""
    with new_file(path) as temporary, temporary.open("wb") as plain:
        if path.suffix != ".gz":
            yield plain
            return
        # The gzip header contains neither name nor time, so equal content gives equal files.
        with gzip.GzipFile(filename="", mode="wb", fileobj=plain, mtime=0) as packed:
            yield cast("BinaryIO", packed)
