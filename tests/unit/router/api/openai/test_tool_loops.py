"""Hashes of conversations: what clients write in other ways is the same, and what others say is not."""

import copy

import pytest

from ragbandit.router.api.openai.tool_loops import hash_conversation
from ragbandit.shared.types.encodings import Encoding

NOT_ENCODED = Encoding()
CALLS = [{"id": key, "type": "function", "function": {"name": "tide", "arguments": "{}"}} for key in ("c-1", "c-2")]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "When is high tide?"}]},
    {"role": "assistant", "content": "I look.", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "c-1", "content": "noon"},
    {"role": "tool", "tool_call_id": "c-2", "content": "six"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c-3", "function": {"name": "tide"}}]},
    {"role": "tool", "tool_call_id": "c-3", "content": "now"},
]


def hashes(messages, *, begin="a caller", start=0, encoding=NOT_ENCODED):
    return hash_conversation(messages, earlier_hash=begin, start=start, encoding=encoding)


def keys(messages, *, begin="a caller"):
    """The keys of the calls, which an encoding does not change, be the messages new or known."""
    found, encoding = hashes(messages, begin=begin), Encoding.of(messages)
    assert hashes(messages, begin=begin, encoding=encoding) == hashes(messages, begin=begin, encoding=encoding) == found
    return found[1]


def key(messages, *, begin="a caller"):
    """The key of the last answer's calls; None without one."""
    return next(iter(keys(messages, begin=begin)[::-1]), None)


def changed(at, **fields):
    messages = copy.deepcopy(CHAT)
    messages[at] |= fields
    return messages


HARMLESS = {
    "developer": changed(0, role="developer"),
    "a text for parts": changed(1, content="When is high tide?"),
    "whitespace": changed(1, content=" When is\nhigh tide? "),
    "several parts": changed(1, content=[{"type": "input_text", "text": "When is "}, {"text": "high tide?"}]),
    "an empty message": [*CHAT[:1], {"role": "system", "content": ""}, *CHAT[1:]],
    "no content": changed(2, content=None),
    "empty fields": changed(2, refusal=None, audio=None, function_call=None, annotations=[]),
    "another order of calls": changed(2, tool_calls=CALLS[::-1]),
    "arguments written again": changed(2, tool_calls=[{"id": "c-1"}, {"function": {}, "id": "c-2", "index": 1}]),
    "another order of results": [*CHAT[:3], CHAT[4], CHAT[3], *CHAT[5:]],
    "an empty content": changed(5, content=""),
    "a reminder after the results": [*CHAT, {"role": "system", "content": "The list is empty."}],
    "reminders of a developer": [*CHAT, *[{"role": "developer", "content": text} for text in ("Be quick.", "Now.")]],
    "a reminder between results": [*CHAT[:4], {"role": "system", "content": "Go on."}, *CHAT[4:]],
    "a reminder after the question": [*CHAT[:2], {"role": "system", "content": "Skills: tides."}, *CHAT[2:]],
    "other words of the last result": changed(6, content=[{"type": "text", "text": "later"}], name="tide"),
}
OTHERS = {
    "question": changed(1, content="When is low tide?"),
    "an image": changed(1, content=[*CHAT[1]["content"], {"type": "image_url", "image_url": {"url": "data:,"}}]),
    "system": changed(0, content="Be long."),
    "no system": CHAT[1:],
    "who speaks": changed(1, name="ann"),
    "earlier call": changed(2, tool_calls=CALLS[:1]),
    "earlier result": changed(3, content="never"),
    "another call": [*CHAT[:5], {**CHAT[5], "tool_calls": [{"id": "c-4"}]}, {**CHAT[6], "tool_call_id": "c-4"}],
    "one call more": changed(5, tool_calls=[{"id": "c-3"}, {"id": "c-4"}]),
}
NO_LOOPS = {
    "no results": CHAT[:6],
    "no calls": [*CHAT[:5], *CHAT[6:]],
    "results alone": CHAT[6:],
    "a result of no call": changed(6, tool_call_id="c-1"),
    "a result twice": [*CHAT, CHAT[6]],
    "an id twice": changed(5, tool_calls=[{"id": "c-3"}, {"id": "c-3"}]),
    "calls that are none": changed(5, tool_calls={"id": "c-3"}),
    "a word after the results": [*CHAT, {"role": "user", "content": "Well?"}],
    **{
        f"the id {empty!r}": [*CHAT[:5], {**CHAT[5], "tool_calls": [{"id": empty}]}, {**CHAT[6], "tool_call_id": empty}]
        for empty in ("", " ", None, 7)
    },
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_says_the_same_is_the_same(name):
    """A client that writes the history again in its own way finds the same calls."""
    assert key(HARMLESS[name]) == key(CHAT) is not None


@pytest.mark.parametrize("name", OTHERS)
def test_another_conversation_is_another(name):
    """Other messages before the calls, or other calls, find other calls."""
    assert key(OTHERS[name]) not in (None, key(CHAT))


@pytest.mark.parametrize("name", NO_LOOPS)
def test_what_cannot_be_told_apart_finds_nothing(name):
    """Without results of calls that each have an id of their own no calls are looked for."""
    assert key(NO_LOOPS[name]) is None


def test_the_caller_counts_and_a_stored_beginning_does():
    """Another caller finds other calls; a hash of stored messages stands for them."""
    assert key(CHAT, begin="another") != key(CHAT)
    stored, *_ = hashes(CHAT[:5])
    whole, (last,), _ = hashes([{"role": "system", "content": "other"}, *CHAT[1:]], begin=stored, start=5)
    assert (whole, last) == (hashes(CHAT)[0], key(CHAT))


PARTS = {
    "text and calls": [
        {"role": "assistant", "content": "I look."},
        {"role": "assistant", "tool_calls": CALLS},
        *CHAT[3:5],
    ],
    "a call each": [*({"role": "assistant", "tool_calls": [call]} for call in CALLS), *CHAT[3:5]],
    "each call with its result": [
        part
        for call, result in zip(CALLS, CHAT[3:5], strict=True)
        for part in ({"role": "assistant", "tool_calls": [call]}, result)
    ],
    "a reminder between them": [
        {"role": "assistant", "tool_calls": CALLS[:1]},
        {"role": "system", "content": "Go on."},
        {"role": "assistant", "tool_calls": CALLS[1:]},
        *CHAT[3:5],
    ],
}


@pytest.mark.parametrize("name", PARTS)
def test_an_answer_in_several_messages_is_one_answer(name):
    """A client that sends an answer's text and calls as messages of their own finds the answer's calls."""
    (whole,) = keys(CHAT[:5])
    assert whole in keys([*CHAT[:2], *PARTS[name]])


def test_an_answer_of_many_messages_has_few_keys():
    """A long loop is searched by the calls of its last messages only."""
    turns = [
        message
        for number in range(500)
        for message in (
            {"role": "assistant", "tool_calls": [{"id": f"c{number}"}]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": "noon"},
        )
    ]
    assert len(keys([*CHAT[:2], *turns])) == 16
