"""Rate limiter: requests of each API key in a sliding window, counted in Redis by all processes together.

A process takes the right to several requests at once, one in a hundred of the rate, and spends it without asking
again: a rate that is high enough for the time of a count to matter is then counted in few steps. So a process may let
through 1 % more or less than the rate; rates below 200 are exact.

Where Redis cannot be reached each process counts in its own memory, until a look in the background finds it again.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
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

#: longest wait for Redis, seconds
WAIT_S: Final = 0.5
#: from one look for a lost Redis to the next, seconds
LOOK_S: Final = 2.0
#: most requests that a process takes the right to at once
MOST_AT_ONCE: Final = 100
#: keys whose counts are remembered here; all are forgotten beyond, Redis has them
MOST_KEYS: Final = 10_000
_PREFIX: Final = "ragbandit:rate"
_FAILURES: Final = (RedisError, OSError, TimeoutError)


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


class RateLimited(TooManyRequests):
    """This API key has sent more requests than its rate."""

    allowance: Allowance


_PARSED: Final[dict[str, RateLimitItem]] = {}


def rate_of(caller: Caller, *, rates: Mapping[str, str]) -> RateLimitItem | None:
    """The rate that holds for a caller; None: none does.

    That of its key (the scope "rate"), else of its role, else "default"; without keys "open", else "default".
    """
    own = caller.scopes.get("rate") if caller.scopes else None
    text = own if isinstance(own, str) else rates.get(caller.role or "open", rates.get("default"))
    if text is None:
        return None
    rate = _PARSED.get(text)
    if rate is None:
        if len(_PARSED) >= 1000:
            _PARSED.clear()
        rate = _PARSED[text] = parse(text)
    return rate


class _RateBucket:
    """One key's requests, as this process knows them."""

    __slots__ = ("in_hand", "item", "lock", "remaining", "reset_at", "until", "wait_until")

    def __init__(self, item: RateLimitItem) -> None:
        self.item = item
        self.lock = asyncio.Lock()
        #: requests that may come through without asking, and until when
        self.in_hand = 0
        self.until = 0.0
        #: what is left beside those, when one more fits, and before when none does
        self.remaining = 0
        self.reset_at = 0.0
        self.wait_until = 0.0

    def allowance(self, now: float) -> Allowance:
        left, reset_s = self.remaining + self.in_hand, max(0.0, self.reset_at - now)
        return Allowance(limit=self.item.amount, remaining=left, reset_s=reset_s)


