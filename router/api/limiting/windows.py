"""Sliding windows of a rate limit: how much of one is left, and when more is.

A window counts the requests of the current period whole, and those of the period before as far as it reaches back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor
from typing import Final

from limits import RateLimitItem, parse

from ragbandit.router.types import Caller

__all__ = ["Allowance", "Window", "rate_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The two counts of a sliding window, as the library `limits` keeps them."""

    #: requests that fit into it
    limit: int
    #: length, seconds
    period_s: float
    #: requests of the period before, and seconds until none of them counts
    previous: int
    previous_s: float
    #: requests of the current period, and seconds until none of them counts: up to two periods
    current: int
    current_s: float

    def remaining(self) -> int:
        """Requests that fit now."""
        return max(0, self.limit - floor(self.previous * self.previous_s / self.period_s) - self.current)

    def wait_s(self) -> float:
        """Seconds until one more request fits; 0 if it does now."""
        if self.remaining():
            return 0.0
        room = self.limit - self.current
        if room > 0:  # as the period before moves out of the window
            return max(0.0, self.previous_s - room * self.period_s / self.previous)
        until_next = max(0.0, self.current_s - self.period_s)
        return until_next + self.period_s * (1.0 - self.limit / self.current)

    def reset_s(self) -> float:
        """Seconds until nothing counts any more."""
        return self.current_s if self.current else self.previous_s if self.previous else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """What a caller is told of its limit."""

    limit: int
    remaining: int
    reset_s: float

    def headers(self) -> list[tuple[bytes, bytes]]:
        """By the names that OpenAI's clients know; the time as "6m0s"."""
        return [
            (b"x-ratelimit-limit-requests", b"%d" % self.limit),
            (b"x-ratelimit-remaining-requests", b"%d" % self.remaining),
            (b"x-ratelimit-reset-requests", _duration(ceil(self.reset_s)).encode()),
        ]


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{seconds}s"


_PARSED: Final[dict[str, RateLimitItem]] = {}


def rate_of(caller: Caller, *, rates: Mapping[str, str]) -> RateLimitItem | None:
    """The rate that holds for a caller; None: none does.

    That of its key (the scope "rate"), else of its role, else "default"; without keys "open", else "default".
    """
    own = caller.scopes.get("rate") if caller.scopes else None
    text = own if isinstance(own, str) else rates.get(caller.role or "open", rates.get("default"))
    if text is None:
        return None
    found = _PARSED.get(text)
    if found is None:
        if len(_PARSED) >= 1000:
            _PARSED.clear()
        found = _PARSED[text] = parse(text)
    return found
