"""Files of one JSON object a line, plain or gzipped, and files that are whole or not there at all."""

import contextlib
import gzip
import json
import os
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from ragbandit.router.errors import InvalidInput

__all__ = ["check_format", "lines", "new_file", "new_lines", "parsed"]

_GZIP = b"\x1f\x8b"
#: first bytes -> format
_MAGIC = {b"PAR1": "parquet", b"PK\x03\x04": "obp"}
#: keys that the rows of one format have and those of the other do not
_KEYS = {"jsonl": {"arm", "pmf"}, "dsjson": {"a", "c", "p"}}
#: bytes of a first row that are read to tell its format
_GLANCE = 1 << 20


def check_format(path: Path, *, said: str) -> None:
    """Raises InvalidInput for a file that begins like one of another format than `said`; doubt is no objection."""
    found = _begins_like(path)
    if found not in (None, said):
        raise InvalidInput(
            f"is no {said} file: it begins like {found}", field=str(path), remedy=f"give --format {found}"
        )


def _begins_like(path: Path) -> str | None:
    """The format that the first bytes or the first row tell, or None."""
    if not path.is_file():  # what is read from a pipe is gone
        return None
    try:
        with path.open("rb") as stream:
            begin = stream.read(4)
        if begin in _MAGIC:
            return _MAGIC[begin]
        with _opened(path) as stream:
            first = next((line for line in iter(lambda: stream.readline(_GLANCE), b"") if line.strip()), b"")
        found = parsed(first.removeprefix(b"\xef\xbb\xbf"))
    except (OSError, EOFError, zlib.error, InvalidInput):
        return None  # the reader says it better
    like = [name for name, keys in _KEYS.items() if keys <= set(found)]
    return like[0] if len(like) == 1 else None


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes) of every line that is not blank.

    Raises InvalidInput for a file that cannot be read, has no row, or is a gzip that ends too early or is damaged:
    then after its last whole row.
    """
    number = rows = 0
    try:
        with _opened(path) as stream:
            for number, raw in enumerate(stream, start=1):
                line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                if line.strip():
                    rows += 1
                    yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInput(
            f"the gzip is cut short or damaged: the last whole row is on line {number}",
            field=str(path),
            remedy="fetch the file again, or keep the whole rows: gzip -cd FILE | head -n LINES",
        ) from error
    except OSError as error:
        raise InvalidInput(
            f"cannot be read: {error.strerror}", field=str(path), remedy="give the path of a file that can be"
        ) from error
    if not rows:
        raise InvalidInput("has no rows", field=str(path), remedy="give a file with at least one JSON object")


def _opened(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path, "rb")) if _gzipped(path) else path.open("rb")


def _gzipped(path: Path) -> bool:
    """By the name, or by the first bytes."""
    if path.suffix == ".gz" or not path.is_file():
        return path.suffix == ".gz"
    with path.open("rb") as stream:
        return stream.read(len(_GZIP)) == _GZIP


def parsed(raw: bytes) -> dict[str, Any]:
    """The line's JSON object. Raises InvalidInput."""
    try:
        found = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON: {error}", remedy="write one JSON object a line, in UTF-8") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"is a {type(found).__name__}", remedy="write one JSON object a line")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a key that stands twice win silently the second time."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to; it becomes `path` at the end of the block, or is gone after an exception."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        yield beside
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        beside.replace(path)
    except OSError as error:
        raise InvalidInput(
            f"cannot be written: {error.strerror}", field=str(path), remedy="choose a place that can be written"
        ) from error
    finally:
        beside.unlink(missing_ok=True)


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
