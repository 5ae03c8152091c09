"""A client and a server of the same dialect: fields that nobody has to change go out as they came, in both directions.

The bodies have every field of the grammar (tests/support/dialects.py). LISTED and REPLACED name what is changed.
"""

import copy
import json

import pytest

from ragbandit.shared.additions import additions
from tests.support import dialects
from tests.support.anthropic_events import events_of, joined, sse_of
from tests.support.servers.scripted_http import Scripted, ScriptedHttp

UNKNOWN = {"unknown": {"a": [None, 1.5, {"b": "é"}]}}
SENT = {
    "chat": dialects.CHAT | UNKNOWN | {"null": None, "tool_choice": "auto", "max_tokens": 9},
    "messages": dialects.MESSAGES | UNKNOWN | {"null": None},
}
SENT["chat"] |= {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
}
#: fields of a request that are changed: the arm's model, and whether its server streams
LISTED = {"model", "stream", "stream_options"}
#: fields of a reply that are this service's own
REPLACED = {"id", "created", "model", "system_fingerprint", "object", "usage", "ragbandit"}

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
MESSAGE = {
    name: value
    for name, value in dialects.COMPLETION["choices"][0]["message"].items()
    if name not in ("content", "refusal", "tool_calls")
}
CHOICE = {**dialects.COMPLETION["choices"][0], **UNKNOWN, "finish_reason": "tool_calls"}
COMPLETION = {
    **dialects.COMPLETION,
    **UNKNOWN,
    "choices": [{**CHOICE, "message": MESSAGE | UNKNOWN | {"content": "a", "tool_calls": [CALL]}}],
}
CALLS_LAST = sorted(dialects.MESSAGE["content"], key=lambda block: block["type"] == "tool_use")
#: a message whose calls come last, as Anthropic sends it
WHOLE = {**dialects.MESSAGE, **UNKNOWN, "content": CALLS_LAST, "stop_reason": "tool_use"}


def chunks():
    """The completion in two chunks: the text, and all else."""
    (choice,) = copy.deepcopy(COMPLETION["choices"])
    delta = choice.pop("message")
    first = {**COMPLETION, "choices": [{"index": 0, "delta": {"content": delta.pop("content")}, "finish_reason": None}]}
    delta["tool_calls"] = [{"index": 0, **call} for call in delta["tool_calls"]]
    yield first
    yield {**COMPLETION, "choices": [{**choice, "delta": delta}]}


def server_of(dialect, sent):
    if not sent["stream"]:
        return Scripted(body=json.dumps({"chat": COMPLETION, "messages": WHOLE}[dialect]).encode())
    lines = [b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks()]
    events = b"".join(lines) + b"data: [DONE]\n\n" if dialect == "chat" else sse_of(events_of(WHOLE))
    return Scripted(body=events, headers={"content-type": "text/event-stream"})


@pytest.fixture(scope="module", params=["chat", *(["messages"] if "anthropic" in additions() else [])])
def door(request, serve_module):
    """(dialect, function that posts a body to its door, the arm's server of the same dialect)."""
    dialect = request.param
    path, name = {"chat": ("/v1/chat/completions", "openai"), "messages": ("/v1/messages", "anthropic")}[dialect]
    with ScriptedHttp(answer=lambda sent: server_of(dialect, sent)) as server:
        options = {"base_url": server.url, "api_key_env": "NO_KEY", "retries": 0, "stream": "caller"}
        generator = {"name": name, "model": "m", name: options, "supports": ["tools", "json", "images", "files"]}
        service = serve_module(inline=True, generator=generator, arms={"only": {"class": "model"}})
        yield dialect, lambda body: service.http.post(path, json=body), server
        service.close()


def events(reply):
    return [json.loads(line[6:]) for line in reply.text.split("\n") if line.startswith("data: {")]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_goes_out_as_it_came(door, stream):
    """The server gets every field of the request but the listed ones, known or not, in the same order."""
    dialect, post, server = door
    body = {**SENT[dialect], "stream": stream}
    assert post(body).status_code == 200
    sent = server.seen[-1][2]
    assert (sent["model"], sent["stream"]) == ("m", stream)
    kept = {name: value for name, value in sent.items() if name not in LISTED}
    assert kept == {name: value for name, value in body.items() if name not in LISTED}


def test_a_reply_comes_back_as_it_was_sent(door):
    """The client gets every field of the whole reply but this service's own."""
    dialect, post, _ = door
    reply = post({**SENT[dialect], "stream": False}).json()
    if dialect == "messages":
        expected = {name: value for name, value in WHOLE.items() if name not in REPLACED}
        assert {name: value for name, value in reply.items() if name not in REPLACED} == expected
        return
    (choice,), (sent,) = reply["choices"], COMPLETION["choices"]
    assert reply["unknown"] == UNKNOWN["unknown"]
    assert choice["message"].items() >= sent["message"].items()
    assert choice["message"].keys() - sent["message"].keys() == {"refusal"}
    others = sent.keys() - {"message"}
    assert {name: choice[name] for name in others} == {name: sent[name] for name in others}


def test_a_stream_comes_back_as_it_was_sent(door):
    """The joined pieces have every field of the joined chunks but this service's own."""
    dialect, post, _ = door
    pieces = events(post({**SENT[dialect], "stream": True}))
    if dialect == "messages":
        reply = joined(pieces)
        assert (reply["content"], reply["stop_reason"]) == (WHOLE["content"], "tool_use")
        return
    choices = [choice for piece in pieces for choice in piece["choices"]]
    fields = {}
    for choice in choices:
        fields |= {name: value for name, value in choice["delta"].items() if value}
    (sent,) = COMPLETION["choices"]
    calls = [{"index": 0, **call} for call in sent["message"]["tool_calls"]]
    assert fields == {**sent["message"], "tool_calls": calls}
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]
