"""Dollar budgets over HTTP: the price rises with what is spent, a stop refuses, and no arm is chosen at will."""

import logging
from datetime import UTC, datetime

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.operation.budgets import price_factor
from ragbandit.router.operation.findings import findings_of_store
from ragbandit.router.policies import make_policy
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.serving.prices import served_weight
from ragbandit.shared.types import MAX_WEIGHT, MOST_FACTOR, Query, Terms
from tests.support.servers.http_service import QUESTION, Keyed, refused, routed

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
TENANTS = {
    "paced": {"dollars_per_day": 1.0},
    "stopped": {"dollars_per_day": 2.0, "dollars_per_month": 1.0, "budget_stop": True},
}


@pytest.fixture(scope="module")
def world(serve_module):
    made = Keyed(serve_module(tenants=TENANTS))
    made.service.app.state.budgets._clock = lambda: NOON
    return made


def spend(world, decision_id: str, dollars: float) -> None:
    """An outcome of that price at noon, which the service knows at once."""
    outcome = make_outcome(decision_id=decision_id, now=NOON, status="answered", steps=1.0, cost={"dollars": dollars})
    assert world.service.router.store.add_outcome(outcome)
    world.service.app.state.budgets._cached.clear()


def test_the_price_rises(world, caplog):
    """What is served stands in the row; a request sent again is the same; once all is spent the highest price holds."""
    client, router = world.client(tenant="paced"), world.service.router
    decision = router.decision

    def weight():
        return decision(routed(client)["decision_id"]).decision.cost_weight

    first = routed(client, decision_id="first")
    assert weight() is None
    spend(world, "first", 0.56)
    factor = price_factor(spent=0.56, elapsed=0.5)
    assert 1.0 < factor < MOST_FACTOR
    assert weight() == pytest.approx(0.05 * factor)
    assert routed(client, decision_id="first")["arm"] == first["arm"]
    (reported,) = [
        one for one in findings_of_store(router.database, settings=router.settings, now=NOON) if "price" in one.what
    ]
    assert reported.what.startswith(f"the budget of the tenant paced raises the price {factor:.3g}-fold now")
    assert "tenants.paced.dollars_per_day" in reported.remedy
    (said,) = [
        reason
        for reason in client.get(f"/v1/decisions/{routed(client)['decision_id']}/explanation").json()["reasons"]
        if "budget" in reason
    ]
    assert f"raised {factor:.4g}-fold by a dollar budget" in said
    assert decision("first").decision.cost_weight is None
    items = client.post("/v1/route/batch", json={"items": [{"question": QUESTION}] * 2}).json()["items"]
    paced = decision(items[1]["decision_id"]).decision
    assert paced.query.terms.budget_factor == factor
    with caplog.at_level(logging.WARNING, "ragbandit.api"):
        spend(world, items[0]["decision_id"], 0.6)
        assert weight() == pytest.approx(0.05 * MOST_FACTOR)
    assert "a dollar budget is spent" in caplog.text
    assert (
        world.service.router.decision(routed(world.client(tenant="other"))["decision_id"]).decision.cost_weight is None
    )


def test_weights_under_a_budget():
    """The factor is on the question's own weight; one below the usual one, also 0, rises as that does."""
    settings = Settings.model_validate({"cost_weights": {"economy": 0.2}, "reward": {"weight": 0.1}})
    mba, uniform = make_policy("mba", params={}), make_policy("uniform", params={})

    def served(weight, *, factor=1.0, policy=mba):
        query = Query(text="q", cost_weight=weight, terms=Terms(budget_factor=factor))
        return served_weight(query, reward=settings.reward, named=settings.cost_weights, policy=policy)

    assert [served(None), served(None, factor=3.0, policy=uniform)] == [None, None]
    assert [served(None, factor=3.0), served("economy", factor=3.0), served(0.5)] == pytest.approx([0.3, 0.6, 0.5])
    assert [served(0.0, factor=3.0), served(0.04, factor=3.0)] == pytest.approx([0.2, 0.24])
    assert served(1e5, factor=MOST_FACTOR) == MAX_WEIGHT


