"""Strict servers of several vendors behind one service: what every door sends is taken, and names come back."""

import json

import pytest

from ragbandit.testing.openai_server import Reply, ScriptedServer
from ragbandit.testing.strict_servers import strict
from tests.support.additions import needs

LONG = "mcp__plugin_chrome-tools-of-a-marketplace_chrome-tools__list_console_messages"
KIMI = "functions.weather:0"
VENDORS = {"openai": "openai", "mistral": "mistral", "deepseek": "deepseek", "gemini": "gemini", "qwen": "template"}
PATCH = "*** Begin Patch\n*** End Patch"


def model(vendor):
    """A model that calls its first tool with `input`, if it has tools and the chat ends with a user's words."""
    taken = strict(vendor, "Cold.")

    def reply(sent):
        answer = taken(sent)
        tools = sent.get("tools") or []
        if not isinstance(answer, str) or not tools or sent["messages"][-1]["role"] == "tool":
            return answer
        function = {"name": tools[0]["function"]["name"], "arguments": json.dumps({"input": PATCH})}
        call = {"id": "abcdefgh9", "type": "function", "function": function}
        return Reply(message={"tool_calls": [call]}, finish="tool_calls")

    return reply


@pytest.fixture(scope="module")
def door(serve_module):
    """The HTTP client of a service with an arm for each vendor."""
    servers = {vendor: ScriptedServer(model(vendor)) for vendor in VENDORS}
    generators = {
        vendor: {
            "name": "openai",
            "model": "small",
            "supports": ["tools", "json", "images"],
            "openai": {"base_url": server.url, "kind": VENDORS[vendor], "retries": 0},
        }
        for vendor, server in servers.items()
    }
    service = serve_module(
        inline=True,
        generator=generators["openai"],
        generators=generators,
        arms={vendor: {"class": "model", "generator": vendor} for vendor in VENDORS},
        conversation={"rewrite": {"by": "off"}},
    )
    yield service.http
    service.close()
    for server in servers.values():
        server.close()


def ask(door, path, **body):
    reply = door.post(path, json=body)
    assert reply.status_code == 200, reply.text
    if not body.get("stream"):
        return reply.json()
    lines = [line[6:] for line in reply.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@needs("anthropic", "responses")
@pytest.mark.parametrize("vendor", VENDORS)
def test_every_door_gets_its_own_names_back(door, vendor):
    """A history of another vendor with a long name, at each door: the call in the answer has the client's name."""
    name = f"arm/{vendor}"
    schema = {"type": "object"}
    call = {"id": KIMI, "type": "function", "function": {"name": LONG, "arguments": "{}"}}
    chat = [
        {"role": "user", "content": "The weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": KIMI, "content": "cold"},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "And now?"},
    ]
    tools = [{"type": "function", "function": {"name": LONG, "parameters": schema}}]
    reply = ask(door, "/v1/chat/completions", model=name, messages=chat, tools=tools)
    assert reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == LONG
    assert {"tools.name", "tools.parameters"} & set(reply["ragbandit"]["ignored"])
    parts = ask(door, "/v1/chat/completions", model=name, messages=chat, tools=tools, stream=True)
    calls = [one for part in parts for each in part["choices"] for one in each["delta"].get("tool_calls") or []]
    assert calls[0]["function"]["name"] == LONG
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "The weather?"},
        {"type": "function_call", "call_id": KIMI, "name": LONG, "arguments": "{}"},
        {"type": "function_call_output", "call_id": KIMI, "output": "cold"},
        {"role": "user", "content": "And now?"},
    ]
    reply = ask(door, "/v1/responses", model=name, input=items, tools=[{"type": "function", "name": LONG}])
    assert reply["output"][-1]["name"] == LONG
    turns = [
        {"role": "user", "content": "The weather?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": KIMI, "name": LONG, "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": KIMI, "content": "cold"}]},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "And now?"},
    ]
    tool = {"name": LONG, "input_schema": {"type": "object", "required": None}}
    reply = ask(door, "/v1/messages", model=name, max_tokens=9, messages=turns, tools=[tool])
    assert reply["content"][-1]["name"] == LONG


@needs("responses")
@pytest.mark.parametrize("stream", [False, True])
def test_codex_gets_its_calls_of_free_text(door, stream):
    """apply_patch is a function for the model and a custom_tool_call for Codex, whole and streamed."""
    tool = {
        "type": "custom",
        "name": "apply_patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": "s: /.+/"},
    }
    body = {"model": "arm/qwen", "tools": [tool]}
    reply = ask(door, "/v1/responses", input="Edit the file.", stream=stream, **body)
    if stream:
        kinds = [event["type"] for event in reply]
        assert kinds.index("response.custom_tool_call_input.delta") < kinds.index(
            "response.custom_tool_call_input.done"
        )
        reply = reply[-1]["response"]
    (item,) = (item for item in reply["output"] if item["type"] == "custom_tool_call")
    assert (item["name"], item["input"]) == ("apply_patch", PATCH)
    output = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}
    last = ask(door, "/v1/responses", input=[output], previous_response_id=reply["id"], **body)
    assert last["output"][-1]["content"][0]["text"] == "Cold."


def test_a_chat_with_a_tool_of_free_text(door):
    """At the door of chat completions the call has OpenAI's form of calls of free text."""
    tool = {"type": "custom", "custom": {"name": "apply_patch"}}
    question = [{"role": "user", "content": "Edit the file."}]
    reply = ask(door, "/v1/chat/completions", model="arm/openai", messages=question, tools=[tool])
    (call,) = reply["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call["custom"]) == ("custom", {"name": "apply_patch", "input": PATCH})


@needs("responses")
def test_cursor_sends_responses_to_the_door_of_chats(door):
    """A body of Responses at /v1/chat/completions gets a chat completion, whole and streamed."""
    items = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "The weather?"}]
    body = {"model": "arm/deepseek", "input": items, "store": False, "text": {"verbosity": "low"}}
    assert ask(door, "/v1/chat/completions", **body)["choices"][0]["message"]["content"] == "Cold."
    parts = ask(door, "/v1/chat/completions", stream=True, **body)
    assert "".join(each["delta"].get("content") or "" for part in parts for each in part["choices"]) == "Cold."
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
    (call,) = ask(door, "/v1/chat/completions", tools=[tool], **body)["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