class RateLimiter:
    """The limiter of one process, on one event loop. rates: as the setting `server.rate_limits`."""

    def __init__(self, redis_url: str, *, rates: Mapping[str, str]) -> None:
        scheme, _, rest = redis_url.partition("://")
        url = f"async+{'redis+unix' if scheme == 'unix' else scheme}://{rest}"
        given = {"socket_timeout": WAIT_S, "socket_connect_timeout": WAIT_S, "retry": Retry(NoBackoff(), 1)}
        self._redis = RedisStorage(url, implementation="redispy", key_prefix=_PREFIX, **given)  # type: ignore[arg-type] # redis-py's
        self._memory = MemoryStorage()
        self._rates = rates
        self._buckets: dict[str, _RateBucket] = {}
        self._lost_at: float | None = None
        self._looked_at = 0.0
        self._looking: asyncio.Task[None] | None = None
        #: requests that were refused, by role, and those counted in memory, for want of Redis; since the start
        self.refused: dict[str, int] = {}
        self.in_memory = 0

    @property
    def is_lost(self) -> bool:
        """Whether Redis cannot be reached, and each process counts for itself."""
        return self._lost_at is not None

    async def take(self, caller: Caller) -> Allowance | None:
        """Count a request; what is left, None where no rate holds. Raises RateLimited."""
        item = rate_of(caller, rates=self._rates)
        if item is None:
            return None
        bucket = self._bucket(caller.key or "open", item=item)
        now = time.monotonic()
        if self.is_lost:
            self.in_memory += 1
            self._look(now)
        if now >= bucket.until:
            bucket.in_hand = 0
        if bucket.in_hand <= 0:
            async with bucket.lock:  # all who come meanwhile wait for one answer
                now = time.monotonic()
                if bucket.in_hand <= 0 and now >= bucket.wait_until:
                    await self._refill(bucket, name=caller.key or "open")
                    now = time.monotonic()
                return self._spend(bucket, caller=caller, now=now)
        return self._spend(bucket, caller=caller, now=now)

    def _spend(self, bucket: _RateBucket, *, caller: Caller, now: float) -> Allowance:
        if bucket.in_hand <= 0:
            raise self._refusal(bucket, caller=caller, now=now)
        bucket.in_hand -= 1
        return bucket.allowance(now)

    async def close(self) -> None:
        """Close the connections."""
        if self._looking is not None:
            self._looking.cancel()
        await self._redis.bridge.get_connection().aclose()  # type: ignore[attr-defined] # redis-py's

    def _bucket(self, name: str, *, item: RateLimitItem) -> _RateBucket:
        bucket = self._buckets.get(name)
        if bucket is None or bucket.item is not item:
            if len(self._buckets) >= MOST_KEYS:
                self._buckets.clear()
            bucket = self._buckets[name] = _RateBucket(item)
        return bucket

    async def _refill(self, bucket: _RateBucket, *, name: str) -> None:
        if not self.is_lost:
            try:
                await self._ask(self._redis, bucket, name=name)
                return
            except _FAILURES as error:
                self._lose(error)
                self.in_memory += 1
        await self._ask(self._memory, bucket, name=name)

    async def _ask(self, storage: RedisStorage | MemoryStorage, bucket: _RateBucket, *, name: str) -> None:
        item, counter = bucket.item, SlidingWindowCounterRateLimiter(storage)
        for wanted in sorted({max(1, min(MOST_AT_ONCE, item.amount // 100)), 1}, reverse=True):
            if await counter.hit(item, name, cost=wanted):
                taken = wanted
                break
        else:
            taken = 0
        window = await counter.get_window_stats(item, name)
        now = time.monotonic()
        bucket.in_hand, bucket.until = taken, now + item.get_expiry()
        bucket.remaining, bucket.reset_at = window.remaining, now + max(0.0, window.reset_time - time.time())
        # Redis counts whole milliseconds; a refused key is not asked about again before it may succeed.
        bucket.wait_until = bucket.reset_at if not taken else 0.0

    def _refusal(self, bucket: _RateBucket, *, caller: Caller, now: float) -> RateLimited:
        role = caller.role or "open"
        self.refused[role] = self.refused.get(role, 0) + 1
        rate = f"{bucket.item.amount} requests in {bucket.item.get_expiry()} s"
        who = f"the API key {caller.key}" if caller.key else "all who use this service without keys"
        wait_s = max(0.001, bucket.wait_until - now)
        error = RateLimited(
            f"more than {rate} came from {who}",
            remedy=f"wait {wait_s:.1f} s; server.rate_limits, or the scope rate of the key, says how many are allowed",
            retry_after_s=wait_s,
        )
        error.allowance = bucket.allowance(now)
        return error

    def _lose(self, error: Exception) -> None:
        self._looked_at = time.monotonic()
        if self._lost_at is None:
            self._lost_at = self._looked_at
            log.warning(
                "rates are counted by each process for itself: Redis cannot be reached",
                extra={"action": "limit", "reason": str(error)},
            )

    def _look(self, now: float) -> None:
        """Look for Redis in the background: no request waits for one that is down."""
        if now < self._looked_at + LOOK_S or (self._looking is not None and not self._looking.done()):
            return
        self._looked_at = now
        self._looking = asyncio.get_running_loop().create_task(self._find())

    async def _find(self) -> None:
        if not await self._redis.check() or self._lost_at is None:
            return
        outage_s, self._lost_at = time.monotonic() - self._lost_at, None
        for bucket in self._buckets.values():
            bucket.wait_until = 0.0  # as this process had counted alone
        log.info("rates are counted in Redis again", extra={"action": "limit", "outage_s": round(outage_s, 1)})
