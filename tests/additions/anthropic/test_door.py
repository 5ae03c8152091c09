"""Keys and dollar budgets at the door of messages."""

import pytest

from ragbandit.additions.anthropic.endpoints import DOOR
from ragbandit.testing.doors import check_door
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.servers.http_service import Keyed

BODY = {"model": "auto", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi?"}]}


@pytest.fixture(scope="module")
def world(serve_module):
    """A service with keys and a model at a dollar a token."""
    with ScriptedServer(lambda _: Reply(text="Yes")) as chats:
        prices = {"input": 1e6, "output": 1e6}
        generator = {"name": "openai", "model": "m", "openai": {"base_url": chats.url}, "token_prices": prices}
        tenants = {"chats": {"dollars_per_day": 1.0, "budget_stop": True}}
        keyed = Keyed(serve_module(inline=True, generator=generator, arms={"model": {}}, tenants=tenants))
        yield keyed
        keyed.service.close()


def test_a_spent_budget_stops_messages(world):
    """The cost of messages counts in dollars_per_day, and a spent budget is a 429 in Anthropic's shape."""
    client = world.client(tenant="chats")
    for body in (BODY, BODY | {"stream": True}):
        world.service.app.state.budgets._cached.clear()
        reply = client.post("/v1/messages", json=body)
        statuses = reply.status_code, reply.json()["error"]["type"] if reply.status_code == 429 else None
        if body is BODY:
            assert statuses == (200, None)
    assert statuses == (429, "rate_limit_error")
    assert "tenants.chats.dollars_per_day" in reply.json()["error"]["message"]


def test_a_key_in_x_api_key(world):
    """A key may come as x-api-key, and a wrong one is a 401 in Anthropic's shape."""
    client = world.client(tenant="other")
    key = client.headers.pop("authorization").removeprefix("Bearer ")
    for sent, status in ((key, 200), ("rb_wrong", 401), (None, 401)):
        headers = {} if sent is None else {"x-api-key": sent}
        reply = client.post("/v1/messages", json=BODY, headers=headers)
        assert reply.status_code == status, reply.text
        if status == 401:
            assert reply.json()["error"]["type"] == "authentication_error"
    assert client.get("/v1/models/auto", headers={"x-api-key": key}).status_code == 200


def test_the_door_follows_the_contract():
    """Messages with damaged fields, wrong keys and large bodies are answered, or refused in Anthropic's shape."""
    blocks = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi?"}]}]}
    more = {"system": [{"type": "text", "text": "Be brief."}], "tools": [{"name": "look", "input_schema": {}}]}
    check_door(DOOR, bodies={"POST /v1/messages": {**BODY, **blocks, **more, "metadata": {"user_id": "u"}}})
