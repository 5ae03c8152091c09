"""Two watches of a process: that the database's path names the open file, and the heartbeat file of a worker."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from ragbandit.router.storage.sql.database import Database
from ragbandit.router.telemetry.routines import Routine
from ragbandit.shared.errors import ConfigError, StoreError

log = logging.getLogger("ragbandit.worker")

#: seconds between two touches of the heartbeat file
BEAT_S: Final = 5.0


@contextlib.contextmanager
def watch_store(database: Database, *, end: Callable[[], object]) -> Iterator[None]:
    """Call `end` each second if the database's path does not name the open file; then the block raises StoreError."""
    faults: list[StoreError] = []

    def look() -> None:
        try:
            database.check_file()
        except StoreError as error:
            if not faults:
                log.critical("%s", error, extra={"action": "store_lost"})
            faults.append(error)
            end()

    watch = Routine("compare the database's file with its path", look, every_s=1.0).start()
    try:
        yield
    finally:
        watch.close()
    if faults:
        raise faults[0]


@contextlib.contextmanager
def touch_heartbeat(file: Path | None) -> Iterator[None]:
    """Touch the file every BEAT_S seconds during the block, and remove it at the end. Raises ConfigError.

    The age of the file shows a supervisor whether the worker runs. Database and Redis are not tried, because a worker
    survives their outages. A worker whose event loop is blocked ends by itself (docs/operations.md).
    """
    if file is None:
        yield
        return
    try:
        file.touch()
    except OSError as error:
        remedy = "name a file in a writable folder"
        raise ConfigError(f"{file} cannot be written: {error.strerror}", field="heartbeat", remedy=remedy) from error

    def beat() -> None:
        with contextlib.suppress(OSError):  # for example a full disk: the next touch may succeed
            file.touch()

    beats = Routine("touch the heartbeat file", beat, every_s=BEAT_S).start()
    try:
        yield
    finally:
        beats.close()
        file.unlink(missing_ok=True)
