"""Connections to PostgreSQL that send several statements in one round trip, with BEGIN and COMMIT among them.

A statement of `send` waits until its rows are read, SQLAlchemy runs another one or the transaction is committed. Then
all statements that wait are sent in one pipeline.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row


@dataclass(slots=True)
class Sent:
    """A statement; a call returns its rows, or raises psycopg's errors."""

    connection: "PipelinedConnection"
    cursor: psycopg.Cursor[dict[str, Any]]
    statement: str
    values: Sequence[Any]
    rows: list[dict[str, Any]] | None = None

    def __call__(self) -> list[dict[str, Any]]:
        if self.cursor.pgresult is None:
            self.connection.send_all()
        if self.rows is None:
            self.rows = [] if self.cursor.rownumber is None else self.cursor.fetchall()
        return self.rows


class PipelinedConnection(psycopg.Connection[Any]):
    """A connection in psycopg's autocommit mode: only BEGIN opens a transaction."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting: list[Sent] = []

    def send(self, statement: str, values: Sequence[Any] = ()) -> Sent:
        sent = Sent(self, psycopg.Cursor(self, row_factory=dict_row), statement, values)
        self._waiting.append(sent)
        return sent

    def send_all(self) -> None:
        """Send the statements that wait, and read their results."""
        waiting, self._waiting = self._waiting, []
        with self.pipeline() if len(waiting) > 1 else nullcontext():
            for sent in waiting:
                sent.cursor.execute(sent.statement, sent.values or None)

    def cursor(self, *args: Any, **options: Any) -> Any:
        self.send_all()
        return super().cursor(*args, **options)

    def commit(self) -> None:
        """Commit; the statements that wait are sent with COMMIT, and have all succeeded when this returns."""
        if not self._waiting:
            return super().commit()
        self.send("COMMIT")
        return self.send_all()

    def rollback(self) -> None:
        """Forget the statements that wait, and roll back; the server does it if the connection is lost."""
        self._waiting.clear()
        if self.closed:
            return
        try:
            super().rollback()
        except psycopg.OperationalError:  # a pipeline broke, and the connection cannot leave it
            self.close()
