import asyncio
import time

import pytest

from ragbandit.strategies.outbound import RateLimit


def timed(coroutine):
    async def measured():
        began = time.monotonic()
        await coroutine
        return time.monotonic() - began

    return asyncio.run(asyncio.wait_for(measured(), 10))


def test_a_minutes_worth_is_there_at_once():
    """What fits into a minute is taken without a wait."""
    limit = RateLimit(600)
    assert timed(limit.take(600)) < 0.1


def test_what_is_beyond_waits():
    """What is beyond a minute's worth waits until it has flowed in: 3 units at 10 a second."""
    limit = RateLimit(600)

    async def two():
        await limit.take(600)
        await limit.take(3)

    assert 0.28 < timed(two()) < 0.8


def test_first_come_first_served():
    """Callers are served in the order in which they came."""
    limit, served = RateLimit(600), []

    async def take(number):
        await limit.take(1)
        served.append(number)

    async def several():
        await limit.take(600)
        await asyncio.gather(*(take(number) for number in range(4)))

    assert timed(several()) > 0.35
    assert served == [0, 1, 2, 3]


def test_what_is_given_back_is_there():
    """Units that were not used shorten the wait of who comes next, and never exceed a minute's worth."""
    limit = RateLimit(60)

    async def used_less():
        await limit.take(60)
        limit.give_back(50)
        await limit.take(50)
        limit.give_back(500)

    assert timed(used_less()) < 0.1
    assert limit._level == 60


def test_a_cancelled_wait_takes_nothing():
    """Who is cancelled in the wait leaves its units to the others."""
    limit = RateLimit(60)

    async def cancelled():
        await limit.take(60)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(limit.take(30), 0.05)

    timed(cancelled())
    assert -0.01 < limit._level < 1


def test_more_than_a_minutes_worth_is_let_through():
    """A single amount above the limit counts as a minute's worth: else it would wait for ever. None is no limit."""
    assert timed(RateLimit(None).take(1e9)) < 0.1
    assert timed(RateLimit(60).take(10_000)) < 0.1
