"""The door of embeddings: what it passes on, and its settings."""

import json

import pytest

from ragbandit.additions.embeddings.endpoints import DOOR, EmbeddingsServer
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.testing.doors import check_door
from tests.support.servers.http_service import Keyed
from tests.support.servers.scripted_http import ScriptedHttp, json_reply

VECTORS = {"object": "list", "data": [{"index": 0, "embedding": "AAAAPw=="}], "usage": {"prompt_tokens": 10}}
TEXTS = {"model": "small", "input": ["a"], "encoding_format": "base64", "dimensions": 1}


@pytest.fixture(scope="module")
def world(serve_module):
    """A service with keys and a server of embeddings."""
    refusal = json_reply({"error": {"message": "no such model", "code": "model_not_found"}}, status=400)
    with ScriptedHttp(json_reply(VECTORS), refusal) as vectors:
        service = serve_module(
            embeddings={"base_url": f"{vectors.url}/v1", "token_prices": {"small": [1e5, 0.0]}},
            tenants={"vectors": {"dollars_per_day": 1.0, "budget_stop": True}},
        )
        yield Keyed(service), vectors
        service.close()


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


def test_the_door_follows_the_contract():
    """Damaged bodies are refused in OpenAI's form, also if the server is down, whose client is closed on each port."""
    server = {"base_url": "http://127.0.0.1:9/v1", "token_prices": {"small": [1.0, 0.0]}}
    check_door(DOOR, settings={"embeddings": server})
