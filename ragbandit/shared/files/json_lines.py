"""JSON Lines: files of one JSON object a line, in UTF-8, plain or gzipped; errors name the line."""

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.files.atomic import whole_file

_GZIP = b"\x1f\x8b"


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes) of every line that is not blank.

    Raises InvalidInput for a file that cannot be read, has no row, or is a gzip that ends too early or is damaged:
    then after its last whole row.
    """
    number = rows = 0
    try:
        with open_binary(path) as stream:
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
            f"cannot be read: {error.strerror}",
            field=str(path),
            remedy="give the path of a file that this user can read",
        ) from error
    if not rows:
        raise InvalidInput("has no rows", field=str(path), remedy="give a file with at least one JSON object")


def open_binary(path: Path) -> BinaryIO:
    """The file open for reading, unpacked if it is a gzip by its name or by its first bytes."""
    return cast("BinaryIO", gzip.open(path, "rb")) if _gzipped(path) else path.open("rb")


def _gzipped(path: Path) -> bool:
    if path.suffix == ".gz" or not path.is_file():
        return path.suffix == ".gz"
    with path.open("rb") as stream:
        return stream.read(len(_GZIP)) == _GZIP


def parsed(raw: bytes) -> dict[str, Any]:
    """The line's JSON object. Raises InvalidInput, also for a key that stands twice."""
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        fault = f"is not UTF-8: its byte {error.start + 1} is 0x{raw[error.start]:02x}"
        raise InvalidInput(fault, remedy="save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON: {error}", remedy="write one JSON object a line, in UTF-8") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"is a {type(value).__name__}", remedy="write one JSON object a line")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """In JSON the second of two equal keys wins silently."""
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return mapping


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
        raise InvalidInput(
            f"cannot be written: {error.strerror}", field=str(path), remedy="choose a place that can be written"
        ) from error


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
