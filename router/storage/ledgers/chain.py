"""The sha256 chain over a ledger's updates: change, remove or add one row of the past, and every later link differs.

link(n) = sha256(link(n - 1) + row n), the row as canonical JSON; before the first row the link is "". The append moves
the end of the chain in its own transaction. Where it has not (an import), `extend` reads
the rows that are missing.
"""

import hashlib
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from sqlalchemy import Connection, Double, select, update

from ragbandit.router.storage.archive.reading import update_rows
from ragbandit.router.storage.rows.conversion import Row, canonical
from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import chains, updates
from ragbandit.shared.types import PolicyLabel

#: the chain of no update at all: (last_seq, link)
START: Final = (0, "")
#: updates that are read at once
PAGE = 5000

#: the columns of a row -> whether they hold floats
_COLUMNS: Final = {column.name: isinstance(column.type, Double) for column in updates.columns}


def link(previous: str, row: Row) -> str:
    """The next link, from the one before and a row of `updates`, before it is written or as it is read.

    A column that is NULL is left out: one that a later release adds changes no link of a row without it.
    """
    # A database gives floats back where whole numbers were written, and SQLite gives 0.0 for -0.0.
    values = {
        name: float(value) + 0.0 if is_float else value
        for name, is_float in _COLUMNS.items()
        if (value := row.get(name)) is not None
    }
    return hashlib.sha256(canonical([previous, values]).encode()).hexdigest()


def advance(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Move the end of the chain over these new rows of one ledger, if it ends right before them; else leave it."""
    label, end = rows[0]["policy"], rows[0]["seq"] - 1
    stored = connection.execute(select(chains.c.last_seq, chains.c.sha256).where(chains.c.policy == label)).first()
    if (0 if stored is None else stored.last_seq) == end:
        last = START[1] if stored is None else stored.sha256
        for row in rows:
            last = link(last, row)
        _move(connection, label, before=None if stored is None else end, to=(rows[-1]["seq"], last))


def _move(connection: Connection, label: str, *, before: int | None, to: tuple[int, str]) -> None:
    """Write the end of the chain, unless somebody else has moved it since it was read."""
    if before is None:
        insert_new(connection, chains, [{"policy": label, "last_seq": to[0], "sha256": to[1]}], key="policy")
    else:
        here = chains.c.policy == label, chains.c.last_seq == before
        connection.execute(update(chains).where(*here).values(last_seq=to[0], sha256=to[1]))


class Chain:
    """The chain of one ledger."""

    def __init__(self, database: Database, *, label: PolicyLabel) -> None:
        self.database = database
        self.label = label

    def end(self) -> tuple[int, str]:
        """The last update that is in the chain, and its link; START where there is none."""
        with self.database.read() as connection:
            row = connection.execute(
                select(chains.c.last_seq, chains.c.sha256).where(chains.c.policy == self.label)
            ).first()
        return START if row is None else (int(row.last_seq), str(row.sha256))

    def at(self, seq: int, *, start: tuple[int, str] = START) -> str:
        """The link of update `seq`, made from the rows after `start`, (last_seq, link) of an earlier one.

        The ledger must have that update.
        """
        last = start[1]
        for row in self.rows(after=start[0], upto=seq):
            last = link(last, row)
        return last

    def extend(self) -> None:
        """Bring the chain to the ledger's end, a page in a transaction."""
        kept, last = self.end()
        rows = self.rows(after=kept, upto=None)
        while page := list(islice(rows, PAGE)):
            before = kept or None
            for row in page:
                kept, last = row["seq"], link(last, row)
            with self.database.write() as connection:
                _move(connection, self.label, before=before, to=(kept, last))

    def rows(self, *, after: int, upto: int | None) -> Iterator[Row]:
        """The updates' rows with seq > after and <= upto, in order, archived or not."""
        return update_rows(self.database, label=self.label, after=after, upto=upto, page=PAGE)
