"""Mapping of tables: a row as a value of a dataclass; the field of a name is the column of that name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqlalchemy import RowMapping, Table

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = RowMapping | Mapping[str, Any]
Value = TypeVar("Value", bound="DataclassInstance")


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How a field is written into its column, where it does not stand there as it is, and read again."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any] = _as_it_is


class UnreadableFieldError(ValueError):
    """A column whose value cannot be read. field: its name."""

    def __init__(self, field: str, error: Exception) -> None:
        super().__init__(f"{field}: {error}")
        self.field = field


class TableRows(Generic[Value]):
    """Rows of a table as values of a dataclass, in the columns that have the names of its fields."""

    def __init__(self, table: Table, kind: type[Value], *, without: tuple[str, ...] = (), **forms: Form) -> None:
        """without: fields whose columns the caller fills and reads. forms: of the fields that are no plain values."""
        self._kind = kind
        self._forms = forms
        #: the columns, in the order of the fields
        self.names = tuple(field.name for field in fields(kind) if field.name in {*table.columns.keys()} - {*without})

    def row(self, value: Value) -> dict[str, Any]:
        """The columns of this value."""
        columns = {name: getattr(value, name) for name in self.names}
        for name, form in self._forms.items():
            columns[name] = form.write(columns[name])
        return columns

    def value(self, row: Row, **others: Any) -> Value:
        """The value of a row; others: the fields that are not in this table. Raises UnreadableFieldError."""
        return self.read([row[name] for name in self.names], **others)

    def read(self, values: Sequence[Any], **others: Any) -> Value:
        """The value of these columns, in the order of `names`."""
        known = dict(zip(self.names, values, strict=True))
        for name, form in self._forms.items():
            try:
                known[name] = form.read(known[name])
            except (ValueError, TypeError) as error:
                raise UnreadableFieldError(name, error) from error
        return self._kind(**known, **others)
