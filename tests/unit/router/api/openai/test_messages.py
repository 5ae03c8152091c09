"""Messages of OpenAI's interface as ours."""

import pytest

from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.router.api.openai.requests import turns_of
from ragbandit.shared.errors import InvalidInput


def turns(*messages):
    return [(turn.role, turn.text) for turn in turns_of(messages)]


def test_roles():
    """Developers speak as the system; what tools said, and messages that say nothing, are left out."""
    found = turns(
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "4", "tool_call_id": "t"},
        {"role": "function", "content": "5", "name": "f"},
        {"role": "assistant"},
        {"role": "user", "content": " \n"},
        {"role": "user", "content": "c", "name": "ann"},
    )
    assert found == [("system", "a"), ("system", "b"), ("user", "c")]


def test_parts():
    """Parts of text are joined by lines, whatever characters they hold; a refusal is text of the assistant's."""
    parts = [{"type": "text", "text": "één"}, {"type": "text", "text": "🧛‍♂️"}]
    refusal = [{"type": "refusal", "refusal": "No."}]
    items = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    assert turns({"role": "user", "content": items}) == [("user", "a\nb")]
    assert turns({"role": "user", "content": parts}, {"role": "assistant", "content": refusal}) == [
        ("user", "één\n🧛‍♂️"),
        ("assistant", "No."),
    ]


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video", "x" * 1000])
def test_what_no_arm_reads(kind):
    """A part that is no text is refused, and named."""
    with pytest.raises(Unsupported) as caught:
        turns_of([{"role": "user", "content": [{"type": kind}]}])
    assert caught.value.field == "messages.0.content.0.type"
    assert len(caught.value.message) < 120


@pytest.mark.parametrize(
    "content", [5, True, {"type": "text"}, [None], ["a"], [{"type": 5}], [{"type": "text", "text": 5}]]
)
def test_what_is_no_content(content):
    """Content of another shape is refused, and named."""
    with pytest.raises(InvalidInput) as caught:
        turns_of([{"role": "user", "content": content}])
    assert caught.value.field.startswith("messages.0.content")
