"""Shared texts: values that nearly every row repeats stand once in `shared_texts`; a row holds "#" and their number.

Which columns may hold such a reference is in COLUMNS. A text is written in a transaction of its own before the rows
that name it, and is never changed or deleted: a reference that can be read has its text. The table is capped; what
finds no place in it stays in its row, as every value of an older release does. A value that begins with "#" itself,
which an imported log may bring, is always shared: nothing else in these columns begins with it.
"""

import hashlib
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Connection, Integer, Table, case, cast, func, select

from ragbandit.router.errors import StoreError
from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, outcomes, shared_texts

__all__ = ["COLUMNS", "MOST", "SharedTexts", "full", "texts_of", "whole"]

#: the columns that may hold references, by table
COLUMNS: Final[Mapping[Table, tuple[str, ...]]] = {decisions: ("arms", "encoder_hash"), outcomes: ("made_by",)}
#: texts of a store; processes that add at the same moment may go a few beyond it
MOST: Final = 1000
#: characters of a text that is worth a reference, and of one that is kept in the memory of every process
_SHORTEST, _LONGEST = 8, 4000
_MARK: Final = "#"


class SharedTexts:
    """The shared texts of one database, as far as this process has met them; safe to use from several threads."""

    def __init__(self, database: Database) -> None:
        self.database = database
        #: text -> its reference; committed ones alone
        self._known: dict[str, str] = {}
        self._full = False

    def shorten(self, table: Table, rows: Sequence[MutableMapping[str, Any]]) -> None:
        """Put references in place of texts, in rows that are about to be written. Not within a write transaction."""
        names, known = COLUMNS[table], self._known
        missing = {row[name] for row in rows for name in names if row[name] not in known}
        wanted = {text for text in missing if text.startswith(_MARK)}
        if not self._full:
            wanted |= {text for text in missing if _SHORTEST <= len(text) <= _LONGEST}
        if wanted:
            self._add(wanted)
        for row in rows:
            for name in names:
                row[name] = known.get(row[name], row[name])

    def _add(self, texts: Iterable[str]) -> None:
        by_sha256 = {hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(): text for text in texts}
        here = shared_texts.c.sha256.in_(by_sha256)
        with self.database.write() as connection:
            count = connection.execute(select(func.count()).select_from(shared_texts)).scalar_one()
            there = set(connection.execute(select(shared_texts.c.sha256).where(here)).scalars())
            # In one order, so that two processes with the same texts never wait for each other in a circle.
            new = [{"sha256": key, "text": by_sha256[key]} for key in sorted(by_sha256.keys() - there)]
            fitting = [row for at, row in enumerate(new) if count + at < MOST or row["text"].startswith(_MARK)]
            insert_new(connection, shared_texts, fitting, key="sha256")
            found = connection.execute(select(shared_texts.c.sha256, shared_texts.c.number).where(here)).all()
        self._known |= {by_sha256[row.sha256]: f"{_MARK}{row.number}" for row in found}
        self._full = count >= MOST


def full(column: Column[Any]) -> ColumnElement[Any]:
    """A column that may hold a reference, as its text; any other column as it is."""
    if column.name not in COLUMNS.get(column.table, ()):
        return column
    number = cast(func.substr(column, 2), Integer)
    text = select(shared_texts.c.text).where(shared_texts.c.number == number).scalar_subquery()
    return case((func.substr(column, 1, 1) == _MARK, text), else_=column).label(column.name)


@cache
def whole(table: Table) -> tuple[ColumnElement[Any], ...]:
    """All columns of a table, to select: references as their texts."""
    return tuple(full(column) for column in table.columns)


def texts_of(connection: Connection, values: Sequence[str]) -> list[str]:
    """What `full` gives for these values of a column, for many of them at once. Raises StoreError."""
    marked = {value for value in values if value.startswith(_MARK)}
    if not marked:
        return list(values)
    named = shared_texts.c.number.in_([int(value[1:]) for value in marked if value[1:].isdecimal()])
    rows = connection.execute(select(shared_texts.c.number, shared_texts.c.text).where(named)).all()
    texts = {f"{_MARK}{row.number}": row.text for row in rows}
    if missing := marked - texts.keys():
        raise StoreError(f"there is no shared text {min(missing)}", remedy="see: ragbandit verify")
    return [texts.get(value, value) for value in values]
