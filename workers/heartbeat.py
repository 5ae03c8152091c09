"""Heartbeat: a file whose age tells a supervisor that a worker has loaded everything and still runs.

It asks neither SQL nor Redis: a worker outlasts both, and to restart it while one of them is down would only cost its
models' loading. A worker that blocks its event loop ends by itself (docs/operations.md).
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ragbandit.shared.errors import ConfigError

__all__ = ["BEAT_S", "beating"]

#: how often the file is touched, seconds
BEAT_S: Final = 5.0


@contextlib.contextmanager
def beating(file: Path | None) -> Iterator[None]:
    """Touch the file every BEAT_S within the block, and remove it at its end; None does nothing. Raises ConfigError."""
    if file is None:
        yield
        return
    try:
        file.touch()
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}", field="heartbeat", remedy="name a file in a writable folder"
        ) from error
    stop = threading.Event()
    thread = threading.Thread(target=_beat, args=(file, stop), name="ragbandit-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(BEAT_S)
        file.unlink(missing_ok=True)


def _beat(file: Path, stop: threading.Event) -> None:
    while not stop.wait(BEAT_S):
        with contextlib.suppress(OSError):  # a full disk: the next one may succeed
            file.touch()
