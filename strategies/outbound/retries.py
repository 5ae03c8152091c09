"""Retries of a call to another machine: the pause before the next attempt.

The failures that are worth another attempt, and the reading of a Retry-After header, stand in `router.http_retries`
(`is_retryable`, `retry_after_s`): the router's own calls follow the same rule.
"""

import random

__all__ = ["pause_before_retry"]


def pause_before_retry(
    attempts: int, *, base_s: float, longest_s: float, asked_s: float = 0.0, left_s: float | None = None
) -> float | None:
    """Seconds to wait before the next attempt; None if there is to be none.

    attempts: made so far, at least 1. The pause is random between 0 and base_s, which doubles with every further
    attempt up to longest_s, added to asked_s, the server's Retry-After. There is no next attempt where the server asks
    for more than longest_s, or where the pause does not fit into left_s, the time left (None: no limit).
    Source: M. Brooker 2015, "Exponential Backoff and Jitter" (full jitter): callers that failed together come back
    apart.
    """
    if asked_s > longest_s:
        return None
    most = min(longest_s, base_s * 2.0 ** min(attempts - 1, 1000))  # 2.0 ** 1024 overflows
    pause = asked_s + random.uniform(0.0, most)  # noqa: S311 - no secret
    return pause if left_s is None or pause < left_s else None
