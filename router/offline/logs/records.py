"""Reads records from tables, logs and ratings of other tools. The content of a file decides its form, not its name.

    JSON Lines       an object a line
    JSON             a list of objects, an object around one such list, or objects one after another
    delimited text   with commas, semicolons, tabs or bars; the first line names the columns, and cells are texts
    Parquet          a row is an object; a struct is an object, a map a list of pairs

Text is UTF-8, or UTF-16 with a byte order mark; it may be packed with gzip. A pipe is copied first, see `rereadable`.
"""

import contextlib
import csv
import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from ragbandit.shared.errors import InvalidInput, required_module
from ragbandit.shared.json_lines import DECODER, MAX_LINE, decode_line, lines, locate_errors, open_binary, parse_line
from ragbandit.shared.texts.formats import counted

Parse = Callable[[], dict[str, Any]]

PARQUET: Final = b"PAR1"
#: largest JSON document, characters; its values take several times this memory
_LARGEST: Final = 1 << 28
_DELIMITERS: Final = ",;\t|"
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
#: columns of the Open Bandit Dataset
_OBD: Final = frozenset({"item_id", "click", "propensity_score"})
_VW: Final = "a log of Vowpal Wabbit"
#: name of a form that is not read -> pattern of its first bytes
_OTHERS: Final[Mapping[str, bytes]] = {
    "an Excel workbook or another zip file": rb"PK\x03\x04|\xd0\xcf\x11\xe0",
    "a pickle, which can run code": rb"\x80[\x02-\x05]",
    "a SQLite database": rb"SQLite format 3\x00",
    "an Avro file": rb"Obj\x01",
    "an ORC file": rb"ORC[\x00-\x1f]",
    "an Arrow or Feather file": rb"(ARROW1|FEA1)\x00|\xff{4}",
    "HDF5, NumPy, R, PDF, HTML or XML": rb"\x89HDF|\x93NUMPY|RDX[23]\n|%PDF|\s*<",
    "packed with zstd, bzip2, xz, lz4, 7z or tar": rb"\(\xb5/\xfd|BZh\d1AY|\xfd7zXZ|\x04\x22M\x18|7z\xbc|.{257}ustar",
    f"{_VW} or Personalizer (dsjson)": rb'.*"_label(_cost|_probability|_Action|Index)"',
    _VW: rb"(shared|\d+:-?[\d.]+:[\d.]+)( '\S+)? ?\||-?[\d.]+ ('\S+ ?)?\|\w* \w+:",
    "binary, or UTF-16 without a mark": rb"(?!PAR1|\xff\xfe|\xfe\xff).{0,63}\x00",
}


def records(path: Path, *, keys: Sequence[str], columns: Sequence[str] = ()) -> Iterator[tuple[int, Parse]]:
    """Yield (number, parser) of every record. A parser raises InvalidInput if its record cannot be used.

    The number is the record's line; in a JSON document and in Parquet it is the record's position, from 1.
    keys: names, of which every record has at least one. An object with none of them is read as a wrapper of a list of
    records; a first line of delimited text with none of them contains data, not names.
    columns: further names, of which the first line of delimited text may have one instead.
    Raises InvalidInput for a file that cannot be read or has another form, ConfigError if pyarrow is missing.
    """
    head = first_bytes(path)
    if head.startswith(PARQUET):
        yield from required_module("ragbandit.router.offline.logs.parquet", extra="replay").parquet_records(path)
        return
    for name, pattern in _OTHERS.items():
        if not ("dsjson" in name and "EventId" in keys) and re.match(pattern, head[:4096], re.DOTALL):
            remedy = "save it as CSV, Parquet or JSON Lines, plain or packed with gzip"
            remedy = "see docs/replay.md: `replay --log` reads dsjson, and converted text" if _VW in name else remedy
            raise InvalidInput(f"the file is {name}", field=str(path), remedy=remedy)
    text = head.decode("utf-16" if head[:2] in _UTF16 else "utf-8-sig", "replace")
    first, second = ([line.strip() for line in text.splitlines() if line.strip()] + ["", ""])[:2]
    if first == "{" or first.startswith("["):
        yield from _numbered(_document(path, keys=keys))
    elif first[:1] == "{" or second[:1] == "{" or not any(sign in first for sign in _DELIMITERS):
        yield from _objects(path, keys=keys)
    else:
        yield from _cells(path, heading=second if first.startswith("sep=") else first, keys=keys, others=columns)


def first_bytes(path: Path) -> bytes:
    """The first bytes of a file, unpacked; empty for a file that `lines` refuses with the reason."""
    try:
        with open_binary(path) as stream:
            return stream.read(1 << 16)
    except (OSError, EOFError, zlib.error):
        return b""


def _objects(path: Path, *, keys: Sequence[str]) -> Iterator[tuple[int, Parse]]:
    rows: Iterator[tuple[int, Parse]] = ((number, partial(parse_line, raw)) for number, raw in lines(path))
    start = list(islice(rows, 2))
    if len(start) == 1:  # it may be a document without line breaks
        with contextlib.suppress(InvalidInput):  # the parser of the line raises the error again
            start = list(_numbered(_listed(start[0][1](), keys=keys)))
    yield from chain(start, rows)


def _numbered(values: Iterable[Any]) -> Iterator[tuple[int, Parse]]:
    return ((number, partial(_object, value)) for number, value in enumerate(values, start=1))


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"is a {type(value).__name__}", remedy="write a list of JSON objects")
    return value


