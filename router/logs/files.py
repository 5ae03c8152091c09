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

from router.errors import InvalidInput

__all__ = ["lines", "new_file", "new_lines", "parsed"]


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
            f"cannot be read: {error.strerror}", field=str(path), remedy="give the path of a log"
        ) from error
    if not rows:
        raise InvalidInput("has no rows", field=str(path), remedy="give a log with at least one decision")


def _opened(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


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
