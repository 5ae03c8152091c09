"""Connections to PostgreSQL that send several statements in one round trip, with BEGIN and COMMIT among them.

A statement of `send` waits until its rows are read, another statement runs or the transaction is committed. Then all
statements that wait are sent in one pipeline.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow, dict_row


class PipelinedConnection(psycopg.Connection[Any]):
    """A connection in psycopg's autocommit mode: only `begin` opens a transaction."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cursor_factory = _Cursor
        #: statements that wait, with their cursors and values
        self.unsent: list[tuple[psycopg.Cursor[DictRow], str, Sequence[Any]]] = []

    def begin(self, statement: str) -> None:
        """Begin a transaction together with its first statement. statement: BEGIN, with the transaction's mode."""
        self.unsent.clear()
        self.send(statement)

    def send(self, statement: str, values: Sequence[Any] = ()) -> Callable[[], list[DictRow]]:
        """Send a statement later. Returns a function that returns its rows, and raises psycopg's errors."""
        cursor = psycopg.Cursor(self, row_factory=dict_row)
        self.unsent.append((cursor, statement, values))

        @cache
        def rows() -> list[DictRow]:
            if cursor.pgresult is None:
                self.send_all()
            return [] if cursor.rownumber is None else cursor.fetchall()

        return rows

    def send_all(self, following: Callable[[], object] | None = None) -> None:
        """Send the statements that wait and read their results. following: executes one more in the same round trip."""
        unsent, self.unsent = self.unsent, []
        if len(unsent) + (following is not None) < 2:
            self._execute(unsent, following)
        else:
            with self.pipeline():
                self._execute(unsent, following)

    @staticmethod
    def _execute(
        unsent: Sequence[tuple[psycopg.Cursor[DictRow], str, Sequence[Any]]], following: Callable[[], object] | None
    ) -> None:
        for cursor, statement, values in unsent:
            cursor.execute(statement, values or None)
        if following is not None:
            following()

    def commit(self) -> None:
        """Commit; the statements that wait are sent with COMMIT, and have all succeeded when this returns."""
        if len(self.unsent) == 1 and self.pgconn.transaction_status == TransactionStatus.IDLE:
            self.unsent.clear()  # only BEGIN waits
        elif self.unsent:
            self.send("COMMIT")
            self.send_all()
        else:
            super().commit()

    def rollback(self) -> None:
        """Forget the statements that wait, and roll back; the server does it if the connection is lost."""
        self.unsent.clear()
        if not self.closed:
            super().rollback()

    def cursor(self, name: str = "", **options: Any) -> Any:
        """A cursor for SQLAlchemy. name: name of a cursor on the server."""
        if name:
            self.send_all()
        return super().cursor(name, **options)


class _Cursor(psycopg.Cursor[Any]):
    """A cursor whose statement is sent with the statements that wait."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> "_Cursor":
        connection = cast(PipelinedConnection, self.connection)
        if not params:  # such a text may contain several statements, which a pipeline refuses
            connection.send_all()
        run = super().execute
        connection.send_all(lambda: run(query, params, **options))
        return self

    def executemany(self, *args: Any, **options: Any) -> None:
        cast(PipelinedConnection, self.connection).send_all()
        super().executemany(*args, **options)