def test_a_stop(world):
    """Questions beyond a budget that stops are 429 until its period ends, in a batch too; of a key by its scope."""
    client = world.client(tenant="stopped")
    spend(world, routed(client)["decision_id"], 1.5)
    reply = client.post("/v1/route", json={"question": QUESTION})
    error = refused(reply, 429, "TOO_MANY_REQUESTS", field="tenant")
    assert "1 dollars of the month (UTC), which ends at 2026-12-01 00:00:00 UTC" in error["message"]
    assert "tenants.stopped.dollars_per_month" in error["remedy"]
    assert int(reply.headers["retry-after"]) == round(8.5 * 86_400)
    (item,) = client.post("/v1/route/batch", json={"items": [{"question": QUESTION}]}).json()["items"]
    assert item["error"]["code"] == "TOO_MANY_REQUESTS"
    key = world.client(tenant="other", scopes={"dollars_per_day": 0.5, "budget_stop": True})
    spend(world, routed(key)["decision_id"], 0.5)
    error = refused(key.post("/v1/route", json={"question": QUESTION}), 429, "TOO_MANY_REQUESTS")
    assert "the scope dollars_per_day of the key" in error["remedy"]
    routed(world.client(tenant="other"))


def test_a_preview_ends_no_task(world):
    """A preview under a spent budget is 429 and changes nothing; a question ends the open task of its session."""
    key = world.client(tenant="other", scopes={"dollars_per_day": 0.5, "budget_stop": True, "unit": "task"})
    first = routed(key, session_id="previewed")["decision_id"]
    spend(world, first, 0.5)
    router, asked = world.service.router, {"question": QUESTION, "session_id": "previewed"}

    def reason():
        router.learn()
        return router.decision(first).reason

    assert key.post("/v1/route", json=asked, headers={"x-ragbandit-preview": "true"}).status_code == 429
    assert reason() is None
    assert key.post("/v1/route", json=asked).status_code == 429
    assert reason() == "a budget stopped the task"


def test_nobody_chooses_an_arm_at_will(world):
    """Under a budget forcing and narrowing need the scope forced=true, and the list of models shows it."""
    body = {"question": QUESTION, "arms": ["multi_step"]}
    header = {"json": {"question": QUESTION}, "headers": {"x-ragbandit-arm": "multi_step"}}
    chat = {"model": "arm/multi_step", "messages": [{"role": "user", "content": QUESTION}]}
    for plain in (world.client(tenant="paced"), world.client(tenant="other", scopes={"dollars_per_month": 9.0})):
        error = refused(plain.post("/v1/route", json=body), 403, "FORBIDDEN", field="arms")
        assert "forced=true" in error["remedy"]
        long = {"question": QUESTION, "session_id": "s", "unit": "task"}
        assert "forced=true" in refused(plain.post("/v1/route", json=long), 403, "FORBIDDEN")["remedy"]
        assert plain.post("/v1/chat/completions", json=chat).status_code == 403
        assert refused(plain.post("/v1/route", **header), 403, "FORBIDDEN", field="arms")
        auto = {**header, "json": {**chat, "model": "auto"}}
        assert plain.post("/v1/chat/completions", **auto).status_code == 403
        assert [one["id"] for one in plain.get("/v1/models").json()["data"]] == ["auto"]
    allowed = world.client(tenant="paced", scopes={"forced": True})
    assert routed(allowed, arms=["multi_step"])["arm"] == "multi_step"
    assert allowed.post("/v1/route", **header).json()["arm"] == "multi_step"
    assert len(allowed.get("/v1/models").json()["data"]) > 1
    assert routed(world.client(tenant="other"), arms=["multi_step"])["arm"] == "multi_step"
    narrowed = world.client(tenant="paced", scopes={"arms": ["multi_step", "single_step"]})
    assert set(routed(narrowed, arms=["single_step", "multi_step"])["pmf"]) == {"single_step", "multi_step"}
    refused(narrowed.post("/v1/route", json=body), 403, "FORBIDDEN", field="arms")
