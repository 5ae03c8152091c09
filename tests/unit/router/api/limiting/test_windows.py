"""Sliding windows: what is left of a rate, when more is, and which rate holds for a caller."""

import asyncio
import time
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits import parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from ragbandit.router.api.limiting.windows import Allowance, Window, rate_of
from ragbandit.router.types import Caller


def fits_after(window: Window, seconds: float) -> bool:
    """Whether one more request fits so much later, by counting as the library does."""
    shift = window.current_s - window.period_s
    if seconds < shift:
        weight = window.previous * max(0.0, window.previous_s - seconds) / window.period_s
        return floor(weight) + window.current < window.limit
    if seconds >= window.current_s:
        return True
    return floor(window.current * (window.current_s - seconds) / window.period_s) < window.limit


@given(
    limit=st.integers(1, 50),
    period_s=st.sampled_from([1.0, 10.0, 60.0]),
    previous=st.integers(0, 50),
    current=st.integers(0, 50),
    gone=st.floats(0, 1, exclude_max=True),
)
def test_after_the_wait_one_more_fits(limit, period_s, previous, current, gone):
    """After `wait_s` one more request fits, and shortly before it did not."""
    left = period_s * (1 - gone)
    window = Window(
        limit=limit,
        period_s=period_s,
        previous=min(previous, limit),
        previous_s=left if previous else 0.0,
        current=min(current, limit),
        current_s=left + period_s if current else 0.0,
    )
    wait_s = window.wait_s()
    assert fits_after(window, wait_s + 1e-6 * period_s)
    assert wait_s < 1e-3 * period_s or not fits_after(window, wait_s - 1e-3 * period_s)
    assert window.remaining() == 0 or wait_s == 0  # at the very edge nothing fits yet, and the wait is none


def test_the_library_counts_so():
    """The library's own count of a window is ours: what it says is left, and that it refuses what is over."""
    asyncio.run(_counted_by_the_library())


async def _counted_by_the_library():
    storage, item = MemoryStorage(), parse("5/hour")
    limiter = SlidingWindowCounterRateLimiter(storage)
    for left in (4, 3, 2, 1, 0):
        assert await limiter.hit(item, "k")
        previous, previous_s, current, current_s = await storage.get_sliding_window(item.key_for("k"), 3600)
        window = Window(
            limit=5,
            period_s=3600,
            previous=previous,
            previous_s=previous_s,
            current=current,
            current_s=current_s,
        )
        assert window.remaining() == left == (await limiter.get_window_stats(item, "k")).remaining
    assert not await limiter.hit(item, "k")
    assert 0 < window.wait_s() <= 3600
    assert window.reset_s() <= 7200
    assert time.time() + 3600 >= (await limiter.get_window_stats(item, "k")).reset_time


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, b"0s"), (0.2, b"1s"), (59.1, b"1m0s"), (360, b"6m0s"), (3601, b"1h0m1s")]
)
def test_times_are_written_as_clients_read_them(seconds, text):
    """The time to the reset is written as OpenAI writes it."""
    assert dict(Allowance(limit=1, remaining=0, reset_s=seconds).headers())[b"x-ratelimit-reset-requests"] == text


def test_which_rate_holds():
    """The scope of the key comes before the rate of its role, that before the default; none of them is no limit."""
    rates = {"default": "1/minute", "app": "2/minute", "open": "3/minute"}
    held = {
        "scope": rate_of(Caller(key="k", role="app", scopes={"rate": "9/second"}), rates=rates),
        "role": rate_of(Caller(key="k", role="app"), rates=rates),
        "default": rate_of(Caller(key="k", role="rater"), rates=rates),
        "open": rate_of(Caller(), rates=rates),
    }
    assert {name: item.amount for name, item in held.items()} == {"scope": 9, "role": 2, "default": 1, "open": 3}
    assert rate_of(Caller(), rates={"default": "7/hour"}).amount == 7
    assert rate_of(Caller(), rates={"app": "7/hour"}) is None
    assert rate_of(Caller(key="k", role="app"), rates={}) is None
