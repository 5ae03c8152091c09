"""Waiting in tests: until something is so, and not for ever."""

import threading
import time
from pathlib import Path


def until(seen, *, seconds=60.0):
    """What `seen` returns once that is true; fails after so many seconds."""
    give_up = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.01)
    return found


def at_once(*work):
    """Calls all of these at once, each in a thread of its own, and waits for them."""
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def runs(pid):
    """Whether the process has not ended; one whose parent has not asked how it ended may still be listed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
