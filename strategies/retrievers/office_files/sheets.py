"""Text of .xlsx files, which openpyxl reads: a line for each row, with the name of the sheet and of each column."""

import datetime
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ragbandit.shared.errors import InvalidInput, required_module
from ragbandit.strategies.retrievers.office_files.package import MAX_CHARACTERS, opened_package

#: maximum number of rows of a sheet in Excel, and of cells of a document, empty ones included
_MAX_ROWS: Final = 1_048_576
_MAX_CELLS: Final = 20_000_000


def xlsx(path: Path) -> tuple[str, str]:
    """(title or "", text) of a .xlsx file. The text of a sheet begins with its name.

    The header is the first row with two or more cells, if all of them are texts. Each further row is a line, "header:
    cell; header: cell". Rows above the header, and rows of a sheet without one, are "cell | cell". Formulas have the
    values that were stored with them. Hidden sheets are not read. Raises InvalidInput.
    """
    library = required_module("openpyxl", extra="documents")
    with opened_package(path) as package:
        package.main()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about features of Excel that do not matter here
                book = library.load_workbook(path, read_only=True, data_only=True)
                try:
                    return package.title, _text(book)
                finally:
                    book.close()
        except InvalidInput:
            raise
        except Exception as error:  # openpyxl raises errors of any kind for a broken file
            raise InvalidInput(f"the document cannot be read: {type(error).__name__}: {error}") from error


def _text(book: Any) -> str:
    """The lines of all visible sheets, which are counted one by one: every cell may show the same long text."""
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
