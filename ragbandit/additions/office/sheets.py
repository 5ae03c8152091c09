"""Text of workbooks of Excel, which openpyxl reads: a line for each row, with the names of its sheet and columns."""

import datetime
import logging
import re
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from ragbandit.additions.office.documents import part_lines, related_lines
from ragbandit.additions.office.formulas import Formulas, UnstoredFormula
from ragbandit.additions.office.package import MAX_LABEL, Package, open_package
from ragbandit.additions.office.percentages import as_percentage
from ragbandit.additions.office.rows import HIDDEN_COLUMN, HIDDEN_ROW, Area, Cell, Rows
from ragbandit.shared.errors import InvalidInput, required_module

#: maximum number of rows and columns of a sheet in Excel, and of cells of a document, empty ones included
_MAX_ROWS: Final = 1_048_576
_MAX_COLUMNS: Final = 16_384
_MAX_CELLS: Final = 20_000_000
#: maximum number of merged cells of a sheet
_MAX_AREAS: Final = 200_000
#: weight of an element of texts, or of parts other than sheets: openpyxl makes objects of them
_COSTS: Final = dict.fromkeys(("si", "is", "r", "rPh", "t"), 3)
_COST: Final = 10
#: elements with rows or texts, which openpyxl reads one by one, and elements with merged cells
_ONE_BY_ONE: Final = frozenset({"sheetData", "sst", "mergeCells"})
_MERGED: Final = frozenset({"mergeCells"})
_AREA: Final = re.compile(r"([A-Z]{1,3})([0-9]{1,7}):([A-Z]{1,3})([0-9]{1,7})")
_HIDDEN_SHEET: Final = "[hidden sheet]"
_TRUE: Final = ("1", "true", "on")
#: maximum number of sheets that a warning names
_MAX_NAMES: Final = 5

log = logging.getLogger("ragbandit.documents")


def xlsx(path: Path) -> tuple[str, str]:
    """(title or "", text) of a workbook. The text of a sheet begins with its name; its comments and charts follow.

    Each row below the header is a line, "header: cell; header: cell". Rows above the header, and rows of a sheet
    without one, are "cell | cell". `Rows` says what a header is. Percentages are shown as their formats do, and
    formulas by their stored values. Hidden sheets, rows and columns, and formulas without a stored value, are marked,
    and a warning names them. Raises InvalidInput.
    """
    library = required_module("openpyxl.reader.excel", extra="documents")
    with open_package(path) as package:
        package.main_part()
        try:
            # openpyxl warns about features of Excel that do not matter here.
            with warnings.catch_warnings(action="ignore"), _open_book(path, package=package, library=library) as book:
                title, text = package.title, package.join("\n", book.lines())
        except InvalidInput:
            raise
        except Exception as error:  # openpyxl raises errors of any kind for a broken file
            raise InvalidInput(f"the document cannot be read: {type(error).__name__}: {error}") from error
    for what, sheets in book.warnings.items():
        names = ", ".join(repr(name) for name in [*sheets][:_MAX_NAMES])
        more = f" and {len(sheets) - _MAX_NAMES} more" if len(sheets) > _MAX_NAMES else ""
        log.warning("%s: %s in sheet %s%s", path.name, what, names, more)
    return title, text


class _CheckedArchive(zipfile.ZipFile):
    """A document for openpyxl, which opens parts by their relationships. Each part is checked before it is read."""

    def __init__(self, path: Path, *, package: Package) -> None:
        super().__init__(path)
        self._package = package
        self._opened: set[str] = set()
        #: name of a sheet's part -> its merged cells
        self.areas: dict[str, list[Area]] = {}

    def open(self, name: Any, *args: Any, **kwargs: Any) -> Any:
        """Open a part to be read piece by piece: a sheet or the shared texts."""
        self._check(name, cost=1)
        return super().open(name, *args, **kwargs)

    def read(self, name: Any, pwd: bytes | None = None) -> bytes:
        """Read a part that becomes one tree of objects."""
        self._check(name, cost=_COST)
        with super().open(name, pwd=pwd) as part:
            return part.read()

    def _check(self, name: str, *, cost: int) -> None:
        if name in self._opened:
            raise InvalidInput(f"the document is damaged: it has {name} more than once")
        self._opened.add(name)
        elements = self._package.read_within_limits(name, of=_ONE_BY_ONE, kept=_MERGED, costs=_COSTS, cost=cost)
        areas = self.areas[name] = []
        cells = 0
        for area in filter(None, (_parse_area(each.get("ref", "")) for each in elements)):
            areas.append(area)
            cells += area.last_column - area.first_column
            if len(areas) > _MAX_AREAS or cells > _MAX_CELLS:
                raise InvalidInput(f"{name} has more than {_MAX_AREAS} merged cells, or they cover too many columns")


def _parse_area(text: str) -> Area | None:
    match = _AREA.fullmatch(text)
    if match is None:
        return None
    first, last = (
        reduce(lambda number, letter: number * 26 + ord(letter) - 64, letters, 0) for letters in (match[1], match[3])
    )
    rows = int(match[2]), int(match[4])
    return Area(first_row=rows[0], first_column=first, last_row=rows[1], last_column=min(last, _MAX_COLUMNS))


