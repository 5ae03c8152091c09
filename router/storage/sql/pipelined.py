"""Connections to PostgreSQL that send several statements in one round trip, together with BEGIN and COMMIT.

A statement of `send` is pending until its rows are read, SQLAlchemy runs another one or the transaction is committed.
Then all pending statements are sent in one pipeline.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row


@dataclass(slots=True)
class PipelinedStatement:
    """A statement; a call returns its rows, or raises psycopg's errors."""

    connection: "PipelinedConnection"
    statement: str
    values: Sequence[Any]
    #: result of the statement; None before it was sent
    rows: list[dict[str, Any]] | None = None

    def __call__(self) -> list[dict[str, Any]]:
        if self.rows is None:
            self.connection.send_all()
        assert self.rows is not None
        return self.rows


class PipelinedConnection(psycopg.Connection[Any]):
    """A connection in psycopg's autocommit mode: only BEGIN opens a transaction."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pending: list[PipelinedStatement] = []
        #: cursors to use again, since psycopg takes longer to make a cursor than to send a short statement
        self._cursors: list[psycopg.Cursor[dict[str, Any]]] = []

    def send(self, statement: str, values: Sequence[Any] = ()) -> PipelinedStatement:
        sent = PipelinedStatement(self, statement, values)
        self._pending.append(sent)
        return sent

    def send_all(self) -> None:
        """Send the pending statements, and read their results."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        cursors, self._cursors = self._cursors, []  # after an error the cursors are not used again
        while len(cursors) < len(pending):
            cursors.append(psycopg.Cursor(self, row_factory=dict_row))
        with self.pipeline() if len(pending) > 1 else nullcontext():
            for sent, cursor in zip(pending, cursors, strict=False):
                cursor.execute(sent.statement, sent.values or None)
        for sent, cursor in zip(pending, cursors, strict=False):
            sent.rows = [] if cursor.rownumber is None else cursor.fetchall()
        self._cursors = cursors

    def cursor(self, *args: Any, **options: Any) -> Any:
        self.send_all()
        return super().cursor(*args, **options)

    def commit(self) -> None:
        """Commit; pending statements are sent together with COMMIT. When this returns, all have succeeded."""
        if not self._pending:
            return super().commit()
        self.send("COMMIT")
        return self.send_all()

    def rollback(self) -> None:
        """Drop the pending statements, and roll back. If the connection is lost, the server rolls back."""
        self._pending.clear()
        if self.closed:
            return
        try:
            super().rollback()
        except psycopg.OperationalError:  # a pipeline broke, and the connection cannot leave it
            self.close()
