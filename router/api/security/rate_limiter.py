"""Rate limiter: counts the requests of each API key in a sliding window, over all processes, in Redis. If Redis cannot
be reached, each process counts in its own memory, and one request in RETRY_S seconds tries Redis again.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Final

from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ragbandit.shared.errors import TooManyRequests
from ragbandit.shared.types import Caller

log = logging.getLogger("ragbandit.api")

WAIT_S: Final = 0.5
#: time between two attempts to reach a lost Redis, seconds
RETRY_S: Final = 2.0
_PREFIX: Final = "ragbandit:rate"
_FAILURES: Final = (RedisError, OSError, TimeoutError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    limit: int
    remaining: int
    #: seconds until one more request is allowed
    reset_s: float

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers that OpenAI's clients read. The time looks like "6m0s"."""
        return [
            (b"x-ratelimit-limit-requests", b"%d" % self.limit),
            (b"x-ratelimit-remaining-requests", b"%d" % self.remaining),
            (b"x-ratelimit-reset-requests", _duration(ceil(self.reset_s)).encode()),
        ]


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{seconds}s"


class RateLimited(TooManyRequests):
    """This API key has sent more requests than its rate allows."""

    allowance: Allowance


_parse_rate = lru_cache(maxsize=1000)(parse)


def rate_of(caller: Caller, *, rates: Mapping[str, str]) -> RateLimitItem | None:
    """The caller's limit: the key's scope "rate", else `rates[role]` ("open" without a key) or `rates["default"]`."""
    rate = caller.scopes.get("rate") if caller.scopes else None
    if not isinstance(rate, str):
        rate = rates.get(caller.role or "open", rates.get("default"))
    return None if rate is None else _parse_rate(rate)


class RateLimiter:
    """The limiter of one process, on one event loop. rates: the setting `server.rate_limits`."""

    def __init__(self, redis_url: str, *, rates: Mapping[str, str]) -> None:
        scheme, _, address = redis_url.partition("://")
        url = f"async+{'redis+unix' if scheme == 'unix' else scheme}://{address}"
        options = {"socket_timeout": WAIT_S, "socket_connect_timeout": WAIT_S, "retry": Retry(NoBackoff(), 1)}
        self._storage = RedisStorage(url, implementation="redispy", key_prefix=_PREFIX, **options)  # type: ignore[arg-type] # redis-py's
        self._redis = SlidingWindowCounterRateLimiter(self._storage)
        self._memory = SlidingWindowCounterRateLimiter(MemoryStorage())
        self.rates = rates
        #: whether Redis cannot be reached, so that this process counts in its memory
        self.is_lost = False
        self._retry_at = 0.0
        #: requests since the start that were refused, by role
        self.refused: dict[str, int] = {}

    async def take(self, caller: Caller) -> Allowance | None:
        """Count a request. Returns the state of the caller's limit, or None without a limit. Raises RateLimited."""
        item = rate_of(caller, rates=self.rates)
        if item is None:
            return None
        fits, allowance = await self._count(item, caller.key or "open")
        if not fits:
            raise self._refusal(item, caller=caller, allowance=allowance)
        return allowance

    async def close(self) -> None:
        await self._storage.bridge.get_connection().aclose()  # type: ignore[attr-defined] # redis-py's

    async def _count(self, item: RateLimitItem, name: str) -> tuple[bool, Allowance]:
        """Count a request, unless the limit is reached. Returns (whether it was counted, state of the limit)."""
        if not self.is_lost or time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + RETRY_S
            try:
                counted = await _count_in(self._redis, item, name)
            except _FAILURES as error:
                self._set_lost(lost=True, reason=str(error))
            else:
                self._set_lost(lost=False)
                return counted
        return await _count_in(self._memory, item, name)

    def _refusal(self, item: RateLimitItem, *, caller: Caller, allowance: Allowance) -> RateLimited:
        role = caller.role or "open"
        self.refused[role] = self.refused.get(role, 0) + 1
        sender = f"the API key {caller.key}" if caller.key else "all callers without keys"
        wait_s = max(0.001, allowance.reset_s)
        error = RateLimited(
            f"more than {item.amount} requests in {item.get_expiry()} s came from {sender}",
            remedy=f"wait {wait_s:.1f} s; server.rate_limits sets the limit, or the key's own scope `rate`",
            retry_after_s=wait_s,
        )
        error.allowance = allowance
        return error

    def _set_lost(self, *, lost: bool, reason: str = "") -> None:
        if lost and not self.is_lost:
            message = "rates are counted by each process for itself: Redis cannot be reached, or refuses scripts"
            log.warning(message, extra={"action": "limit", "reason": reason})
        elif self.is_lost and not lost:
            log.info("rates are counted in Redis again", extra={"action": "limit"})
        self.is_lost = lost


async def _count_in(counter: SlidingWindowCounterRateLimiter, item: RateLimitItem, name: str) -> tuple[bool, Allowance]:
    fits = await counter.hit(item, name)
    window = await counter.get_window_stats(item, name)
    reset_s = max(0.0, window.reset_time - time.time())
    return fits, Allowance(limit=item.amount, remaining=window.remaining, reset_s=reset_s)
