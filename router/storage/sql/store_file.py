"""The file of a SQLite database: how it is made and opened, and whether its path still names it.

SQLite goes on with an open file that was moved or deleted. So the file that was opened first is remembered, and a path
that names another one, or none, ends all work with it: what is written there is in no store that anybody opens again.
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

#: readers compare the file with its path so often, seconds; writers do before every commit
LOOK_S: Final = 1.0
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def is_damaged(error: object) -> bool:
    """Whether SQLite says that the file is malformed, or no database."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


class StoreFile:
    """One file. read_only: it is on a disk, or of a user, that lets nobody write here."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only = path.absolute(), read_only
        #: device and inode of the file that was opened first
        self._identity: tuple[int, int] | None = None
        self._looked = 0.0
        self._immutable = False

    def make(self) -> None:
        """Make an empty file if there is none, which only its owner can read; SQLite's other files get its mode."""
        try:
            private_folder(self.path.parent)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except OSError as error:
            message = f"{self.path} cannot be made: {error.strerror}"
            remedy = "set database_url, or data_dir which it follows, to a place that can be written"
            raise StoreError(message, field="database_url", remedy=remedy) from error

    def connect(self, parameters: Mapping[str, Any]) -> sqlite3.Connection:
        """A connection to the file, which is never made here. Raises sqlite3.Error."""
        if not self.read_only:
            return self._opened("mode=rw", parameters)
        if not self._immutable:
            connection = self._opened("mode=ro", parameters)
            try:
                connection.execute("SELECT 1 FROM sqlite_master").close()
                return connection
            except sqlite3.OperationalError:  # WAL mode needs a -shm file, which SQLite cannot make here
                connection.close()
            self._immutable = True
            unseen = self.path.with_name(f"{self.path.name}-wal")
            if unseen.exists() and unseen.stat().st_size:
                log.warning("%s cannot be opened here: the rows that only it has are not seen; copy both", unseen)
        return self._opened("immutable=1", parameters)

    def _opened(self, how: str, parameters: Mapping[str, Any]) -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(f"{self.path.as_uri()}?{how}", **{**parameters, "uri": True})
        return connection

    def check(self, *, every_s: float = 0.0) -> None:
        """Raises StoreError if the path names another file than first, or none. every_s: age of the last look."""
        now = time.monotonic()
        if every_s and (self._identity is None or now < self._looked + every_s):
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
        self._looked = now
