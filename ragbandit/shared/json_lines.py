"""JSON Lines: files of one object a line, plain or compressed, with line numbers in errors."""

import codecs
import contextlib
import gzip
import io
import json
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.files import atomic_file, open_file, pipe_data

_GZIP = b"\x1f\x8b"
#: longest line, bytes
MAX_LINE: Final = 16 * 1024 * 1024


def lines(path: Path, *, blank: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, bytes) of every line that is not blank, or of all lines. UTF-16 with a mark becomes UTF-8.

    Raises InvalidInput if the file cannot be read, is no regular file (see `rereadable` for pipes), is blank, or has a
    line above MAX_LINE. The readable lines of a damaged gzip file are yielded first.
    """
    number = rows = 0
    try:
        with open_binary(path) as stream:
            for number, raw in enumerate(_raw_lines(stream), start=1):
                if len(raw) > MAX_LINE:
                    message = f"line {number} has more than {MAX_LINE >> 20} MiB"
                    remedy = "write one JSON object a line, and cut long texts into parts"
                    raise InvalidInput(message, field=str(path), remedy=remedy)
                line = raw.removeprefix(b"\xef\xbb\xbf")  # `cat` of files leaves marks within the result
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
    remedy = "save the data in a file, and name the file"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        try:
            with copy.open("wb") as file:
                for data in pipe_data(path):
                    file.write(data)
                    if file.tell() > _MOST_PIPED_BYTES:
                        message = f"the pipe sends more than {_MOST_PIPED_BYTES >> 20} MB"
                        raise InvalidInput(message, field=str(path), remedy=remedy)
        except OSError as error:
            message = f"it cannot be read: {error.strerror}"
            raise InvalidInput(message, field=str(path), remedy=remedy) from error
        try:
            yield copy
        except InvalidInput as error:  # the error should name the pipe, not the copy
            names = [text and text.replace(str(copy), str(path)) for text in (error.message, error.field)]
            raise InvalidInput(names[0] or "", field=names[1], remedy=error.remedy) from error


def open_binary(path: Path) -> BinaryIO:
    """Open a regular file for reading. A gzip file is recognised by its first bytes, and unpacked. Raises OSError."""
    with open_file(path) as stream:
        is_packed = stream.read(len(_GZIP)) == _GZIP
    return cast("BinaryIO", gzip.open(path, "rb")) if is_packed else open_file(path)


def decode_line(raw: bytes) -> str:
    """The text of a line. Raises InvalidInput if it is not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        fault = f"is not UTF-8: its byte {error.start + 1} is 0x{raw[error.start]:02x}"
        raise InvalidInput(fault, remedy="save the file as UTF-8, plain or packed with gzip") from error


def parse_line(raw: bytes) -> dict[str, Any]:
    """Parse the JSON object of a line. Raises InvalidInput, also if a key is repeated."""
    try:
        value = DECODER.decode(decode_line(raw))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON: {error}", remedy="write one JSON object a line, in UTF-8") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"is a {type(value).__name__}", remedy="write one JSON object a line")
    return value


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` that raises ValueError if a key is repeated. By default json uses the last value."""
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name in counts if counts[name] > 1)
        raise ValueError(f"the key {repeated!r:.80} stands twice in one object")
    return mapping


#: shared by all calls, since json.loads with a hook makes a new decoder at every call
DECODER: Final = json.JSONDecoder(object_pairs_hook=each_key_once)


@contextlib.contextmanager
def locate_errors(path: Path, *, line: int) -> Iterator[None]:
    """A block in which each InvalidInput gets "<file>:<line>" before its field."""
    try:
        yield
    except InvalidInput as error:
        where = f"{path}:{line} {error.field or ''}".rstrip()
        message = error.message.removeprefix(f'"{error.field}" ')  # `where` names the field already
        raise InvalidInput(message, field=where, remedy=error.remedy) from error


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """`atomic_file` for a file that a user named; only its owner may read it. Raises InvalidInput, not OSError."""
    try:
        with atomic_file(path, durable=True, private=True) as temporary:
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
