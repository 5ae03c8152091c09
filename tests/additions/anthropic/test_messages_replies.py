"""Replies of Anthropic's Messages as chunks of a chat: beginnings that are odd."""

import pytest

from ragbandit.additions.anthropic.messages.replies import ChatChunks
from tests.unit.shared.dialects.replies import calls_of, read

PIECE = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"x": 1}'}}
STOP = {"type": "content_block_stop", "index": 0}
END = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}


def started(sent):
    block = {"type": "tool_use", "id": "t", "name": "f", "input": sent}
    return {"type": "content_block_start", "index": 0, "content_block": block}


@pytest.mark.parametrize("events", [[started({"x": 1}), PIECE], [started({}), PIECE], [started({"x": 1})]])
def test_the_input_of_a_call_comes_once(events):
    """A server may send the input with the beginning of a call, in pieces, or both."""
    chunks = ChatChunks()
    reply = read(*(chunk for event in [*events, STOP, END] for chunk in chunks.of(event)))
    assert calls_of(reply) == [("t", "function", "f", '{"x": 1}')]


def test_pieces_without_a_beginning_are_a_call():
    """Some servers send no beginning: pieces of an input are those of a call."""
    chunks = ChatChunks()
    reply = read(*(chunk for event in [PIECE, STOP, END] for chunk in chunks.of(event)))
    assert [arguments for *_, arguments in calls_of(reply)] == ['{"x": 1}']
    assert "thinking_blocks" not in reply.message.whole


def test_citations_of_another_type_do_not_lose_the_answer():
    """The first citations of a text are left out if they have another type than a list, and later citations stay."""
    block = {"type": "text", "text": "A", "citations": 5}
    citation = {"type": "citations_delta", "citation": {"cited_text": "B"}}
    events = [
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": citation},
        STOP,
        END,
    ]
    chunks = ChatChunks()
    reply = read(*(chunk for event in events for chunk in chunks.of(event)))
    assert reply.text == "A"
    assert reply.message.whole["thinking_blocks"][0]["citations"] == [{"cited_text": "B"}]
