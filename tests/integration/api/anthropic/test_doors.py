"""Keys and dollar budgets at the doors of messages and embeddings."""

import json

import pytest

from ragbandit.router.api.openai.embeddings import EmbeddingsServer
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.integration.api.security.conftest import Keyed
from tests.support.servers.http_service import Service
from tests.support.servers.scripted_http import ScriptedHttp, json_reply

BODY = {"model": "auto", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi?"}]}
VECTORS = {"object": "list", "data": [{"index": 0, "embedding": "AAAAPw=="}], "usage": {"prompt_tokens": 10}}
TEXTS = {"model": "small", "input": ["a"], "encoding_format": "base64", "dimensions": 1}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A service with keys, a model at a dollar a token, and a server of embeddings."""
    refusal = json_reply({"error": {"message": "no such model", "code": "model_not_found"}}, status=400)
    with ScriptedServer(lambda _: Reply(text="Yes")) as chats, ScriptedHttp(json_reply(VECTORS), refusal) as vectors:
        prices = {"input": 1e6, "output": 1e6}
        generator = {"name": "openai", "model": "m", "openai": {"base_url": chats.url}, "token_prices": prices}
        tenants = {name: {"dollars_per_day": 1.0, "budget_stop": True} for name in ("chats", "vectors")}
        settings = {
            "data_dir": str(tmp_path_factory.mktemp("doors")),
            "encoder": {"model": "hashing", "dimension": 8},
            "generator": generator,
            "arms": {"model": {}},
            "embeddings": {"base_url": f"{vectors.url}/v1", "token_prices": {"small": [1e5, 0.0]}},
            "tenants": tenants,
        }
        keyed = Keyed(Service(Settings.model_validate(settings), inline=True))
        keyed.key("admin")
        yield keyed, vectors
        keyed.close()
        keyed.service.close()


def test_a_spent_budget_stops_messages(world):
    """The cost of messages counts in dollars_per_day, and a spent budget is a 429 in Anthropic's shape."""
    keyed, _ = world
    client = keyed.client(tenant="chats")
    for body in (BODY, BODY | {"stream": True}):
        keyed.service.app.state.budgets._cached.clear()
        reply = client.post("/v1/messages", json=body)
        statuses = reply.status_code, reply.json()["error"]["type"] if reply.status_code == 429 else None
        if body is BODY:
            assert statuses == (200, None)
    assert statuses == (429, "rate_limit_error")
    assert "tenants.chats.dollars_per_day" in reply.json()["error"]["message"]


def test_a_key_in_x_api_key(world):
    """A key may come as x-api-key, and a wrong one is a 401 in Anthropic's shape."""
    keyed, _ = world
    client = keyed.client(tenant="other")
    key = client.headers.pop("authorization").removeprefix("Bearer ")
    for sent, status in ((key, 200), ("rb_wrong", 401), (None, 401)):
        headers = {} if sent is None else {"x-api-key": sent}
        reply = client.post("/v1/messages", json=BODY, headers=headers)
        assert reply.status_code == status, reply.text
        if status == 401:
            assert reply.json()["error"]["type"] == "authentication_error"
    assert client.get("/v1/models/auto", headers={"x-api-key": key}).status_code == 200


def test_embeddings(world):
    """Embeddings go to the configured server as they came; their cost counts, and its refusal has the same status."""
    keyed, vectors = world
    client = keyed.client(tenant="vectors")
    reply = client.post("/v1/embeddings", json=TEXTS)
    assert (reply.status_code, reply.json()) == (200, VECTORS)
    assert vectors.seen[-1][0] == "/v1/embeddings"
    assert vectors.seen[-1][2] == TEXTS
    keyed.service.app.state.budgets._cached.clear()
    assert client.post("/v1/embeddings", json=TEXTS).status_code == 429
    assert len(vectors.seen) == 1
    refused = keyed.client(tenant="other").post("/v1/embeddings", json=TEXTS)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "model_not_found")


def test_wrong_settings_of_embeddings(monkeypatch):
    """An error in the setting names it, not the generator whose options it shares."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for options, field in ((OpenAiOptions(base_url="x"), "base_url"), (OpenAiOptions(), "api_key_env")):
        with pytest.raises(ConfigError) as caught:
            EmbeddingsServer(options)
        assert caught.value.field == f"embeddings.{field}"


def test_no_server_of_embeddings(service):
    """Without a configured server the reply is a 404 with the remedy."""
    reply = service.http.post("/v1/embeddings", json=TEXTS)
    assert reply.status_code == 404
    assert "embeddings.base_url" in json.dumps(reply.json())
