"""Retries: which replies of HTTP are worth another attempt, and the pause before it."""

import email.utils
import math
import random
import time
from typing import Final

#: statuses below 500 that another attempt may change: timeout, conflict of locks, too early, too many requests
_RETRYABLE: Final = frozenset({408, 409, 425, 429})


def is_retryable(status: int) -> bool:
    """True if another attempt at an HTTP call that ended with this status may go better."""
    return status in _RETRYABLE or status >= 500


def retry_after_s(header: str | None) -> float:
    """Seconds that a Retry-After header asks for, written as a number or a date; 0 for none that can be read."""
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return seconds if 0.0 < seconds < math.inf else 0.0


def back_off(attempts: int, *, base_s: float, longest_s: float) -> float:
    """Seconds to wait after so many failed attempts, at least one: base_s, doubled with every further attempt."""
    return min(longest_s, base_s * 2.0 ** min(attempts - 1, 1000))  # 2.0 ** 1024 overflows


def pause_before_retry(
    attempts: int, *, base_s: float, longest_s: float, asked_s: float = 0.0, left_s: float | None = None
) -> float | None:
    """Seconds to wait before the next attempt; None if there is to be none.

    attempts: made so far, at least 1. The pause is random between 0 and `back_off`, added to asked_s, the server's
    Retry-After. There is no next attempt where the server asks for more than longest_s, or where the pause does not
    fit into left_s, the time left (None: no limit).
    Source: M. Brooker 2015, "Exponential Backoff and Jitter" (full jitter): callers that failed together come back
    apart.
    """
    if asked_s > longest_s:
        return None
    most = back_off(attempts, base_s=base_s, longest_s=longest_s)
    pause = asked_s + random.uniform(0.0, most)  # noqa: S311 - no secret
    return pause if left_s is None or pause < left_s else None
