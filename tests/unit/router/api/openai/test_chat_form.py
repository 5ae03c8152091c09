"""Bodies of other interfaces at the door of chat completions."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from ragbandit.router.api.openai.requests import ChatBody, as_completion
from ragbandit.shared.errors import InvalidInput
from tests.support.additions import needs

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
USER = {"role": "user", "content": "Hi"}


@needs("anthropic", "responses")
@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "name": "weather", "parameters": SCHEMA},
        {"name": "weather", "input_schema": SCHEMA},
        {"type": "custom", "name": "weather", "input_schema": SCHEMA},
    ],
)
def test_tools_of_other_interfaces(tool):
    """Tools of Responses and of Messages become functions, and a choice of one names its function."""
    for choice in ({"type": "function", "name": "weather"}, {"type": "tool", "name": "weather"}):
        chat, _ = as_completion({"messages": [USER], "tools": [tool], "tool_choice": choice})
        assert chat["tools"] == [FUNCTION]
        assert chat["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    chat, _ = as_completion({"messages": [USER], "tools": [tool], "tool_choice": {"type": "any"}})
    assert chat["tool_choice"] == "required"


@needs("anthropic")
def test_blocks_of_messages():
    """Calls, results and images in blocks become calls, messages of tools and parts."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, image]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "cold"}]},
    ]
    asked, answer, result = as_completion({"messages": messages})[0]["messages"]
    assert asked["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    assert answer["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "cold"}


@pytest.mark.parametrize(
    "body",
    [
        {"model": "auto", "messages": [USER], "tools": [FUNCTION], "tool_choice": "auto", "x": None},
        {"messages": [USER], "tools": [{"type": "custom", "custom": {"name": "p"}}, {"type": "web_search"}, 7]},
        {"messages": [USER], "input": "kept"},
        {"input": 7},
        {"messages": "wrong", "tools": "wrong"},
        [],
        None,
    ],
)
def test_a_chat_completion_stays_as_it_is(body):
    """A body in the form of chat completions, and one of no known form, is the same object."""
    assert as_completion(body)[0] is body


@needs("anthropic", "responses")
def test_what_a_chat_lacks_is_named():
    """What a response or a turn of Messages has, and no chat completion, is in the list of what is ignored."""
    tools = [{"type": "web_search"}, {"type": "function", "name": "weather"}]
    items = [USER, {"type": "web_search_call", "status": "completed"}]
    _, ignored = as_completion({"input": items, "tools": tools, "truncation": "auto"})
    assert ignored == ["tools.web_search", "input.web_search_call", "truncation"]
    thoughts = [{"type": "thinking", "thinking": "so", "signature": "s"}, {"type": "thinking", "thinking": "read"}]
    answer = {"role": "assistant", "content": [*thoughts, {"type": "redacted_thinking", "data": "x"}]}
    chat, ignored = as_completion({"messages": [USER, answer, USER]})
    assert ignored == ["messages.thinking", "messages.redacted_thinking"]
    assert chat["messages"][1] == {"role": "assistant", "content": None, "reasoning_content": "read"}


#: a body of each form, with everything that is read
FORMS = {
    "response": {
        "model": "auto",
        "instructions": "Be brief.",
        "input": [
            {"type": "reasoning", "encrypted_content": "{}", "summary": [{"type": "summary_text", "text": "so"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}, {"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Hi"}], "reasoning_details": [{"text": "a"}]},
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:,", "detail": "low"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "namespace": "n", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "cold"}]},
            {"type": "custom_tool_call", "call_id": "c2", "name": "f", "input": "a"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "a"},
        ],
        "tools": [
            {"type": "function", "name": "f", "parameters": SCHEMA},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
            {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark", "definition": "a"}},
            FUNCTION,
        ],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}, "verbosity": "low"},
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
        "max_output_tokens": 9,
    },
    "messages": {
        "model": "auto",
        "messages": [
            {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "QUJD"}}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "so", "signature": "s"},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "cold"}]}
                ],
            },
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}],
        "tool_choice": {"type": "tool", "name": "f"},
    },
}
WRONG = (None, 5, "x", True, [1], ["x"], [[]], [{}], {}, {"x": 1}, {"type": []})


def with_one_wrong(value: Any) -> Iterator[Any]:
    """Copies of a value in which one place, at any level, is wrong or is missing."""
    yield from WRONG
    if isinstance(value, dict):
        for name, part in value.items():
            rest = {key: one for key, one in value.items() if key != name}
            yield rest
            yield from ({**rest, name: wrong} for wrong in with_one_wrong(part))
    if isinstance(value, list):
        for at, part in enumerate(value):
            yield from ([*value[:at], wrong, *value[at + 1 :]] for wrong in with_one_wrong(part))


@pytest.mark.parametrize("form", FORMS)
@needs("anthropic", "responses")
def test_a_wrong_value_at_any_place_is_an_error_of_the_caller(form):
    """A wrong value in a body of another form is accepted or refused as the caller's mistake, at every place."""
    outcomes = {"accepted": 0, "refused": 0}
    for body in with_one_wrong(FORMS[form]):
        try:
            ChatBody.model_validate(body)
        except (InvalidInput, ValidationError):
            outcomes["refused"] += 1
        else:
            outcomes["accepted"] += 1
    assert min(outcomes.values()) > 50