def _document(path: Path, *, keys: Sequence[str]) -> list[Any]:
    text, values, at = io.StringIO(), list[Any](), 0
    for line in _text_lines(path):
        if text.write(line) and text.tell() > _LARGEST:
            remedy = "write an object a line: jq -c '.[]' FILE"
            raise InvalidInput(f"this JSON has more than {_LARGEST >> 20} MiB", field=str(path), remedy=remedy)
    whole = text.getvalue().strip()
    try:
        while at < len(whole):
            value, at = DECODER.raw_decode(whole, at)
            values += _listed(value, keys=keys)
            while whole[at : at + 1].isspace():
                at += 1
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON: {error}", field=str(path), remedy="write a list of JSON objects") from error
    return values


def _listed(value: Any, *, keys: Sequence[str]) -> list[Any]:
    """The items of a list, or of the only list of objects in an object without `keys`; else a list of the value."""
    if not isinstance(value, dict):
        return value if isinstance(value, list) else [value]
    lists = [item for item in value.values() if isinstance(item, list) and item and isinstance(item[0], dict)]
    return [value] if any(key in value for key in keys) or len(lists) != 1 else lists[0]


def _cells(path: Path, *, heading: str, keys: Sequence[str], others: Sequence[str]) -> Iterator[tuple[int, Parse]]:
    """The records of delimited text. heading: the line that names the columns."""
    delimiter = max(_DELIMITERS, key=re.sub(r'"[^"]*"', "", heading).count)
    csv.field_size_limit(MAX_LINE)  # sets the limit of a cell for the whole process; the default is 131,072 characters
    rows = csv.reader(_text_lines(path), delimiter=delimiter, skipinitialspace=True, strict=True)
    columns, line = list[str](), 1
    try:
        for cells in rows:
            number, line = line, rows.line_num + 1
            if columns and any(cells):
                yield number, partial(_record, columns, cells)
            elif any(cells) and not cells[0].startswith("sep="):
                columns = _columns(cells, keys=keys, others=others, path=path)
    except csv.Error as error:
        remedy = 'put "..." around cells with delimiters, quotes or line breaks, and double the quotes in them'
        raise InvalidInput(f"this row cannot be read: {error}", field=f"{path}:{line}", remedy=remedy) from error


def _text_lines(path: Path) -> Iterator[str]:
    for number, raw in lines(path, blank=True):
        with locate_errors(path, line=number):
            yield from io.StringIO(decode_line(raw), newline="")


def _columns(cells: Sequence[str], *, keys: Sequence[str], others: Sequence[str], path: Path) -> list[str]:
    wanted = {plain_name(key): key for key in keys}
    names = [wanted.get(plain_name(cell), cell.strip()) for cell in cells]
    [(repeated, count)] = Counter(filter(None, names)).most_common(1) or [("", 0)]
    if count > 1:
        raise InvalidInput("this column occurs twice", field=f"{path} {repeated}", remedy="name every column once")
    if _OBD.issubset(names):
        remedy = "rename item_id to arm, click to reward and propensity_score to propensity, and number the rows as id"
        raise InvalidInput("the file is of the Open Bandit Dataset", field=str(path), remedy=remedy)
    if not {*names} & {*keys} and not {*map(plain_name, names)} & {*map(plain_name, others)}:
        remedy = f"rename a column: the first line must name the columns, and has {', '.join(names):.200}"
        raise InvalidInput("the file has no such column", field=f"{path} {keys[0]}", remedy=remedy)
    return names


def plain_name(name: str) -> str:
    """The name without signs and capitals, so that decisionId, Decision ID and decision_id are equal."""
    return re.sub(r"[\W_]", "", name).lower()


def _record(columns: Sequence[str], cells: Sequence[str]) -> dict[str, Any]:
    if any(cells[len(columns) :]):
        message = f"has {counted(len(cells), 'cell')} for {counted(len(columns), 'column')}"
        raise InvalidInput(message, remedy='put "..." around cells with delimiters')
    return {name: cell for name, cell in zip(columns, cells, strict=False) if name}


def nest_columns(entry: Mapping[str, Any], *, heads: Sequence[str], signs: str = ".") -> Mapping[str, Any]:
    """The entry, with columns such as pmf.a as members of objects. heads: names of objects. signs: separators."""
    members: dict[str, dict[str, Any]] = {}
    others = {}
    for column, cell in entry.items():
        head = next(
            (head for head in heads if column.startswith(head) and column[len(head) : -1][:1] in {*signs}), None
        )
        if head is None or head in entry:
            others[column] = cell
        else:
            members.setdefault(head, {})[column[len(head) + 1 :]] = cell
    return {**others, **members} if members else entry


def cell(entry: Mapping[str, Any], path: str) -> Any:
    """The value of a field: its name, or a dotted path into objects and lists, as user.id or scores.0.value.

    Names in the path may have dots themselves: attributes.gen_ai.evaluation.score.value.
    """
    return _at(entry, path.replace("[", ".").replace("]", "").split(".") if path not in entry else [path])


def _at(value: Any, parts: Sequence[str]) -> Any:
    """The value at a path; a name may be several parts joined by dots. The shortest first name with a value counts."""
    if not parts:
        return value
    if isinstance(value, list):
        is_index = parts[0].isdecimal() and int(parts[0]) < len(value)
        return _at(value[int(parts[0])], parts[1:]) if is_index else None
    if not isinstance(value, Mapping):
        return None
    ends = [end for end in range(1, len(parts) + 1) if ".".join(parts[:end]) in value]
    values = (_at(value[".".join(parts[:end])], parts[end:]) for end in ends)
    return next((found for found in values if found is not None), None)