class _Book:
    """The lines of a workbook, and the warnings about its sheets."""

    def __init__(self, reader: Any, *, package: Package) -> None:
        self._reader, self._package = reader, package
        self._library = required_module("openpyxl.worksheet._reader", extra="documents")
        self._cell_class = required_module("openpyxl.cell.read_only", extra="documents").ReadOnlyCell
        self._sheet = SimpleNamespace(parent=reader.wb)
        self._cells = 0
        #: number of a style -> its number format
        self._formats: dict[int, str] = {}
        #: long value of a cell -> its text, stored once, because all cells may have the same long text
        self._long: dict[str, str] = {}
        #: text of a warning -> names of the sheets that it is about
        self.warnings: dict[str, dict[str, None]] = defaultdict(dict)

    def lines(self) -> Iterator[str]:
        for sheet, link in self._reader.parser.find_sheets():
            if link.target not in self._package.names:
                continue
            mark = ""
            if sheet.state != "visible":
                self._warn("hidden sheets", mark=_HIDDEN_SHEET, sheet=sheet.name)
                mark = f"{_HIDDEN_SHEET} "
            rows = () if "chartsheet" in link.Type else self._row_lines(sheet.name, part=link.target)
            for line in chain([sheet.name], rows, self._related_lines(link.target)):
                yield mark + line
            yield ""

    def _related_lines(self, part: str) -> Iterator[str]:
        """The lines of a sheet's comments, texts in shapes, and charts."""
        yield from related_lines(self._package, part, kinds=("comments",))
        for each in self._package.relationships(part):
            if each.kind == "drawing":
                yield from part_lines(self._package, each.target, containers=frozenset({"wsDr"}))

    def _warn(self, what: str, *, mark: str, sheet: str) -> None:
        self.warnings[f"{what} are read, marked {mark},"][sheet] = None

    def _row_lines(self, sheet: str, *, part: str) -> Iterator[str]:
        with self._reader.archive.open(part) as source:
            rows = Rows(areas=self._reader.archive.areas[part], package=self._package)
            parser = self._make_parser(source)
            columns: set[int] | None = None
            for number, read in parser.parse():
                if columns is None:
                    columns = _hidden_columns(parser.column_dimensions)
                attributes = parser.row_dimensions.pop(str(number), {})
                width = max((cell["column"] for cell in read), default=0)
                self._cells += max(width, rows.merged_columns)
                if number > _MAX_ROWS or self._cells > _MAX_CELLS:
                    raise InvalidInput(f"the document has more than {_MAX_ROWS} rows, or {_MAX_CELLS} cells")
                cells = {cell["column"]: self._read_cell(cell) for cell in read if cell["value"] is not None}
                if not (line := rows.line(number, cells, hidden=columns)):
                    continue
                if _is_hidden(attributes, size="ht"):
                    self._warn("hidden rows", mark=HIDDEN_ROW, sheet=sheet)
                    line = f"{HIDDEN_ROW} {line}"
                if any(isinstance(cell["value"], UnstoredFormula) for cell in read):
                    self._warn("formulas without a stored value", mark="[formula: =...]", sheet=sheet)
                yield line
            if rows.hidden_columns:
                self._warn("hidden columns", mark=HIDDEN_COLUMN, sheet=sheet)

    def _make_parser(self, source: Any) -> Any:
        """A parser of openpyxl for a sheet. A cell without a stored value has its formula as the value."""
        book = self._reader.wb
        parser = self._library.WorkSheetParser(
            source,
            self._reader.shared_strings,
            data_only=True,
            epoch=book.epoch,
            date_formats=book._date_formats,  # noqa: SLF001
            timedelta_formats=book._timedelta_formats,  # noqa: SLF001
        )
        formulas, parse_cell = Formulas(), parser.parse_cell
        parser.parse_cell = lambda element: formulas.add_formula(parse_cell(element), element=element)
        return parser

    def _read_cell(self, cell: dict[str, Any]) -> Cell:
        value, style = cell["value"], cell["style_id"]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        text = as_percentage(value, code=self._number_format(style)) if is_number and style else None
        if isinstance(value, str) and len(value) > MAX_LABEL:
            text = self._long[value] = self._long.get(value) or _cell_text(value)
        return Cell(
            text=_cell_text(value) if text is None else text, begin=cell["column"], is_text=isinstance(value, str)
        )

    def _number_format(self, style: int) -> str:
        """The number format of a style; "" without one."""
        if style not in self._formats:
            cell = self._cell_class(self._sheet, row=1, column=1, value=None, style_id=style)
            try:
                self._formats[style] = cell.number_format
            except LookupError:  # there is no such style
                self._formats[style] = ""
        return self._formats[style]


def _hidden_columns(dimensions: dict[str, dict[str, str]]) -> set[int]:
    spans = sorted(
        (int(each["min"]), int(each.get("max", each["min"])))
        for each in dimensions.values()
        if _is_hidden(each, size="width")
    )
    columns: set[int] = set()
    begin = 1
    for first, last in spans:
        columns.update(range(max(first, begin), min(last, _MAX_COLUMNS) + 1))
        begin = max(begin, last + 1)
    return columns


def _is_hidden(attributes: dict[str, str], *, size: str) -> bool:
    """Whether a row or column is marked as hidden, or its size is 0. size: attribute with its height or width."""
    return attributes.get("hidden") in _TRUE or attributes.get(size) in ("0", "0.0")


@contextmanager
def _open_book(path: Path, *, package: Package, library: Any) -> Iterator[_Book]:
    """The workbook without its copies of other documents. A sheet is read when `_Book.lines` reaches it."""
    reader = library.ExcelReader(path, read_only=True, data_only=True, keep_links=False)
    reader.archive.close()
    with _CheckedArchive(path, package=package) as reader.archive:
        reader.read_worksheets = lambda: None
        reader.read()
        yield _Book(reader, package=package)


def _cell_text(value: object) -> str:
    """The text of a cell's value. Its number format is ignored."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(" ")
    return " ".join(str(value).split())
