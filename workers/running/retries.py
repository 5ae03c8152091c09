"""Repeats work while the store fails."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ragbandit.shared.errors import SnapshotError, StoreError
from ragbandit.shared.model_servers.outbound import back_off

Reply = TypeVar("Reply")


def insist(
    work: Callable[[], Reply],
    *,
    seconds: float,
    ending: threading.Event,
    failed: Callable[[StoreError | SnapshotError], object] | None = None,
) -> Reply:
    """Call `work` until the store works, for at most `seconds`, and once more after `ending` is set."""
    give_up = time.monotonic() + seconds
    attempts = 0
    while True:
        last = ending.is_set() or time.monotonic() >= give_up
        try:
            return work()
        except (StoreError, SnapshotError) as error:
            if last:
                raise
            if failed is not None:
                failed(error)
        attempts += 1
        pause = back_off(attempts, base_s=0.5, longest_s=10.0)
        ending.wait(min(pause, max(0.0, give_up - time.monotonic())))
