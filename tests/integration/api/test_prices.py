"""HTTP: a question has its own weight of cost, by a number, a name or a default, and every reply names it."""

import pytest

from tests.support.servers.http_service import QUESTION, refused, routed

PRICES = {"economy": 0.2, "balanced": 0.05, "quality": 0.01}
ARMS = {"cheap": {"run_by": "caller"}, "dear": {"run_by": "caller"}}


@pytest.fixture(scope="module")
def dial(serve_module):
    """A service with prices, and tenants with a default and a range."""
    tenants = {
        "acme": {"cost_weight": "economy", "cost_weights": [0.1, 0.3]},
        "firm": {"cost_weights": [0.1, 0.3]},
        "open": {"cost_weight": 0.07},
    }
    return serve_module(cost_weights=PRICES, tenants=tenants)


@pytest.mark.parametrize(
    ("sent", "weight", "price"),
    [
        ({}, None, None),
        ({"cost_weight": None}, None, None),
        ({"cost_weight": "economy"}, 0.2, "economy"),
        ({"cost_weight": 0.03}, 0.03, None),
        ({"cost_weight": 0}, 0.0, None),
        ({"tenant": "acme"}, 0.2, "economy"),
        ({"tenant": "acme", "cost_weight": 0.1}, 0.1, None),
        ({"tenant": "firm"}, 0.1, None),  # the service's own, 0.05, brought into the range
        ({"tenant": "open"}, 0.07, None),
        ({"tenant": "open", "cost_weight": "quality"}, 0.01, "quality"),
    ],
)
def test_what_a_question_is_served_at(dial, sent, weight, price):
    """Reply, batch, record and explanation name weight and price; the row keeps the wish apart."""
    reply = routed(dial.http, **sent)
    assert (reply["cost_weight"], reply["price"]) == (weight, price)
    (item,) = dial.http.post("/v1/route/batch", json={"items": [{"question": QUESTION} | sent]}).json()["items"]
    assert (item["cost_weight"], item["price"]) == (weight, price)
    shown = dial.http.get(f"/v1/decisions/{reply['decision_id']}")
    assert (shown.json()["cost_weight"], shown.json()["price"]) == (weight, price)
    assert shown.headers.get("x-ragbandit-cost-weight") == (None if weight is None else repr(weight))
    explained = dial.http.get(f"/v1/decisions/{reply['decision_id']}/explanation").json()
    told = f"cost weight {weight:g}{f' ({price})' if price else ''}, as its" if weight is not None else "no weight"
    assert any(told in reason for reason in explained["reasons"]) is (weight is not None)
    decision = dial.router.decision(reply["decision_id"]).decision
    assert (decision.query.cost_weight, decision.cost_weight) == (sent.get("cost_weight"), weight)
    assert weight is None or explained["record"]["facts"]["weight"] == weight


@pytest.mark.parametrize(
    ("sent", "field", "words"),
    [
        ({"cost_weight": "cheapest"}, "cost_weight", "economy, balanced, quality"),
        ({"cost_weight": -0.1}, "cost_weight", "0 to 1e+06"),
        ({"cost_weight": 1e7}, "cost_weight", "0 to 1e+06"),
        ({"cost_weight": True}, "cost_weight", "name of a price"),
        ({"cost_weight": 0.4, "tenant": "acme"}, "cost_weight", "from 0.1 to 0.3"),
        ({"cost_weight": "quality", "tenant": "firm"}, "cost_weight", "from 0.1 to 0.3"),
        ({"cost_weight": 0.1, "aim": {"steps": 2}}, "aim", "one of the two"),
        ({"aim": {"euros": 2}}, "aim", "quality, steps, dollars"),
        ({"aim": {"quality": 0.9, "steps": 2}}, "aim", "quality, steps or dollars"),
        ({"aim": {"quality": 1.1}}, "aim.quality", "1 at most"),
    ],
)
def test_what_is_refused(dial, sent, field, words):
    """An unknown name, no weight, one out of the tenant's range and two wishes are a 422 that helps."""
    decided = dial.router.status().counters.decided
    for path in ("/v1/route", "/v1/answer"):
        error = refused(dial.http.post(path, json={"question": QUESTION} | sent), 422, "INVALID_INPUT", field=field)
        assert words in error["message"] + error["remedy"]
    (item,) = dial.http.post("/v1/route/batch", json={"items": [{"question": QUESTION} | sent]}).json()["items"]
    assert item["error"]["field"] == field
    assert dial.router.status().counters.decided == decided
