"""Chats as they come: the question in them, what an arm must be able to do, and items of responses as messages."""

import pytest

from ragbandit.router.api.openai.chats import read_chat
from ragbandit.router.api.schemas.requests import MAX_TEXT
from ragbandit.shared.errors import InvalidInput

HI = {"role": "user", "content": "Hi"}
YES = {"role": "assistant", "content": "Yes?"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": {"name": "f"}}]}
DONE = {"role": "tool", "tool_call_id": "c1", "content": "4"}


def read(*messages, passed=True, **more):
    return read_chat({"messages": list(messages), **more}, passed=passed)


def user(*parts):
    return {"role": "user", "content": list(parts)}


@pytest.mark.parametrize(
    ("messages", "question", "needs"),
    [
        ([HI], "Hi", ()),
        ([HI, YES, {"role": "user", "content": "Who?"}], "Who?", ()),
        ([HI, {"role": "system", "content": "In French."}], "Hi", ()),
        ([HI, YES], "Hi", ("chat",)),
        ([HI, YES, {"role": "user", "content": " "}], "Hi", ("chat",)),
        ([{"role": "developer", "content": "Write a title."}], "Write a title.", ("chat",)),
        ([YES, {"role": "user", "content": ""}], "Yes?", ("chat",)),
        ([HI, {"role": "user", "content": " "}], "Hi", ()),
        ([HI, CALLS, DONE], "Hi", ()),
        ([HI, {"role": "critic", "content": "No."}], "Hi", ("chat",)),
        ([user("Hi", {"text": "you"})], "Hi\nyou", ()),
        ([user({"type": "input_text", "text": "Hi"})], "Hi", ()),
        ([user({"type": "image_url", "image_url": "https://x.example/a.png"})], "[image]", ("images",)),
        ([user({"image_url": {}}, {"type": "input_file", "file_id": "1"})], "[image]\n[file]", ("files", "images")),
        ([user({"type": "video_url", "video_url": {}}, {"type": "text", "text": "?"})], "[video_url]\n?", ("chat",)),
        ([user({"type": "text", "text": "a"}, {"type": ["x"]}, 5)], "a\n[['x']]\n[text]", ("chat",)),
        ([HI, {"role": "user", "content": {"text": "?"}}], "Hi", ("chat",)),
        ([HI, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Well"}, "So."]}, HI], "Hi", ()),
    ],
)
def test_the_question_of_a_chat(messages, question, needs):
    """A model is sent every message as it came; the question is a user's last text, and other arms are left out if
    they could not answer it.
    """
    chat = read(*messages)
    asked = [turn for turn in chat.turns if turn.role != "system"][-1]
    assert (asked.role, asked.text, chat.sent.needs) == ("user", question, (*needs,))
    assert chat.fields["messages"] == messages


def test_what_no_arm_reads():
    """If no arm passes chats on, a part of a user that cannot be read is refused; thoughts of a model are not."""
    thoughts = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}
    assert [turn.text for turn in read(HI, thoughts, HI, passed=False).turns] == ["Hi", "Hi"]
    for message, field in ((user({"type": "video_url"}), "content.0.type"), ({"role": "critic"}, "role")):
        with pytest.raises(InvalidInput) as refused:
            read(HI, message, passed=False)
        assert refused.value.field == f"messages.1.{field}"


def test_long_texts_and_broken_characters():
    """Long texts are sent whole and kept without their middle; what no store takes is a replacement character."""
    long, half = "x" * (MAX_TEXT + 5), {"role": "tool", "tool_call_id": "c1", "content": "4\ud83d\x00"}
    chat = read({"role": "system", "content": long}, HI)
    assert (chat.sent.needs, chat.sent.clipped, chat.fields["messages"][0]["content"]) == ((), 1, long)
    assert max(len(turn.text) for turn in chat.turns) == MAX_TEXT
    assert read({"role": "user", "content": long}, {"role": "system", "content": "?"}).sent.needs == ("chat",)
    assert read({"role": "user", "content": long}, passed=False).turns[0].text == long
    sent = read(HI, CALLS, half, tools=[{"function": {"name": "f\udc00"}}]).fields
    assert (sent["messages"][2]["content"], sent["tools"]) == ("4��", [{"function": {"name": "f�"}}])


@pytest.mark.parametrize(("value", "sent"), [(-1, None), (-1.0, None), (None, None), (16, 16), (16.0, 16)])
def test_limits_of_an_answer(value, sent):
    """A limit is a whole number from 1 on; -1 stands for no limit; other values are refused by the parameter."""
    chat = read(HI, max_tokens=value, max_completion_tokens=value, stop=[], tools=None)
    assert {name: chat.fields.get(name) for name in ("max_tokens", "max_completion_tokens")} == {
        "max_tokens": sent,
        "max_completion_tokens": sent,
    }
    assert not {"stop", "tools"} & chat.fields.keys()
    for wrong in (0, -5, 1.5, True, "16", [16], 2**60):
        with pytest.raises(InvalidInput) as refused:
            read(HI, max_completion_tokens=wrong)
        assert refused.value.field == "max_completion_tokens"


@pytest.mark.parametrize("tools", [{}, {"tools": []}, {"tools": None, "functions": None}])
def test_a_choice_without_tools_is_left_out(tools):
    """Servers refuse parameters about tools without tools; a demand for a call is sent, so that they refuse it."""
    chat = read(HI, **tools, tool_choice="auto", function_call="none", parallel_tool_calls=False)
    assert chat.fields.keys() == {"messages"}
    assert read(HI, **tools, tool_choice="required").fields["tool_choice"] == "required"
    assert read(HI, tools=[CALLS], parallel_tool_calls=False).fields["parallel_tool_calls"] is False


def test_the_size_of_a_chat_has_no_data():
    """Images and other data count no tokens: they would make a picture longer than any context."""
    data = {"url": f"data:image/png;base64,{'A' * 40_000}"}
    parts = [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": data},
        {"type": "video", "video": data},
    ]
    assert read(user(*parts)).sent.tokens < 100
    answer = {**YES, "images": [data], "reasoning_details": [{"type": "reasoning.encrypted", "data": "A" * 40_000}]}
    assert read(HI, answer, HI).sent.tokens < 100


@pytest.mark.parametrize("value", [float("nan"), [[float("inf")]]])
def test_an_unknown_field_that_json_cannot_express(value):
    """It is refused by its name."""
    with pytest.raises(InvalidInput) as refused:
        read(HI, top_a=value)
    assert refused.value.field == "top_a"
