"""Waiting in tests: until something is so, and not for ever."""

import time


def until(seen, *, seconds=60.0):
    """What `seen` returns once that is true; fails after so many seconds."""
    give_up = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.01)
    return found
