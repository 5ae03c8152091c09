"""Retries of HTTP calls: which statuses are worth another attempt, and how long a server asks to wait."""

import email.utils
import time
from typing import Final

__all__ = ["is_retryable", "retry_after_s"]

#: statuses below 500 that another attempt may change: timeout, conflict of locks, too early, too many requests
_RETRYABLE: Final = frozenset({408, 409, 425, 429})


def is_retryable(status: int, *, code: object = None) -> bool:
    """True if another attempt at an HTTP call that ended with this status may go better.

    code: of an OpenAI-compatible server's error. A quota that is used up has the status of a rate limit, and stays.
    """
    return code != "insufficient_quota" and (status in _RETRYABLE or status >= 500)


def retry_after_s(header: str | None) -> float:
    """Seconds that a Retry-After header asks for, written as a number or a date; 0 if it asks for none."""
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return 0.0
    return seconds if seconds > 0 else 0.0
