"""Requests in the form of Claude Code: system blocks, many tools, a session in user_id, betas, streams."""

import json
import urllib.request

import pytest

SESSION = "0f4c1d2e-7d0e-4c56-9a55-3f4e2d1c0b9a"
USERS = (
    f"user_{'ab' * 32}_account__session_{SESSION}",
    json.dumps({"device_id": "ab" * 32, "account_uuid": "", "session_id": SESSION}),
)
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
SYSTEM = [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=cli; cch=0f3a1;"},
    {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude.", **CACHED},
    {"type": "text", "text": "You are an interactive agent. " * 200, **CACHED},
]
TOOLS = [
    {"name": name, "description": f"{name}. " * 50, "input_schema": {"type": "object", "properties": {}}}
    for name in ("Bash", "Read", "Edit", "Write", "Grep", "Glob", "WebFetch", "TodoWrite", "Task")
]
HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "anthropic-dangerous-direct-browser-access": "true",
    "user-agent": "claude-cli/2.1.37 (external, cli)",
    "x-app": "cli",
    "x-stainless-lang": "js",
    "content-type": "application/json",
}


def body_of(messages, *, model, user):
    more = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}, "stream": True}
    context = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    limits = {"max_tokens": 32000, "metadata": {"user_id": user}, "context_management": context}
    return {"model": model, "messages": messages, "system": SYSTEM, "tools": TOOLS, **limits, **more}


def joined(gateway, body):
    """The events of a reply by their types, its text, and its last call."""
    request = urllib.request.Request(f"{gateway.url}/v1/messages?beta=true", json.dumps(body).encode())
    for name, value in (HEADERS | {"authorization": f"Bearer {gateway.key}"}).items():
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
    first, content = joined(gateway, body_of([question], model=model, user=user))
    call = content[-1]
    assert (call["type"], call["input"]) == ("tool_use", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "No files found", "is_error": True, **CACHED}
    reminder = {"type": "text", "text": "<system-reminder>B</system-reminder>"}
    messages = [question, {"role": "assistant", "content": content}, {"role": "user", "content": [result, reminder]}]
    second, content = joined(gateway, body_of(messages, model=model, user=user))
    assert content[-1] == {"type": "text", "text": gateway.answer}
    kept = gateway.decision(second)
    assert kept["session_id"] == SESSION
    assert kept["request"]["tool_turn"]["first"] == first.removeprefix("msg_")
