"""Bodies of other interfaces at the door of chat completions."""

import pytest

from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.router.api.openai.foreign_forms import as_completion
from ragbandit.router.api.openai.requests import ChatBody
from ragbandit.shared.model_servers.token_usage import OUTPUT_LIMIT

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
USER = {"role": "user", "content": "Hi"}


def test_the_body_of_a_response():
    """`input`, `instructions` and the parameters of responses become a chat completion; others stay."""
    body = {
        "model": "auto",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "text": {"verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "stream": True,
        "user": "u",
        "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}],
    }
    chat = as_completion(body)
    assert chat["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    assert (chat[OUTPUT_LIMIT], chat["verbosity"], chat["reasoning_effort"]) == (9, "low", "low")
    assert (chat["tools"], chat["stream"], chat["user"]) == ([FUNCTION], True, "u")
    assert not chat.keys() & {"input", "store", "include", "text", "reasoning", "instructions"}
    assert as_completion({"model": "auto", "input": "Hi"})["messages"] == [USER]
    assert ChatBody.model_validate(body).messages == chat["messages"]
    with pytest.raises(Unsupported, match="previous_response_id"):
        as_completion({"model": "auto", "input": "Hi", "previous_response_id": "resp_1"})


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
        chat = as_completion({"messages": [USER], "tools": [tool], "tool_choice": choice})
        assert chat["tools"] == [FUNCTION]
        assert chat["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert (
        as_completion({"messages": [USER], "tools": [tool], "tool_choice": {"type": "any"}})["tool_choice"]
        == "required"
    )


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
    asked, answer, result = as_completion({"messages": messages})["messages"]
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
    assert as_completion(body) is body
