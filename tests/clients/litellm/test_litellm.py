"""LiteLLM's proxy in front of RagBandit and behind it, as docs/gateway.md has it."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import openai
import pytest

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory, gateway):
    """A proxy with RagBandit as the model `routed` and a model of the scripted server as `behind`; its client."""
    port, folder = os.environ["RAGBANDIT_CLIENTS_PROXY_PORT"], tmp_path_factory.mktemp("proxy")
    models = {"model": "openai/small", "api_base": os.environ["RAGBANDIT_CLIENTS_MODELS_URL"], "api_key": "any"}
    routed = {"model": "openai/auto", "api_base": gateway.base_url, "api_key": gateway.key}
    config = {
        "model_list": [
            {"model_name": "routed", "litellm_params": routed},
            {"model_name": "behind", "litellm_params": models},
        ],
        "litellm_settings": {"num_retries": 0, "telemetry": False},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    command = [Path(sys.executable).parent / "litellm", "--config", folder / "config.yaml", "--port", port]
    environ = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # else it is fetched at the start
    with (folder / "proxy.log").open("wb") as log:
        running = subprocess.Popen([*command, "--host", "127.0.0.1"], stdout=log, stderr=log, env=environ, cwd=folder)
    try:
        give_up = time.monotonic() + 90
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5).close()
                break
            except OSError:
                assert running.poll() is None, (folder / "proxy.log").read_text()[-3000:]
                assert time.monotonic() < give_up, (folder / "proxy.log").read_text()[-3000:]
                time.sleep(0.3)
        base = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(
            base_url=base, api_key=os.environ["LITELLM_MASTER_KEY"], max_retries=0, timeout=60
        ) as client:
            yield client
    finally:
        running.terminate()
        running.wait(20)


def test_in_front(proxy, gateway):
    """A client of LiteLLM gets RagBandit's answers, calls of tools among them, whole and in pieces."""
    first = proxy.chat.completions.create(model="routed", messages=gateway.messages, tools=[TOOL])
    asked = first.choices[0].message
    assert json.loads(asked.tool_calls[0].function.arguments) == {"city": "Paris"}
    messages = [*gateway.messages, asked.model_dump(exclude_none=True)]
    messages.append({"role": "tool", "tool_call_id": asked.tool_calls[0].id, "content": "sun"})
    second = proxy.chat.completions.create(model="routed", messages=messages, tools=[TOOL])
    assert second.choices[0].message.content == gateway.answer
    stream = proxy.chat.completions.create(model="routed", messages=messages, tools=[TOOL], stream=True)
    assert "".join(c.delta.content or "" for chunk in stream for c in chunk.choices) == gateway.answer


def test_behind(proxy, gateway):
    """A model of LiteLLM is an arm: its answer, its tokens."""
    with openai.OpenAI(base_url=gateway.base_url, api_key=gateway.key, max_retries=0, timeout=60) as client:
        reply = client.chat.completions.create(model="arm/proxied", messages=gateway.messages, temperature=0.2)
        pieces = client.chat.completions.create(model="arm/proxied", messages=gateway.messages, stream=True)
        text = "".join(choice.delta.content or "" for chunk in pieces for choice in chunk.choices)
    assert reply.choices[0].message.content == text == gateway.answer
    assert reply.usage.completion_tokens > 0
    assert gateway.decision(reply.id)["outcome"]["made_by"]["generator"] == "behind"
