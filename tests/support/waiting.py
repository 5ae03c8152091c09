"""Waiting in tests: until something is so, and not for ever."""

import threading
import time
from pathlib import Path


def until(seen, *, seconds=60.0):
    """Wait until `seen` returns a true value, and return it; fails after the timeout."""
    give_up = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.01)
    return found


def at_once(*calls):
    """Make all calls together, a thread each, and wait for their ends."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def runs(pid):
    """Whether the process has not ended; one whose parent has not asked how it ended may still be listed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
