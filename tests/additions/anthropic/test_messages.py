"""Anthropic's Messages: a service in front of models that speak chat completions and Messages."""

import json

import pytest

from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.additions import ANTHROPIC
from tests.support.anthropic_events import events_of, joined, sse_of
from tests.support.pages import DOCS
from tests.support.servers.scripted_http import Scripted, ScriptedHttp, json_reply

TOOL = {"name": "weather", "description": "Now", "input_schema": {"type": "object", "properties": {}}}
QUESTION = [{"role": "user", "content": "The weather?"}]
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "interleaved-thinking-2025-05-14"}
SIGNED = {"type": "thinking", "thinking": "Let me see.", "signature": "EqQBCg=="}
ANSWER = {
    "type": "message",
    "id": "msg_up",
    "role": "assistant",
    "model": "claude-up",
    "content": [
        SIGNED,
        {"type": "text", "text": "I search."},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "Paris"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"url": "https://host.example"}]},
        {"type": "text", "text": "Sunny.", "citations": [{"type": "web_search_result_location", "url": "u"}]},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
}
pytestmark = pytest.mark.skipif(ANTHROPIC is None, reason="this tree lacks the addition anthropic")
STREAM = Scripted(body=sse_of(events_of(ANSWER)), headers={"content-type": "text/event-stream"})


def chat_model(sent):
    """What the models behind chat completions reply."""
    texts = json.dumps(sent)
    if "refuse thoughts" in texts and "reasoning_content" in texts:
        return Reply(status=400, text="Unknown field: reasoning_content")
    if sent.get("tools") and all(one["role"] != "tool" for one in sent["messages"]):
        function = {"name": "weather", "arguments": '{"city": "Paris"}'}
        calls = [{"id": f"call_{len(texts)}", "type": "function", "function": function}]
        return Reply(message={"reasoning_content": "I ask.", "tool_calls": calls}, finish="tool_calls")
    cached = {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 2}}}
    return Reply(text="It is sunny", changes=cached)


def billing(number):
    return [{"type": "text", "text": f"x-anthropic-billing-header: cch={number};"}]


@pytest.fixture(scope="module")
def models():
    with ScriptedServer(chat_model) as chats, ScriptedHttp(STREAM) as messages:
        yield chats, messages


@pytest.fixture(scope="module")
def door(serve_module, models):
    """The HTTP client of a service with an arm for each form, and one that reads only questions."""
    chats, messages = models
    chat = {
        "name": "openai",
        "model": "gpt",
        "openai": {"base_url": chats.url, "retries": 0},
        "supports": ["tools", "json", "images"],
    }
    claude = {"name": "anthropic", "model": "claude-up", "anthropic": {"base_url": messages.url, "retries": 0}}
    prices = {"input": 1000.0, "output": 1000.0}
    service = serve_module(
        inline=True,
        generator=chat,
        generators={"claude": claude | {"supports": ["tools", "json", "images", "files"], "token_prices": prices}},
        arms={
            "gpt": {"class": "model"},
            "claude": {"class": "model", "generator": "claude"},
            "recall": {"class": "no_retrieval"},
        },
        conversation={"rewrite": {"by": "off"}},
        server={"model_aliases": {"claude-*": "arm/gpt"}},
    )
    return service.http


def asked(door, *, path="/v1/messages", headers=HEADERS, **body):
    body = {"model": "arm/gpt", "max_tokens": 50, "messages": QUESTION} | body
    return door.post(path, json=body, headers=headers)


