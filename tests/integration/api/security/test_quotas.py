"""Quotas over HTTP: decisions and feedback of a tenant in a day."""

import asyncio
import time

from ragbandit.router.api.limiting.quotas import Quotas
from ragbandit.router.api.limiting.rate_limiter import RateLimiter
from ragbandit.router.config.settings import TenantSettings
from tests.support.servers.http_service import QUESTION, refused, routed


def test_decisions_of_a_tenant(keyed, redis_client, redis_server):
    """Beyond its decisions of the day a tenant gets 429 until midnight UTC, whichever key it uses; others go on."""
    world = keyed(redis_url=redis_server, tenants={"acme": {"decisions_per_day": 2}})
    for _ in range(2):
        routed(world.client(tenant="acme"))
    reply = world.client(tenant="acme").post("/v1/route", json={"question": QUESTION})
    error = refused(reply, 429, "TOO_MANY_REQUESTS", field="tenant")
    assert "tenants.acme.decisions_per_day" in error["remedy"]
    assert 0 < int(reply.headers["retry-after"]) <= 86_400
    assert abs(int(reply.headers["retry-after"]) - (86_400 - time.time() % 86_400)) < 60
    routed(world.client(tenant="other"))


def test_batches(serve, redis_client, redis_server):
    """Of a batch of questions those beyond the quota are refused; feedback beyond it is refused as a whole."""
    quota = {"default": {"decisions_per_day": 3, "feedback_per_day": 2}}
    http = serve(redis_url=redis_server, tenants=quota).http
    items = http.post("/v1/route/batch", json={"items": [{"question": QUESTION}] * 5}).json()["items"]
    assert ["error" in item for item in items] == [False, False, False, True, True]
    judged = [{"decision_id": item["decision_id"], "rating": 1} for item in items[:3]]
    refused(http.post("/v1/feedback/batch", json={"items": judged}), 429, "TOO_MANY_REQUESTS", field="tenant")
    assert http.post("/v1/feedback/batch", json={"items": judged[:2]}).status_code == 202
    refused(http.post("/v1/feedback", json=judged[2]), 429, "TOO_MANY_REQUESTS", field="tenant")


def test_the_next_day_begins_anew(redis_client, redis_server):
    """Two processes count one day together, and midnight UTC begins another; a tenant's own quota comes first."""

    async def story() -> None:
        now = 86_400.0 * 20_000 + 86_390
        limiters = [RateLimiter(redis_server, rates={}) for _ in range(2)]
        tenants = {"default": TenantSettings(decisions_per_day=4), "free": TenantSettings()}
        first, second = (Quotas(tenants, limiter=limiter, clock=lambda: now) for limiter in limiters)
        assert await first.fitting("decisions", tenant="a", amount=3) == 3
        assert await second.fitting("decisions", tenant="a", amount=3) == 1
        assert first.refusal("decisions", tenant="a").retry_after_s == 10
        assert await first.fitting("decisions", tenant="free", amount=1000) == 1000
        assert await first.fitting("feedback", tenant="a", amount=1000) == 1000
        now += 20
        assert await first.fitting("decisions", tenant="a", amount=4) == 4
        await asyncio.gather(*(limiter.close() for limiter in limiters))

    asyncio.run(story())
