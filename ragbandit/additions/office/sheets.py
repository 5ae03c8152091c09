"""Text of .xlsx files, which openpyxl reads: a line for each row, with the name of the sheet and of each column."""

import datetime
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ragbandit.additions.office.package import MAX_CHARACTERS, Package, opened_package
from ragbandit.shared.errors import InvalidInput, required_module

#: maximum number of rows of a sheet in Excel, and of cells of a document, empty ones included
_MAX_ROWS: Final = 1_048_576
_MAX_CELLS: Final = 20_000_000
#: how often the same part may be opened: openpyxl opens a sheet first to find its size
_MAX_OPENINGS: Final = 2
#: how often elements of texts, and elements of other parts than sheets, count: openpyxl makes objects of them
_COSTS: Final = dict.fromkeys(("si", "is", "r", "rPh", "t"), 3)
_COST: Final = 10
#: elements with rows or texts, which openpyxl reads one by one
_ONE_BY_ONE: Final = frozenset({"sheetData", "sst"})


def xlsx(path: Path) -> tuple[str, str]:
    """(title or "", text) of a .xlsx file. The text of a sheet begins with its name.

    The header is the first row with two or more cells, if all of them are texts. Each further row is a line, "header:
    cell; header: cell". Rows above the header, and rows of a sheet without one, are "cell | cell". Formulas have the
    values that were stored with them. Hidden sheets are not read. Raises InvalidInput.
    """
    library = required_module("openpyxl.reader.excel", extra="documents")
    with opened_package(path) as package:
        package.main()
        try:
            # openpyxl warns about features of Excel that do not matter here.
            with warnings.catch_warnings(action="ignore"), _opened_book(path, package=package, library=library) as book:
                return package.title, _text(book)
        except InvalidInput:
            raise
        except Exception as error:  # openpyxl raises errors of any kind for a broken file
            raise InvalidInput(f"the document cannot be read: {type(error).__name__}: {error}") from error


class _CheckedArchive(zipfile.ZipFile):
    """A document for openpyxl, which opens parts by their relationships: each one is checked before it is read."""

    def __init__(self, path: Path, *, package: Package) -> None:
        super().__init__(path)
        self._package = package
        self._openings: Counter[str] = Counter()
        self._checked: set[tuple[str, int]] = set()

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
        self._openings[name] += 1
        if self._openings[name] > _MAX_OPENINGS:
            raise InvalidInput(f"the document is damaged: it has {name} more than once")
        if (name, cost) not in self._checked:
            self._checked.add((name, cost))
            self._package.check(name, of=_ONE_BY_ONE, costs=_COSTS, cost=cost)


@contextmanager
def _opened_book(path: Path, *, package: Package, library: Any) -> Iterator[Any]:
    """What openpyxl reads of the document, without its charts and without its copies of other documents."""
    reader = library.ExcelReader(path, read_only=True, data_only=True, keep_links=False)
    reader.archive.close()
    with _CheckedArchive(path, package=package) as reader.archive:
        reader.read_chartsheet = lambda _sheet, _relationship: None
        reader.read()
        yield reader.wb


def _text(book: Any) -> str:
    """The text of all visible sheets. Raises InvalidInput once its lines exceed MAX_CHARACTERS.

    A small file can have a large text, since all cells may refer to one long text.
    """
    lines: list[str] = []
    size = 0
    for line in _book_lines(book):
        size += len(line) + 1
        if size > MAX_CHARACTERS:
            raise InvalidInput(f"the document has more than {MAX_CHARACTERS} characters")
        lines.append(line)
    return "\n".join(lines).strip()


def _book_lines(book: Any) -> Iterator[str]:
    cells = 0
    for sheet in book.worksheets:
        if sheet.sheet_state != "visible":
            continue
        sheet.reset_dimensions()  # they may be wrong
        yield sheet.title
        header: list[str] | None = None
        for number, row in enumerate(sheet.iter_rows(values_only=True), start=1):
            cells += len(row)
            if number > _MAX_ROWS or cells > _MAX_CELLS:
                raise InvalidInput(f"the document has more than {_MAX_ROWS} rows, or {_MAX_CELLS} cells")
            values = [_shown(value) for value in row]
            found = [value for value in values if value]
            if not found:
                continue
            if header:
                yield _with_header(values, header=header)
                continue
            yield " | ".join(found)
            if header is None and len(found) > 1:
                header = values if all(isinstance(cell, str | None) for cell in row) else []
        yield ""


def _with_header(values: Sequence[str], *, header: Sequence[str]) -> str:
    names = [*header, *[""] * (len(values) - len(header))]
    pairs = zip(names, values, strict=False)
    return "; ".join(f"{name}: {value}" if name else value for name, value in pairs if value)


def _shown(value: object) -> str:
    """A cell as a reader sees it, as far as its number format does not matter."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(" ")
    return " ".join(str(value).split())
