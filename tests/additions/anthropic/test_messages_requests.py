"""Requests of Anthropic's Messages as chat completions, and back."""

import json

import pytest
from hypothesis import given, strategies as st

from ragbandit.additions.anthropic.messages.replies import content_of
from ragbandit.additions.anthropic.messages.requests import (
    chat_of,
    messages_of,
    unread,
)
from ragbandit.additions.anthropic.messages.thoughts import is_signed
from ragbandit.shared.dialects.thoughts import without_refused_thoughts, without_thoughts
from ragbandit.shared.model_servers.openai_client import RefusedRequest
from ragbandit.shared.texts.json_values import json_bytes
from ragbandit.shared.types.encodings import Encoding

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12).filter(str.strip)
TEXT = st.builds(lambda text: {"type": "text", "text": text}, WORDS)
SOURCES = st.sampled_from(
    [{"type": "base64", "media_type": "image/png", "data": "QUJD"}, {"type": "url", "url": "https://host.example/a"}]
)
IMAGE = st.builds(lambda source: {"type": "image", "source": source}, SOURCES)
DOCUMENT = st.builds(lambda source, title: {"type": "document", "source": source, "title": title}, SOURCES, WORDS)
INPUTS = st.dictionaries(WORDS, st.none() | st.integers() | WORDS | st.lists(WORDS, max_size=2), max_size=3)
CALL = st.builds(
    lambda number, sent: {"type": "tool_use", "id": f"c{number}", "name": "f", "input": sent}, st.integers(), INPUTS
)
CALLS = st.lists(CALL, max_size=3, unique_by=lambda call: call["id"])


@st.composite
def turns(draw):
    """A user's turn, the answer, and the results of its calls, of blocks that chat completions can express."""
    user = {"role": "user", "content": draw(st.lists(TEXT | IMAGE | DOCUMENT, min_size=2, max_size=4))}
    calls = draw(CALLS)
    answer = {"role": "assistant", "content": [*draw(st.lists(TEXT, min_size=1, max_size=1)), *calls]}
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": [draw(TEXT)]} for call in calls]
    return [user, answer, *([{"role": "user", "content": results}] if results else [])]


@st.composite
def requests(draw):
    messages = [message for turn in draw(st.lists(turns(), min_size=1, max_size=3)) for message in turn]
    tool = {"name": "f", "description": "F", "input_schema": {"type": "object", "properties": {}}}
    optional = {
        "system": st.lists(TEXT, min_size=1, max_size=1),
        "temperature": st.floats(0, 1),
        "top_k": st.integers(1, 9),
        "stop_sequences": st.lists(WORDS, min_size=1, max_size=3),
        "tool_choice": st.sampled_from(
            [{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": "f"}]
        ),
    }
    body = draw(st.fixed_dictionaries({}, optional=optional))
    return {"max_tokens": 9, "messages": messages, "tools": [tool], **body}


def flat(body):
    """The request with neighbouring texts of a message joined, as they are in a chat."""
    messages = []
    for message in body["messages"]:
        content = []
        for block in message["content"]:
            if block["type"] == "text" and content and content[-1]["type"] == "text":
                content[-1] = {"type": "text", "text": content[-1]["text"] + "\n\n" + block["text"]}
            else:
                content.append(block)
        if messages and messages[-1]["role"] == message["role"]:
            messages[-1]["content"] += content
        else:
            messages.append({**message, "content": content})
    return {**body, "messages": messages}


@given(requests())
def test_a_request_comes_back_from_a_chat(body):
    """A request that both forms can express is the same after it was a chat."""
    chat, foreign = chat_of(body)
    json.dumps(chat)
    assert foreign == set()
    back = messages_of(chat, max_tokens=1)
    assert flat(back) == flat(body) or [m["content"] for m in flat(back)["messages"]] == [
        m["content"] for m in flat(body)["messages"]
    ]
    assert messages_of(chat_of(back)[0], max_tokens=1) == back


KEYS = [
    "type",
    "text",
    "source",
    "content",
    "url",
    "data",
    "id",
    "input",
    "signature",
    "thinking",
    "tool_use_id",
    "name",
    "function",
]
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
JUNK = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(KEYS), v, max_size=4), max_leaves=8
)
NAMES = [
    "system",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "stop_sequences",
    "metadata",
    "mcp_servers",
    "stop",
    "user",
]
NAMES += ["response_format", "reasoning_effort", "temperature", "max_tokens", "parallel_tool_calls"]
KINDS = [
    "text",
    "image",
    "document",
    "tool_use",
    "tool_result",
    "thinking",
    "redacted_thinking",
    "search_result",
    "image_url",
    "file",
]
BLOCK = st.builds(lambda kind, junk: dict.fromkeys(KEYS, junk) | {"type": kind}, st.sampled_from(KINDS), JUNK)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]) | JUNK},
    optional={"content": st.lists(BLOCK | JUNK, max_size=3) | JUNK, "tool_calls": JUNK, "thinking_blocks": JUNK},
)


@given(st.lists(MESSAGE, min_size=1, max_size=3), st.dictionaries(st.sampled_from(NAMES), JUNK, max_size=4))
def test_fields_of_any_type_are_converted(messages, more):
    """No field of a request raises an error, whatever its type."""
    body = {"messages": messages, **more}
    chat_of(body)
    chat_of(body, joined=True)
    without_thoughts(body, keeps=is_signed)
    json.dumps(messages_of(body, max_tokens=1))


