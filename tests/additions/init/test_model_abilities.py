"""What models read, from the lists and descriptions of servers."""

import httpx
import pytest

from ragbandit.additions.init import model_abilities
from ragbandit.additions.init.model_abilities import abilities_by_model, supports_of

READS = ("images", "json", "tools")
TEXT = ("json", "tools")


@pytest.mark.parametrize(
    ("row", "abilities"),
    [
        ({}, None),
        ({"capabilities": None, "type": "chat", "modalities": "text"}, None),
        ({"capabilities": ["completion", "multimodal"]}, READS),
        ({"capabilities": ["completion", "tools"]}, TEXT),
        ({"capabilities": {"vision": True, "function_calling": False}}, ("images", "json")),
        ({"capabilities": {"image_input": {"supported": True}, "pdf_input": {"supported": True}}}, ("files", *READS)),
        ({"model_info": {"supports_vision": True, "supports_audio_input": True}}, ("audio", *READS)),
        ({"model_info": {"supports_vision": None}}, None),
        ({"type": "vlm"}, READS),
        ({"type": "llm"}, TEXT),
        ({"modalities": {"input": ["text", "image"], "output": ["text"]}}, READS),
        ({"supported_parameters": ["tools"], "architecture": {"input_modalities": ["image"]}}, ("images", "tools")),
    ],
)
def test_lists(row, abilities):
    """Each vendor's list is read; abilities are unknown if the list does not mention images."""
    assert supports_of(row) == abilities


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        (
            "/v1/model/info",
            {"data": [{"model_name": "b"}, {"model_name": "a", "model_info": {"supports_vision": True}}]},
        ),
        ("/api/show", {"capabilities": ["completion", "vision"], "details": {}}),
        ("/api/v0/models", {"data": [{"id": "a", "type": "vlm"}]}),
    ],
)
def test_descriptions(monkeypatch, path, reply):
    """LiteLLM's, Ollama's and LM Studio's own descriptions are asked, with the key; others are passed over."""
    sent = []

    def answer(request):
        sent.append((request.url.path, request.headers.get("authorization")))
        return httpx.Response(200, json=reply) if request.url.path == path else httpx.Response(404, text="no")

    client, transport = httpx.Client, httpx.MockTransport(answer)
    monkeypatch.setattr(model_abilities.httpx, "Client", lambda **options: client(transport=transport, **options))
    assert abilities_by_model(["a"], url="http://host.example/v1", key="k") == {"a": READS}
    assert sent[-1] == (path, "Bearer k")
    assert abilities_by_model(["a"], url="http://host.example/v1", key=None) == {"a": READS}
    assert sent[-1] == (path, None)


def test_openais_models():
    """OpenAI's list has no abilities, so its models are known by their names."""
    names = ["gpt-5-mini", "gpt-4o", "o3", "o3-mini", "gpt-3.5-turbo"]
    found = abilities_by_model(names, url="https://api.openai.com/v1", key=None)
    assert [name for name in names if "images" in found[name]] == ["gpt-5-mini", "gpt-4o", "o3"]
