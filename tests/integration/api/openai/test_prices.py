"""OpenAI's interface: the price of a question by its model, a field, a header, or the default of its key."""

import time

import openai
import pytest

from ragbandit.router.storage.access.api_keys import KeyStore
from tests.integration.api.openai.test_completions import posted

PRICES = {"economy": 0.2, "quality": 0.01}
ASKED = {"messages": [{"role": "user", "content": "Who wrote Dracula?"}]}


@pytest.fixture
def priced(serve, answering):
    """A service with prices, whose questions are answered."""
    service = serve(cost_weights=PRICES)
    answering(service)
    return service


def test_openais_client_turns_the_dial(priced):
    """The model and `extra_body` each set the price; the reply says which, and nothing is ignored."""
    with openai.OpenAI(base_url=f"{priced.url}/v1", api_key="any", max_retries=0, timeout=30) as client:
        assert [model.id for model in client.models.list()][:3] == ["auto", "auto:economy", "auto:quality"]
        assert client.models.retrieve("auto:economy").id == "auto:economy"
        for more, price, weight in (
            ({"model": "auto:economy"}, "economy", 0.2),
            ({"model": "ragbandit/auto:quality"}, "quality", 0.01),
            ({"model": "auto", "extra_body": {"cost_weight": 0.03}}, None, 0.03),
            ({"model": "auto", "extra_body": {"cost_weight": "economy"}}, "economy", 0.2),
            ({"model": "arm/single_step", "extra_body": {"cost_weight": 0.5}}, None, 0.5),
            ({"model": "auto:economy", "extra_body": {"cost_weight": "economy"}}, "economy", 0.2),
            ({"model": "auto"}, None, None),
        ):
            reply = client.chat.completions.with_raw_response.create(**ASKED, **more)
            facts = reply.parse().model_extra["ragbandit"]
            assert (facts["price"], facts["cost_weight"]) == (price, weight), more
            assert reply.headers.get("x-ragbandit-cost-weight") == (None if weight is None else repr(weight))
            query = priced.router.decision(facts["decision_id"]).decision.query
            assert not query.sent.ignored
        with pytest.raises(openai.NotFoundError, match="auto:economy, auto:quality"):
            client.chat.completions.create(model="auto:cheapest", **ASKED)
        for more in (
            {"model": "auto:economy", "extra_body": {"cost_weight": 0.03}},
            {"model": "auto", "extra_body": {"cost_weight": "cheapest"}},
            {"model": "auto:economy", "extra_body": {"aim": {"steps": 1.8}}},
        ):
            with pytest.raises(openai.BadRequestError, match=r"weights? of cost"):
                client.chat.completions.create(**ASKED, **more)


def test_a_key_has_a_default_and_a_range(priced):
    """A key's default is served and shown; beyond its range is 403, on every endpoint; it sees the models within it."""
    scopes = {"cost_weight": "economy", "cost_weights": [0.1, 0.3]}
    new = KeyStore(priced.router.database).create(
        name="test", role="app", now=time.time(), actor="cli:test", scopes=scopes
    )
    priced.app.state.gate.ring.known = None
    headers = {"authorization": f"Bearer {new.text}"}
    listed = [one["id"] for one in priced.http.get("/v1/models", headers=headers).json()["data"]]
    assert listed[:2] == ["auto", "auto:economy"]
    assert "auto:quality" not in listed
    facts = posted(priced.http, headers=headers).json()["ragbandit"]
    assert (facts["price"], facts["cost_weight"]) == ("economy", 0.2)
    assert priced.router.decision(facts["decision_id"]).decision.query.cost_weight is None
    reply = posted(priced.http, model="auto:quality", headers=headers)
    assert reply.status_code == 403
    assert "from 0.1 to 0.3" in reply.json()["error"]["message"]
    body = {"question": "Who wrote Dracula?", "cost_weight": 0.5}
    for path, sent in (("/v1/route", body), ("/v1/route/batch", {"items": [body]})):
        reply = priced.http.post(path, json=sent, headers=headers).json()
        assert reply.get("items", [reply])[0]["error"]["code"] == "FORBIDDEN"
