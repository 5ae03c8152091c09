"""Creates and opens the file of a SQLite database, and checks that the path still leads to this file.

SQLite continues to write to an open file that was moved or deleted, and these rows would be lost. So the process
remembers the file that it opened first, and stops if the path leads to another file, or to none.
"""

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ragbandit.shared.errors import StoreError
from ragbandit.shared.files import private_folder

log = logging.getLogger("ragbandit.store")

#: time between two checks by readers, seconds; writers check before every commit
LOOK_S: Final = 1.0
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def is_damaged(error: object) -> bool:
    """Whether this is SQLite's error for a file that is damaged or not a database."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


class StoreFile:
    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only = path.absolute(), read_only
        #: device and inode of the file that was opened first
        self._identity: tuple[int, int] | None = None
        self._checked_at = 0.0
        self._immutable = False

    def make(self) -> None:
        """Create a missing file, readable only by its owner. SQLite creates its other files with the same mode."""
        try:
            private_folder(self.path.parent)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except OSError as error:
            message = f"{self.path} cannot be made: {error.strerror}"
            remedy = "set database_url, or data_dir which it follows, to a place that can be written"
            raise StoreError(message, field="database_url", remedy=remedy) from error

    def connect(self, parameters: Mapping[str, Any]) -> sqlite3.Connection:
        """Open a connection to the existing file. Raises sqlite3.Error."""
        if not self.read_only:
            return self._open("mode=rw", parameters)
        if not self._immutable:
            connection = self._open("mode=ro", parameters)
            try:
                connection.execute("SELECT 1 FROM sqlite_master").close()
                return connection
            except sqlite3.OperationalError:  # WAL mode needs a -shm file, which SQLite cannot create here
                connection.close()
            self._immutable = True
            wal = self.path.with_name(f"{self.path.name}-wal")
            if wal.exists() and wal.stat().st_size:
                log.warning("%s cannot be opened here: rows that only this file has are missing; copy both files", wal)
        return self._open("immutable=1", parameters)

    def _open(self, mode: str, parameters: Mapping[str, Any]) -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(f"{self.path.as_uri()}?{mode}", **{**parameters, "uri": True})
        return connection

    def check(self, *, every_s: float = 0.0) -> None:
        """Raises StoreError if the path leads to another file, or to none. every_s: shortest time between checks."""
        now = time.monotonic()
        if every_s and (self._identity is None or now < self._checked_at + every_s):
            return
        try:
            status = os.stat(self.path)
            identity, fault = (status.st_dev, status.st_ino), "is another file than the one that this process opened"
        except OSError as error:
            identity, fault = None, f"is not there any more: {error.strerror}"
        if self._identity is None:
            self._identity = identity
        if identity is None or identity != self._identity:
            ends = "nothing was written, and a service ends"
            remedy = f"{ends}; put the folder back or restore a backup, then start the service again"
            raise StoreError(f"the database {self.path} {fault}", remedy=remedy, lasting=True)
        self._checked_at = now
