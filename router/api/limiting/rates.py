"""Rates: which one holds for a caller, and what a caller is told of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from limits import RateLimitItem, parse

from ragbandit.shared.types import Caller


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """What a caller is told of its limit."""

    limit: int
    remaining: int
    #: seconds until one more request fits than now
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
