"""The body of a response at the door of chat completions."""

import pytest

from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.router.api.openai.requests import ChatBody, as_completion
from ragbandit.shared.errors import InvalidInput
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
    chat, ignored = as_completion(body)
    assert ignored == []
    assert chat["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    assert (chat[OUTPUT_LIMIT], chat["verbosity"], chat["reasoning_effort"]) == (9, "low", "low")
    assert (chat["tools"], chat["stream"], chat["user"]) == ([FUNCTION], True, "u")
    assert not chat.keys() & {"input", "store", "include", "text", "reasoning", "instructions"}
    assert as_completion({"model": "auto", "input": "Hi"})[0]["messages"] == [USER]
    assert ChatBody.model_validate(body).messages == chat["messages"]
    with pytest.raises(Unsupported, match="previous_response_id"):
        as_completion({"model": "auto", "input": "Hi", "previous_response_id": "resp_1"})


@pytest.mark.parametrize(
    ("sent", "field"),
    [({"tools": wrong}, "tools") for wrong in ("x", 5, [1], {})]
    + [({"include": wrong}, "include") for wrong in (5, [1], "message.output_text.logprobs")],
)
def test_lists_of_a_response(sent, field):
    """Tools and `include` of another type are refused with the field's name and a remedy."""
    with pytest.raises(InvalidInput) as caught:
        as_completion({"model": "auto", "input": "Hi", **sent})
    assert (caught.value.field, caught.value.remedy) == (field, f"send a list, or leave {field} out")