def message(door, **body):
    reply = asked(door, **body)
    assert reply.status_code == 200, reply.text
    if not body.get("stream"):
        return reply.json()
    events = [json.loads(line[6:]) for line in reply.text.split("\n") if line.startswith("data: ")]
    named = [line[7:] for line in reply.text.split("\n") if line.startswith("event: ")]
    assert named == [event["type"] for event in events]
    return joined(events)


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_to_a_chat_model(door, models, stream):
    """A chat model gets a chat completion, and its reply is a message with the decision's id."""
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    system.insert(0, {"type": "text", "text": "x-anthropic-billing-header: cch=1;"})
    reply = message(door, stream=stream, system=system, stop_sequences=["END"], top_k=3, context_management={})
    sent = models[0].requests[-1].body
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, *QUESTION]
    assert (sent["stop"], sent["top_k"], sent["max_tokens"]) == (["END"], 3, 50)
    assert (reply["type"], reply["role"], reply["model"]) == ("message", "assistant", "ragbandit/gpt")
    assert reply["content"] == [{"type": "text", "text": "It is sunny"}]
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("end_turn", None)
    usage = reply["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (7, 2, 3)
    assert door.post("/v1/feedback", json={"decision_id": reply["id"], "rating": True}).status_code == 202
    assert reply["ragbandit"]["ignored"] == ["context_management"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_of_tools_is_one_decision(door, models, stream):
    """The results of tools go to the arm that asked, also if a text follows them; images follow the results."""
    question = [{"role": "user", "content": f"Does it rain? {stream}"}]
    first = message(door, stream=stream, messages=question, tools=[TOOL], system=billing(1))
    thoughts, call = first["content"]
    assert thoughts == {"type": "thinking", "thinking": "I ask.", "signature": ""}
    assert (call["name"], call["input"], first["stop_reason"]) == ("weather", {"city": "Paris"}, "tool_use")
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    result = {
        "type": "tool_result",
        "tool_use_id": call["id"],
        "content": [{"type": "text", "text": "wet"}, image],
        "is_error": True,
    }
    last = {"role": "user", "content": [result, {"type": "text", "text": "<system-reminder>"}]}
    messages = [*question, {"role": "assistant", "content": first["content"]}, last]
    tools = [TOOL | {"cache_control": {"type": "ephemeral"}}]
    second = message(door, stream=stream, messages=messages, tools=tools, system=billing(2))
    assert second["content"] == [{"type": "text", "text": "It is sunny"}]
    kept = door.get(f"/v1/decisions/{second['id']}").json()
    assert kept["request"]["tool_turn"]["first"] == first["id"].removeprefix("msg_")
    *_, answer, tool, user = models[0].requests[-1].body["messages"]
    assert (answer["reasoning_content"], tool["role"]) == ("I ask.", "tool")
    assert tool["content"].startswith("Error:\nwet")
    assert [part["type"] for part in user["content"]] == ["image_url", "text"]


def test_a_reminder_of_the_system_is_no_new_draw(door):
    """A system message behind the results of tools, as Claude Code sends it, leaves the loop with its arm."""
    question = [{"role": "user", "content": "Does it hail?"}, {"role": "system", "content": "Skills: weather."}]
    first = message(door, messages=question, tools=[TOOL])
    call = first["content"][-1]
    last = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "no"}]}
    answer = {"role": "assistant", "content": first["content"]}
    reminder = {"role": "system", "content": "The task list is empty."}
    second = message(door, model="auto", messages=[*question, answer, last, reminder], tools=[TOOL])
    kept = door.get(f"/v1/decisions/{second['id']}").json()
    assert (kept["arm"], kept["request"]["tool_turn"]["first"]) == ("gpt", first["id"].removeprefix("msg_"))


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_lost_to_an_arm_of_anthropic(door, models, stream):
    """A request reaches a server of Messages as it came, with the headers for betas, and its reply comes back whole."""
    tools = [
        TOOL | {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    foreign = {"type": "thinking", "thinking": "Mine", "signature": ""}
    before = [
        *QUESTION,
        {"role": "assistant", "content": [foreign, SIGNED, {"type": "text", "text": "Hm."}]},
        *QUESTION,
    ]
    body = {"messages": before, "tools": tools, "thinking": {"type": "enabled", "budget_tokens": 2000}}
    body |= {
        "unknown": {"a": None},
        "null": None,
        "metadata": {"user_id": "u"},
        "system": [{"type": "text", "text": "S", "cache_control": {}}],
    }
    reply = message(door, model="auto", stream=stream, **body)
    path, headers, sent = models[1].seen[-1]
    assert path == "/v1/messages"
    headers = {name.lower(): value for name, value in headers.items()}
    assert (headers["x-api-key"], headers["anthropic-beta"]) == ("none", HEADERS["anthropic-beta"])
    assert sent.pop("messages") == [before[0], {"role": "assistant", "content": before[1]["content"][1:]}, before[2]]
    body.pop("messages")
    assert sent == {**body, "model": "claude-up", "max_tokens": 50, "stream": True}
    assert (reply["content"], reply["stop_reason"]) == (ANSWER["content"], "tool_use")
    assert (reply["usage"]["input_tokens"], reply["usage"]["cache_read_input_tokens"]) == (9, 4)
    facts = door.get(f"/v1/decisions/{reply['id']}").json()
    assert facts["pmf"] == {"claude": 1.0}
    assert facts["facts"]["lacking"]["gpt"] == ["anthropic"]
    assert facts.get("session_id") is None


def test_a_chat_to_an_arm_of_anthropic(door, models):
    """A chat completion reaches a server of Messages in its form, and the reply is a chat completion."""
    body = {
        "model": "arm/claude",
        "messages": QUESTION,
        "seed": 1,
        "response_format": {"type": "json_object"},
        "temperature": 1.4,
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    reply = door.post("/v1/chat/completions", json=body).json()
    sent = models[1].seen[-1][2]
    assert sent["messages"] == [{"role": "user", "content": [{"type": "text", "text": "The weather?"}]}]
    assert (sent["max_tokens"], sent["temperature"], "seed" in sent) == (8192, 1.0, False)
    (choice,) = reply["choices"]
    assert choice["message"]["content"] == "I search.Sunny."
    assert choice["message"]["reasoning_content"] == "Let me see."
    assert choice["message"]["thinking_blocks"][0] == SIGNED
    assert choice["finish_reason"] == "tool_calls"
    assert reply["ragbandit"]["ignored"] == ["seed", "response_format"]
    assert reply["ragbandit"]["cost"]["dollars"] > 0
    again = [*QUESTION, choice["message"], {"role": "tool", "tool_call_id": "toolu_1", "content": "sun"}]
    door.post("/v1/chat/completions", json=body | {"messages": again})
    assert [one["content"][0] for one in models[1].seen[-1][2]["messages"]][1:] == [
        SIGNED,
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sun"}]},
    ]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
def test_refused_thoughts_are_left_out_at_every_door(door, models, path):
    """A server that refuses the thoughts of another model is asked again without them."""
    thoughts = {"type": "thinking", "thinking": "Mine", "signature": ""}
    answer = {"role": "assistant", "content": [thoughts, {"type": "text", "text": "Hm."}]}
    if path.endswith("completions"):
        answer = {"role": "assistant", "content": "Hm.", "reasoning_content": "Mine"}
    messages = [{"role": "user", "content": "refuse thoughts"}, answer, *QUESTION]
    body = {"messages": messages, "max_tokens": 5}
    if path.endswith("responses"):
        reasoning = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Mine"}]}
        body = {"input": [messages[0], reasoning, {"role": "assistant", "content": "Hm."}, *QUESTION]}
    before = len(models[0].requests)
    reply = door.post(path, json={"model": "arm/gpt", **body})
    assert reply.status_code == 200, reply.text
    assert len(models[0].requests) == before + 2
    assert models[0].requests[-1].body["messages"][1] == {"role": "assistant", "content": "Hm."}
    assert reply.json()["ragbandit"]["ignored"] == ["thoughts"]


def test_an_overloaded_server_is_replaced(serve, models):
    """After a 529 another arm answers, which gets the message as a chat completion."""
    busy = json_reply({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, status=529)
    with ScriptedHttp(busy) as server:
        service = serve(
            inline=True,
            generator={
                "name": "anthropic",
                "model": "c",
                "anthropic": {"base_url": f"{server.url}/v1", "retries": 0},
            },
            generators={"gpt": {"name": "openai", "model": "gpt", "openai": {"base_url": models[0].url}}},
            arms={"claude": {"class": "model"}, "gpt": {"class": "model", "generator": "gpt"}},
            policy={"name": "uniform"},
            health={"failures": 0},
        )
        for stream in (False, True):
            replies = [message(service.http, model="auto", stream=stream) for _ in range(12)]
            facts = [one["ragbandit"]["failover"] for one in replies if one["ragbandit"]["failover"]]
            assert {one["model"] for one in replies} == {"ragbandit/gpt"}
            assert {fact["arm"] for fact in facts} == {"claude"}
        refused = asked(service.http, model="arm/claude")
        assert (refused.status_code, refused.json()["error"]["type"]) == (529, "overloaded_error")
        assert "x-should-retry" not in refused.headers
        assert "Overloaded" in refused.json()["error"]["message"]
        service.close()
    assert models[0].requests[-1].body["messages"] == QUESTION


@pytest.mark.parametrize(
    ("user", "session"),
    [
        ("user_ab_account__session_0f4c", "0f4c"),
        ('{"device_id": "d", "session_id": "s1"}', "s1"),
        ('{"session_id": null}', None),
        ("a person", None),
        ("u_session_" + "ü" * 128, "ü" * 128),
        (5, None),
        (None, None),
    ],
)
def test_sessions_and_limits(door, user, session):
    """The session is the one in user_id, whatever its form, and a limit of -1 is no limit."""
    reply = message(door, metadata={"user_id": user}, max_tokens=-1)
    assert reply["content"] == [{"type": "text", "text": "It is sunny"}]
    assert door.get(f"/v1/decisions/{reply['id']}").json().get("session_id") == session


def test_errors_have_anthropics_shape(door):
    """Errors of every layer on these paths have Anthropic's shape, with the field, the remedy and the request's id."""
    cases = [
        (asked(door, messages=[]), 400, "invalid_request_error", "messages"),
        (asked(door, model="claude_x"), 404, "not_found_error", "no model"),
        (asked(door, path="/v1/v1/messages"), 404, "not_found_error", "base URL of clients is http://127.0.0.1"),
        (asked(door, path="/messages"), 404, "not_found_error", "base URL"),
        (
            door.post("/v1/messages", content=b"{", headers={"content-type": "application/json"}),
            400,
            "invalid_request_error",
            "JSON",
        ),
        (door.post("/v1/messages", content=b"a" * 5_000_000), 413, "request_too_large", "max_chat_bytes"),
        (asked(door, path="/v1/messages/batches"), 404, "not_found_error", "POST /v1/messages"),
        (door.get("/v1/files", headers=HEADERS), 404, "not_found_error", "`file` part"),
        (door.post("/v1/complete", json={}), 404, "not_found_error", "POST /v1/messages"),
        (door.get("/v1/models/none", headers=HEADERS), 404, "not_found_error", "no model"),
    ]
    for reply, status, kind, words in cases:
        body = reply.json()
        assert (reply.status_code, body["type"], body["error"]["type"]) == (status, "error", kind), reply.text
        assert words in body["error"]["message"], reply.text
        assert body["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]


def test_a_reached_limit_has_a_code(serve):
    """A turn beyond a limit is a rate_limit_error with the code of chat completions, and its client does not retry."""
    http = serve(conversation={"session_limit": {"turns": 1}}).http
    headers = {**HEADERS, "x-ragbandit-session-id": "s"}
    assert http.post("/v1/route", json={"question": "Who?", "session_id": "s"}).status_code == 200
    refused = asked(http, headers=headers, model="auto")
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "limit_reached")
    page = " ".join((DOCS / "conversations.md").read_text(encoding="utf-8").split())
    assert f"In the forms of OpenAI and Anthropic the code is `{error['code']}`" in page
    assert "conversation.session_limit.turns" in error["message"]
    assert refused.headers["x-should-retry"] == "false"


def test_models_and_counts(door):
    """Models have Anthropic's shape if its header is sent, and tokens are counted without asking a model."""
    page = door.get("/v1/models", headers=HEADERS).json()
    assert [one["id"] for one in page["data"]][:1] == ["auto"]
    assert (page["has_more"], page["first_id"]) == (False, "auto")
    assert door.get("/v1/models/auto", headers=HEADERS).json()["type"] == "model"
    assert door.get("/v1/models").json()["object"] == "list"
    counted = asked(door, path="/v1/messages/count_tokens", system="word " * 100, tools=[TOOL])
    assert 100 < counted.json()["input_tokens"] < 300
    assert message(door, model="claude-sonnet-4-5")["model"] == "ragbandit/gpt"
