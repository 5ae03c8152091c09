"""Atomic files and folders: a reader sees all of the content or none. And a cache of arrays that take long to make."""

import contextlib
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy.typing as npt

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
def whole_folder(target: Path) -> Iterator[Path]:
    """An empty folder to fill, which becomes `target` at the end of the block, or is gone after an error.

    Only the owner may open it, unless the block says otherwise. Raises OSError where it cannot be made, and where
    `target` is there and not empty.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=_PREFIX))
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
