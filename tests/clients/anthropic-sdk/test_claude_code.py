"""Requests in the form of Claude Code: system blocks, many tools, a session in user_id, betas, streams."""

import json
import urllib.request

import pytest

from tests.support.coding_agents import CACHED, CLAUDE_HEADERS, SESSION, USERS, claude_request, claude_result


def joined(gateway, body):
    """The events of a reply by their types, its text, and its last call."""
    request = urllib.request.Request(f"{gateway.url}/v1/messages?beta=true", json.dumps(body).encode())
    for name, value in (CLAUDE_HEADERS | {"authorization": f"Bearer {gateway.key}"}).items():
        request.add_header(name, value)
    with urllib.request.urlopen(request, timeout=60) as reply:
        lines = reply.read().decode().split("\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    content, written = [], ""
    for event in events:
        if event["type"] == "content_block_start":
            content.append(event["content_block"])
            written = ""
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            name = {"input_json_delta": "partial_json"}.get(delta["type"], delta["type"].removesuffix("_delta"))
            written += delta[name]
            content[-1] |= {name: written} if name != "partial_json" else {"input": json.loads(written)}
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    return events[0]["message"]["id"], content


@pytest.mark.parametrize("user", USERS, ids=["text", "json"])
@pytest.mark.parametrize("model", ["arm/small", "arm/claude", "claude-sonnet-4-5-20250929"])
def test_a_step_of_claude_code(gateway, model, user):
    """A question, a call of a tool, its result with a reminder, the answer; the session is Claude Code's."""
    question = {"role": "user", "content": [{"type": "text", "text": "<system-reminder>A</system-reminder>"}]}
    question["content"].append({"type": "text", "text": f"Does it rain? {model} {user[:9]}", **CACHED})
    first, content = joined(gateway, claude_request([question], model=model, user=user))
    call = content[-1]
    assert (call["type"], call["input"]) == ("tool_use", {"city": "Paris"})
    messages = [question, {"role": "assistant", "content": content}, claude_result(call, "No files found")]
    second, content = joined(gateway, claude_request(messages, model=model, user=user))
    assert content[-1] == {"type": "text", "text": gateway.answer}
    kept = gateway.decision(second)
    assert kept["session_id"] == SESSION
    assert kept["request"]["tool_turn"]["first"] == first.removeprefix("msg_")