@pytest.mark.parametrize("joined", [False, True])
@given(body=requests(), twice=st.booleans())
def test_a_conversion_with_an_encoding_is_the_same(joined, body, twice):
    """What was converted before is found by the request's encoding, whether it was converted joined or not."""
    body |= {"system": [{"type": "text", "text": "s"}], "tools": [{"name": "f", "input_schema": {"type": "object"}}]}
    encoding = Encoding.joined(map(Encoding.of, body.values()))
    if twice:
        chat_of(body, encoding, joined=not joined)
    chat, foreign = chat_of(body, encoding, joined=joined)
    assert (chat, foreign) == chat_of(body, joined=joined)
    assert None not in map(encoding.digest, [*chat["messages"], *chat["tools"]])
    assert encoding.body(chat) == json_bytes(chat)


def test_only_what_follows_results_is_converted_twice():
    """The door reads the same messages that a server of chats gets, except turns with texts after results."""
    result = {"type": "tool_result", "tool_use_id": "c", "content": "r"}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
    turns = [
        {"role": "user", "content": [result]},
        {"role": "user", "content": [result, {"type": "text", "text": "t"}]},
    ]
    body = {"messages": [call, turns[0], call, turns[1]]}
    encoding = Encoding.joined(map(Encoding.of, body.values()))
    read, sent = (chat_of(body, encoding, joined=joined)[0]["messages"] for joined in (True, False))
    assert [one is other for one, other in zip(read, sent, strict=False)] == [True, True, True, False]
    assert [message["content"] for message in read[3:] + sent[3:]] == ["r\nt", "r", "t"]


def test_thoughts_go_only_to_the_model_that_made_them():
    """Signed thoughts stay with Anthropic, and other thoughts with other models."""
    signed = {"type": "thinking", "thinking": "A", "signature": "EqQ="}
    (plain,) = content_of({"reasoning_content": "B"}, text="")
    content = [signed, plain, {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Hi"}]
    body = {"messages": [{"role": "assistant", "content": content}]}
    assert chat_of(body)[0]["messages"] == [{"role": "assistant", "content": "Hi", "reasoning_content": "B"}]
    kept = without_thoughts(body, keeps=is_signed)["messages"][0]["content"]
    assert kept == [content[0], *content[2:]]
    answer = {"role": "assistant", "content": "Hi", "thinking_blocks": [signed, plain]}
    blocks = messages_of({"messages": [answer]}, max_tokens=1)["messages"][0]["content"]
    assert blocks == [signed, content[3]]


def refusal(message, status=400):
    error = RefusedRequest.__new__(RefusedRequest)
    error.status_code, error.body = status, {"error": {"message": message}}
    return error


def test_a_call_without_input_keeps_its_signature():
    """A signature of a call stays if another field of the call is missing."""
    more = {"extra_content": {"google": {"thought_signature": "SIG"}}}
    block = {"type": "tool_use", "id": "t1", "name": "f", **more}
    chat, _ = chat_of({"messages": [{"role": "assistant", "content": [block]}]})
    assert chat["messages"][0]["tool_calls"][0]["extra_content"] == more["extra_content"]


def test_what_a_server_refuses_is_left_out():
    """A request is repeated without thoughts only if the server's refusal names them."""
    fault, user = refusal("Invalid `signature` in `thinking` block"), {"role": "user", "content": "b"}
    thought = {"messages": [{"role": "assistant", "content": "a", "reasoning_details": [1]}, user], "seed": 1}
    bare = without_refused_thoughts(thought | {"reasoning_effort": "low"}, error=fault)
    assert bare == {"messages": [{"role": "assistant", "content": "a"}, user], "seed": 1, "reasoning_effort": "low"}
    for more in ({"reasoning_effort": "low"}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}):
        bare = without_refused_thoughts({"messages": [user], **more}, error=fault)
        assert bare["messages"] == [user]
        assert not any(bare.get(name) for name in more)
    assert without_refused_thoughts(thought, error=refusal("the schema is wrong")) is None
    assert without_refused_thoughts(thought, error=refusal("thinking", status=500)) is None
    assert without_refused_thoughts({"messages": [user]}, error=fault) is None


def test_parameters_of_both_forms():
    """Budgets and efforts, formats and single calls are converted; others are named as ignored."""
    schema = {"type": "object"}
    body = {"messages": [], "thinking": {"type": "enabled", "budget_tokens": 5000}, "service_tier": "auto"}
    body |= {"output_config": {"format": {"type": "json_schema", "schema": schema}}, "max_tokens": 7}
    body |= {"tools": [{"name": "f"}], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    chat, _ = chat_of(body)
    assert (chat["reasoning_effort"], chat["tool_choice"], chat["parallel_tool_calls"]) == ("high", "required", False)
    assert chat["response_format"]["json_schema"]["schema"] == schema
    assert unread(body) == ["service_tier"]
    back = messages_of(chat | {"temperature": 1.5, "user": "u"}, max_tokens=1)
    assert (back["output_config"]["effort"], back["thinking"], back["metadata"]) == (
        "high",
        {"type": "adaptive"},
        {"user_id": "u"},
    )
    assert back["tool_choice"] == body["tool_choice"]
    assert "temperature" not in back
    assert messages_of({"messages": [], "temperature": 1.5}, max_tokens=3) == {
        "messages": [],
        "max_tokens": 3,
        "temperature": 1.0,
    }
