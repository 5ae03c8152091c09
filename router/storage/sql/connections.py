"""Connections that stay open between their uses.

SQLAlchemy's pool and events take several times as long as a short transaction, so a connection is taken out of its pool
once, and the store keeps it. A connection is not kept if its server of PostgreSQL is going away or only reads, as after
a failover. Then all older connections are closed too, since they may lead to the same server, whose rows may be out of
date.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

import sqlalchemy
from sqlalchemy.exc import TimeoutError as PoolTimeout

#: maximum number of connections in use, and of open connections that wait for a use
LIMIT, KEPT = 16, 8
#: longest wait for a connection while LIMIT are in use, seconds
WAIT_S: Final = 30.0
#: Beginnings of the SQLSTATEs of a server of PostgreSQL that is going away, is not ready, or only reads. 25006 is the
#: reply to a write, also to SELECT ... FOR UPDATE.
_LEAVING: Final = ("08", "57P", "25006")
#: parameters that PostgreSQL 14 and later reports by itself; `on` if the session only reads
_READ_ONLY: Final = (b"in_hot_standby", b"default_transaction_read_only")


class Connection(sqlalchemy.Connection):
    """A connection of SQLAlchemy whose transactions the driver begins.

    The driver runs statements that are plain text. SQLAlchemy's statements join the driver's transaction.
    """

    def __init__(self, engine: sqlalchemy.Engine, *, generation: int = 0) -> None:
        super().__init__(engine)
        self.driver: Any = self.connection.dbapi_connection
        self.is_sqlite = engine.dialect.name == "sqlite"
        #: values of PRAGMA foreign_keys and secure_delete in SQLite
        self.foreign_keys = self.overwrites = False
        #: number of `Connections.close` calls before the connection was opened
        self.generation = generation

    def is_lost(self, error: BaseException | None) -> bool:
        """Whether the connection is closed, or its server is going away or only reads. Takes no round trip.

        error: exception that ended the use of the connection; may be caused by the driver's error
        """
        if self.is_sqlite:
            return False
        if self.driver.closed or any(state.startswith(_LEAVING) for state in _sqlstates(error)):
            return True
        return any(self.driver.pgconn.parameter_status(name) == b"on" for name in _READ_ONLY)

    def is_open(self) -> bool:
        """Whether the server of PostgreSQL has left the connection open. Takes no round trip."""
        try:
            for _ in range(2):  # the first call may read the server's last message, the second then reads the end
                self.driver.pgconn.consume_input()
        except self.dialect.loaded_dbapi.Error:
            return False
        return not self.driver.closed

    def end(self) -> None:
        """Commit the open transaction. Raises the driver's errors, and SQLAlchemy's."""
        if self.in_transaction():
            self.commit()
        else:
            self.driver.commit()

    def cancel(self) -> None:
        """Roll back, if a transaction is open. Raises as `end`."""
        if self.in_transaction():
            self.rollback()
        self.driver.rollback()


class Connections:
    """Connections of one database. Thread-safe."""

    def __init__(self, engine: sqlalchemy.Engine, *, limit: int = LIMIT) -> None:
        self._engine = engine
        # The connection that was used last has prepared the most statements, and has the newest pages in its cache.
        self._idle: deque[Connection] = deque()
        self._slots: SimpleQueue[None] = SimpleQueue()
        for _ in range(limit):
            self._slots.put(None)
        self._limit, self._generation = limit, 0

    def take(self) -> Connection:
        """A connection, until `give_back`. Raises PoolTimeout, the driver's errors, and SQLAlchemy's."""
        try:
            self._slots.get(timeout=WAIT_S)
        except Empty as error:
            raise PoolTimeout(f"all {self._limit} connections have been in use for {WAIT_S:g} s") from error
        try:
            while True:
                try:
                    connection = self._idle.pop()
                except IndexError:
                    return Connection(self._engine, generation=self._generation)
                if connection.is_sqlite or connection.is_open():
                    return connection
                connection.close()
        except BaseException:
            self._slots.put(None)
            raise

    def give_back(self, connection: Connection, *, error: BaseException | None = None) -> None:
        """Keep the connection, which has no transaction, for its next use. error: the exception that ended its use"""
        if connection.is_lost(error):
            self.discard(connection, error=error)
            return
        self._idle.append(connection)
        if len(self._idle) > KEPT:
            self._close_idle(kept=KEPT)
        if connection.generation != self._generation:
            self._close_idle()
        self._slots.put(None)

    def discard(self, connection: Connection, *, error: BaseException | None) -> None:
        """Close a connection. If its server is lost, also close all connections that are not newer."""
        if connection.is_lost(error) and connection.generation == self._generation:
            self.close()
        self._slots.put(None)
        with suppress(Exception):
            connection.close()

    def close(self) -> None:
        """Close all connections. Connections in use are closed when they are given back."""
        self._generation += 1
        self._close_idle()

    def _close_idle(self, *, kept: int = 0) -> None:
        with suppress(IndexError):  # another thread took the last connection
            while len(self._idle) > kept:
                self._idle.popleft().close()


def _sqlstates(error: BaseException | None) -> Iterator[str]:
    """SQLSTATEs of an error and of its causes, since SQLAlchemy and other code wrap the driver's errors."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield str(getattr(error, "sqlstate", None) or "")
        error = getattr(error, "orig", None) or error.__cause__ or error.__context__
