"""The rows of a sheet as lines, with the names of columns, the text of merged cells, and marks of what is hidden."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from typing import Final, NamedTuple

from ragbandit.additions.office.package import MAX_LABEL, Package

HIDDEN_ROW: Final = "[hidden row]"
HIDDEN_COLUMN: Final = "[hidden column]"


class Cell(NamedTuple):
    text: str
    begin: int  #: its column, or the first one of the merged cell
    is_text: bool  #: False for numbers, dates, true and false
    last_row: int = 0  #: the last row that the merged cell covers
    is_wide: bool = False  #: the merged cell has several columns
    is_new: bool = True  #: the row is the first one of the merged cell


class Area(NamedTuple):
    """A merged cell. Rows and columns count from 1."""

    first_row: int
    first_column: int
    last_row: int
    last_column: int


class Rows:
    """Makes a line of each row of a sheet, which come in order.

    The header is the first row with two or more cells, if all of them are texts. The next row belongs to the header if
    all its cells are below merged header cells that cover several columns, and are texts, or numbers in a row without a
    label of its own. A merged cell is one cell, whose text belongs to each row and column that it covers.
    """

    def __init__(self, *, areas: Iterable[Area], package: Package) -> None:
        self._package = package
        self._areas: dict[int, list[Area]] = defaultdict(list)
        for area in areas:
            self._areas[area.first_row].append(area)
        #: column -> the merged cell that covers it in the last row; without cells of more than MAX_LABEL characters
        self._merged: dict[int, Cell] = {}
        #: column -> its name; None before the header, {} without one
        self._header: dict[int, str] | None = None
        #: the last header row so far, if further header rows may follow; else None
        self._last_of_header: Mapping[int, Cell] | None = None
        #: columns that are hidden and have been read
        self.hidden_columns: set[int] = set()

    @property
    def merged_columns(self) -> int:
        """Number of columns of the last row that are in merged cells."""
        return len(self._merged)

    def line(self, number: int, cells: Mapping[int, Cell], *, hidden: Set[int]) -> str:
        """The line of a row; "" if nothing begins in it. hidden: columns that are hidden."""
        row = self._with_merged(number, cells)
        beginnings = {cell.begin for cell in row.values() if cell.is_new}
        if not beginnings:
            return ""
        self.hidden_columns |= hidden & row.keys()
        if len(beginnings) == len({(cell.begin, cell.is_new) for cell in row.values()}) == 1 < len(row):
            return next(iter(row.values())).text  # a title over several columns
        if self._header and not self._extend_header(row):
            named = (_marks(at, hidden) + _with_name(self._header.get(at, ""), row[at].text) for at in row)
            return self._package.join("; ", named)
        if self._header is None and len(beginnings) > 1:
            is_header = all(cell.is_text for cell in row.values())
            self._header = {column: cell.text[:MAX_LABEL] for column, cell in row.items()} if is_header else {}
            self._last_of_header = row if is_header else None
        return self._package.join(" | ", (_marks(at, hidden) + row[at].text for at in row))

    def _with_merged(self, number: int, cells: Mapping[int, Cell]) -> dict[int, Cell]:
        """The cells of a row with a text, in order, including merged cells."""
        merged = {
            column: cell._replace(is_new=False) for column, cell in self._merged.items() if cell.last_row >= number
        }
        row = dict(cells)
        for area in self._areas.pop(number, ()):
            begin = area.first_column
            label = row.pop(begin, None)
            columns = range(begin, area.last_column + 1)
            for column in columns:
                row.pop(column, None)
                merged.pop(column, None)
            if label and label.text:
                is_wide = len(columns) > 1
                label = label._replace(last_row=area.last_row, is_wide=is_wide)
                merged |= dict.fromkeys(columns if len(label.text) <= MAX_LABEL else [begin], label)
        self._merged = {column: cell for column, cell in merged.items() if len(cell.text) <= MAX_LABEL}
        row |= merged
        return {column: row[column] for column in sorted(row) if row[column].text}

    def _extend_header(self, row: Mapping[int, Cell]) -> bool:
        """Add the texts of the row to the names of the columns if it belongs to the header. Returns whether it does."""
        last, self._last_of_header = self._last_of_header, None
        if last is None or self._header is None:
            return False
        own = {column: cell for column, cell in row.items() if cell.is_new}
        wide = {column for column, cell in last.items() if cell.is_wide}
        are_years = own.keys() == wide < last.keys()  # years or other numbers, in a row without a label of its own
        if not own.keys() <= wide or not (are_years or all(cell.is_text for cell in own.values())):
            return False
        for column, cell in own.items():
            self._header[column] = _join_names(self._header.get(column, ""), cell.text)
        self._last_of_header = row
        return True


def _join_names(name: str, text: str) -> str:
    return f"{name} {text}"[:MAX_LABEL] if name else text


def _with_name(name: str, text: str) -> str:
    return f"{name}: {text}" if name else text


def _marks(column: int, hidden: Set[int]) -> str:
    return f"{HIDDEN_COLUMN} " if column in hidden else ""
