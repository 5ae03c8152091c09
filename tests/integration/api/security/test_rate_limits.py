"""Rate limits over HTTP: by API key, shared by processes through Redis, and counted in memory while it is down."""

import asyncio
import time
from pathlib import Path

import pytest

from ragbandit.router.api.security import rate_limiter
from ragbandit.router.api.security.rate_limiter import RateLimited, RateLimiter
from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.redis_server import RedisServer
from ragbandit.shared.types import Caller
from tests.support.servers.http_service import QUESTION, refused
from tests.support.servers.tcp_proxy import TcpProxy


def asked(http):
    return http.post("/v1/route", json={"question": QUESTION})


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Replies of Redis may take 5 seconds, since a busy machine is not an outage."""
    monkeypatch.setattr(rate_limiter, "WAIT_S", 5.0)


def test_a_key_over_its_rate(keyed, redis_client, redis_server):
    """Beyond the rate a key gets 429 with Retry-After and the three headers; another key and the probes do not."""
    world = keyed(redis_url=redis_server, server={"rate_limits": {"app": "3/hour"}})
    first, second = world.client(), world.client()
    for left in (2, 1, 0):
        reply = asked(first)
        assert reply.status_code == 200
        assert reply.headers["x-ratelimit-limit-requests"] == "3"
        assert reply.headers["x-ratelimit-remaining-requests"] == str(left)
    reply = asked(first)
    error = refused(reply, 429, "TOO_MANY_REQUESTS")
    assert "3 requests in 3600 s" in error["message"]
    assert 1 <= int(reply.headers["retry-after"]) <= 7200
    assert reply.headers["x-ratelimit-remaining-requests"] == "0"
    assert reply.headers["x-ratelimit-reset-requests"].endswith("s")
    assert asked(second).status_code == 200
    assert world.service.http.get("/health").status_code == 200
    assert "x-ratelimit-limit-requests" not in world.client("reader").get("/v1/status").headers
    metrics = world.client("reader").get("/metrics").text
    assert 'ragbandit_rate_limited_total{role="app"} 1.0' in metrics


def test_a_key_with_a_rate_of_its_own(keyed, redis_client, redis_server):
    """The scope "rate" of a key counts instead of the setting."""
    world = keyed(redis_url=redis_server, server={"rate_limits": {"default": "100/second"}})
    narrow = world.client(scopes={"rate": "1/day"})
    assert asked(narrow).status_code == 200
    assert asked(narrow).status_code == 429


def test_openai_clients_read_it(keyed, redis_client, redis_server):
    """On OpenAI's paths the refusal is in its shape, with the headers that its clients look at."""
    world = keyed(redis_url=redis_server, server={"rate_limits": {"app": "1/hour"}})
    http = world.client()
    http.get("/v1/models")
    reply = http.get("/v1/models")
    assert reply.status_code == 429
    assert reply.json()["error"]["code"] == "rate_limit_exceeded"
    assert "retry-after" in reply.headers
    assert reply.headers["x-ratelimit-remaining-requests"] == "0"


def test_an_open_service_has_one_bucket(serve, redis_client, redis_server):
    """Without keys all requests share the rate "open"; without this rate there is no limit and no header."""
    limited = serve(redis_url=redis_server, server={"rate_limits": {"open": "2/hour"}})
    assert [asked(limited.http).status_code for _ in range(3)] == [200, 200, 429]
    free = serve(data_dir=limited.router.settings.data_dir + "-free", redis_url=redis_server)
    assert "x-ratelimit-limit-requests" not in asked(free.http).headers


async def taken(limiter: RateLimiter, *, most: int, caller: Caller) -> int:
    """Number of requests out of `count` that are admitted."""
    count = 0
    for _ in range(most):
        try:
            await limiter.take(caller)
            count += 1
        except RateLimited:
            pass
    return count


def test_processes_share_a_rate(redis_client, redis_server):
    """Two limiters on one Redis let through the rate together."""

    async def both() -> int:
        pair = [RateLimiter(redis_server, rates={"app": "150/hour"}) for _ in range(2)]
        caller = Caller(key="0123456789", role="app")
        counts = await asyncio.gather(*(taken(one, most=150, caller=caller) for one in pair for _ in range(2)))
        await asyncio.gather(*(one.close() for one in pair))
        return sum(counts)

    assert asyncio.run(both()) == 150


def test_redis_that_goes_and_comes_back(tmp_path, caplog):
    """Without Redis a process counts in memory, logs it once; later it uses Redis again."""
    caplog.set_level("INFO", logger="ragbandit.api")
    settings = Settings(data_dir=str(tmp_path))

    async def story() -> None:
        limiter = RateLimiter(settings.redis, rates={"app": "5/hour"})
        caller = Caller(key="0123456789", role="app")
        try:
            assert await taken(limiter, most=3, caller=caller) == 3
            server.stop()
            assert await taken(limiter, most=20, caller=caller) == 5, "the limit holds without Redis"
            assert limiter.is_lost
            server.start()
            give_up = time.monotonic() + 20
            while limiter.is_lost:
                assert time.monotonic() < give_up
                await taken(limiter, most=1, caller=caller)
                await asyncio.sleep(0.1)
            assert await taken(limiter, most=20, caller=caller) == 4, "the new Redis has counted the one that found it"
        finally:
            await limiter.close()

    server = RedisServer(settings.data_dir)
    server.start()
    try:
        asyncio.run(story())
    finally:
        server.stop()
    assert caplog.text.count("Redis cannot be reached") == 1
    assert caplog.text.count("counted in Redis again") == 1


def test_silent_redis_holds_up_one_request(redis_client, redis_server, monkeypatch):
    """Redis that takes what it is sent and answers nothing delays one request, half a second, and no other."""
    monkeypatch.setattr(rate_limiter, "WAIT_S", 0.5)
    proxy = TcpProxy(Path(redis_server.removeprefix("unix://")))

    async def story() -> None:
        limiter = RateLimiter(f"redis://127.0.0.1:{proxy.port}", rates={"app": "5/hour"})
        caller = Caller(key="0123456789", role="app")
        try:
            assert await taken(limiter, most=1, caller=caller) == 1
            proxy.swallow()
            proxy.refuse()
            began = time.monotonic()
            assert await taken(limiter, most=20, caller=caller) == 5
            assert time.monotonic() - began < 5
            assert limiter.is_lost
        finally:
            await limiter.close()

    try:
        asyncio.run(story())
    finally:
        proxy.close()


def test_a_role_that_is_none(settings):
    """A rate for an unknown role and an invalid rate are refused with the setting's name."""
    with pytest.raises(ValueError, match="unknown name 'boss'"):
        settings(server={"rate_limits": {"boss": "1/second"}})
    for rate in ("fast", "0/second", "10", "-1/second", "10/fortnight"):
        with pytest.raises(ValueError, match="rate_limits"):
            settings(server={"rate_limits": {"app": rate}})
