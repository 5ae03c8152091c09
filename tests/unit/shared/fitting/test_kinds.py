"""The kind of a server, and what it takes."""

import pytest

from ragbandit.shared.model_servers.fitting.kinds import TABLE, IdForm, kind_of, server_features

ADDRESSES = {
    "": "openai",
    "https://api.openai.com/v1": "openai",
    "https://eu.api.openai.com/v1": "openai",
    "https://name.openai.azure.com/openai/deployments/small?api-version=2024-10-21": "openai",
    "https://gateway.ai.cloudflare.com/v1/account/gateway/openai": "openai",
    "https://api.mistral.ai/v1": "mistral",
    "https://gateway.ai.cloudflare.com/v1/account/gateway/mistral": "mistral",
    "https://api.deepseek.com": "deepseek",
    "https://generativelanguage.googleapis.com/v1beta/openai/": "gemini",
    "https://us-east1-aiplatform.googleapis.com/v1/projects/p/locations/l/endpoints/openapi": "gemini",
    "https://bedrock-runtime.us-west-2.amazonaws.com/openai/v1": "bedrock",
    "https://api.groq.com/openai/v1": "unknown",
    "http://user:secret@127.0.0.1:8000/v1": "unknown",
    "http://localhost:11434/v1": "unknown",
    "https://openrouter.ai/api/v1": "unknown",
    "https://example.org/notmistral.ai/v1": "unknown",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_address_names_the_kind(address):
    """Vendors and their gateways are recognised by host and path."""
    assert kind_of(address) == ADDRESSES[address]


def test_the_model_names_its_family():
    """A model's name decides what its template or its vendor takes, wherever it is served."""
    assert server_features("unknown", model="mistralai/Mistral-Small-3.2").call_id == TABLE["mistral"].call_id
    assert server_features("template", model="google/gemma-2-9b-it").system == "nowhere"
    assert server_features("template", model="google/gemma-3-27b-it").system == "first"
    assert server_features("unknown", model="anthropic/claude-sonnet-4-5").unique_ids
    assert server_features("template", model="Qwen/Qwen3-8B") != TABLE["template"]
    assert server_features("unknown", model="llama-3.3") == TABLE["unknown"]
    assert server_features("openai", model="gpt-5-mini").free_text
    assert not server_features("openai", model="gpt-4.1").free_text


@pytest.mark.parametrize(
    "form", [takes.call_id for takes in TABLE.values()] + [takes.tool_name for takes in TABLE.values()]
)
def test_made_names_have_their_form(form):
    """The name for any text fits, is the same every time, and differs between texts and numbers."""
    texts = ["functions.weather:0", "", " ", "x" * 5000, "ä/ö", "7up", "\ud800"]
    made = [form.text_in_form(text, number=number) for text in texts for number in (0, 1)]
    assert all(map(form.fits, made))
    assert len(set(made)) == len(made)
    assert made == [form.text_in_form(text, number=number) for text in texts for number in (0, 1)]


def test_a_form_of_any_characters_has_a_length():
    """Only the number of characters counts."""
    assert IdForm(most=40).fits("functions.weather:0")
    assert not IdForm(most=40).fits("c" * 41)
    assert not IdForm(most=40).fits("")
