"""Replies of Messages: read as a chat, and written again, whole and as events."""

import itertools
import json

import pytest
from hypothesis import given, strategies as st

from ragbandit.additions.anthropic.message_stream import MessageStream, message_reply
from ragbandit.additions.anthropic.messages.replies import ChatChunks
from ragbandit.shared.dialects.chat.message_parts import split_thoughts
from ragbandit.shared.dialects.chat.replies import ModelReply
from ragbandit.shared.model_servers.event_reader import DONE, BrokenReply
from ragbandit.shared.types import Cost, DeltaPiece, Outcome, TextPiece
from tests.support.anthropic_events import events_of, joined

WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9)
INPUTS = st.dictionaries(WORDS, st.integers() | WORDS, max_size=2)
THINKING = st.builds(lambda text, key: {"type": "thinking", "thinking": text, "signature": f"E{key}"}, WORDS, WORDS)
REDACTED = st.builds(lambda data: {"type": "redacted_thinking", "data": data}, WORDS)
PLAIN = st.builds(lambda text: {"type": "text", "text": text}, WORDS)
CITED = st.builds(
    lambda text, cited: {"type": "text", "text": text, "citations": [{"cited_text": cited}]}, WORDS, WORDS
)
SERVER = st.builds(lambda sent: {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": sent}, INPUTS)
RESULT = st.just({"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"url": "u"}]})
BEFORE = st.lists(THINKING | REDACTED | PLAIN | CITED | SERVER | RESULT, max_size=6).filter(
    lambda blocks: all(
        not one["type"] == two["type"] == "text" or "citations" in one for one, two in itertools.pairwise(blocks)
    )
)
CALLS = st.lists(INPUTS, max_size=3).map(
    lambda inputs: [{"type": "tool_use", "id": f"c{n}", "name": "f", "input": sent} for n, sent in enumerate(inputs)]
)
CONTENT = st.builds(lambda before, calls: [*before, *calls], BEFORE, CALLS).filter(bool)


def read(values):
    """The reply in the form of a chat. Returns (reply, the pieces that readers of a stream get)."""
    reply, chunks, pieces = ModelReply(), ChatChunks(), []
    for value in values:
        for chunk in chunks.of(value):
            size = len(reply.text)
            reply.take(chunk)
            thoughts, delta = split_thoughts(reply.delta)
            pieces += [DeltaPiece(delta=thoughts)] if thoughts else []
            pieces += [TextPiece(text=reply.text[size:])] if len(reply.text) > size else []
            pieces += [DeltaPiece(delta=delta)] if delta else []
    reply.take(DONE)
    reply.end()
    return reply, json_pieces(pieces)


def json_pieces(pieces):
    return [
        one if isinstance(one, TextPiece) else DeltaPiece(delta=json.loads(json.dumps(one.delta))) for one in pieces
    ]


def outcome_of(reply, *, text=None):
    stored = {"message": reply.message.whole, "finish_reason": reply.finish, **reply.more}
    fields = {"trace": (), "cost": Cost(prompt_tokens=9, cached_tokens=4, completion_tokens=5), "steps": 0.0}
    fields |= {"stop_reason": "answered", "error": None, "run_by": "worker", "made_by": {}, "made_at": 1.0}
    return Outcome(
        decision_id="d", status="answered", answer=reply.text if text is None else text, reply=stored, **fields
    )


class OfAnArm:
    id, arm, propensity, explored, cost_weight, policy, version = "d", "a", 1.0, False, None, "p", "v"


@pytest.fixture(autouse=True)
def no_facts(monkeypatch):
    monkeypatch.setattr("ragbandit.router.api.openai.replies.reply_facts", lambda *_, **__: {})


def streamed(pieces, outcome):
    stream = MessageStream(OfAnArm(), base="http://here/")
    sent = [event for piece in pieces for event in stream.events_for(piece)] + stream.end(outcome, saved=None)
    lines = b"".join(sent).decode().split("\n")
    return joined([json.loads(line[6:]) for line in lines if line.startswith("data: ")])


def message(content, stop="end_turn", **more):
    return {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "model": "c",
        "content": content,
        "stop_reason": stop,
        **more,
    }


@given(
    CONTENT, st.integers(1, 4), st.sampled_from(["max_tokens", "stop_sequence", "tool_use", "pause_turn", "compaction"])
)
def test_a_reply_of_anthropic_comes_back_whole(content, cut, stop):
    """All blocks of a reply come back in their order, from a whole reply and from events."""
    details = {"container": {"id": "c1"}, "context_management": {"applied_edits": [1]}}
    sent = message(content, stop, stop_sequence="X" if stop == "stop_sequence" else None, **details)
    usage = {"input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 5}
    for values in (events_of(sent, cut=cut), [{**sent, "usage": usage}]):
        reply, pieces = read(values)
        outcome = outcome_of(reply)
        whole = message_reply(OfAnArm(), outcome, base="", saved=None)
        thoughts, rest = split_thoughts(reply.message.whole)  # as if it came faster than it was read
        at_once = [DeltaPiece(delta=thoughts), TextPiece(text=reply.text), DeltaPiece(delta=rest)]
        for seen in (whole, streamed(pieces, outcome), streamed(json_pieces(at_once), outcome)):
            assert seen["content"] == content
            assert {name: seen[name] for name in details} == details
            assert (seen["stop_reason"], seen["stop_sequence"]) == (stop, sent["stop_sequence"])
            assert (seen["usage"]["input_tokens"], seen["usage"]["cache_read_input_tokens"]) == (5, 4)


def delta(**fields):
    return {"choices": [{"index": 0, "delta": fields}]}


def call(index, text, **head):
    return {"index": index, **head, "function": {"arguments": text, **({"name": "f"} if head else {})}}


def test_mixed_pieces_of_a_chat_become_blocks():
    """Calls in mixed order, text after them, and a vendor's fields become blocks that follow each other."""
    google = {"google": {"thought_signature": "s"}}
    reply, pieces = read(
        [
            delta(reasoning_content="Let me ", role="assistant"),
            delta(reasoning_content="see."),
            delta(content="I ask."),
            delta(tool_calls=[call(0, '{"a"', id="c0", extra_content=google), call(1, '{"b"', id="c1")]),
            delta(tool_calls=[call(1, ": 2}"), call(0, ": 1}")]),
            delta(content=" Done."),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        ]
    )
    thoughts = {"type": "thinking", "thinking": "Let me see.", "signature": ""}
    calls = [{"type": "tool_use", "id": f"c{n}", "name": "f", "input": {name: n + 1}} for n, name in enumerate("ab")]
    calls[0]["extra_content"] = google
    seen = streamed(pieces, outcome_of(reply))
    content = [thoughts, {"type": "text", "text": "I ask. Done."}, *calls]
    assert seen["content"] == content
    assert seen["stop_reason"] == "tool_use"
    whole = message_reply(OfAnArm(), outcome_of(reply), base="", saved=None)
    assert whole["content"] == content


def test_a_stream_that_fails_ends_with_an_error():
    """Before the first content a stream is kept alive by comments, then by pings; a failure is an error event."""
    stream = MessageStream(OfAnArm(), base="")
    assert stream.events_for(None) == [b": ping\n\n"]
    stream.events_for(TextPiece(text="Hi"))
    assert stream.events_for(None) == [b'event: ping\ndata: {"type":"ping"}\n\n']
    error = {"message": "The server broke off", "type": "server_error", "param": None, "code": "upstream_error"}
    (event,) = stream.failure(error)
    name, data = event.decode().removesuffix("\n\n").split("\n")
    assert name == "event: error"
    shown = {"type": "api_error", "message": "The server broke off", "code": "upstream_error"}
    assert json.loads(data[6:]) == {"type": "error", "error": shown}


def test_thoughts_in_pieces_of_a_proxy():
    """Pieces of thoughts without a signature, as LiteLLM sends them, become one block."""
    pieces = [{"type": "thinking", "thinking": text} for text in ("Let ", "me.")]
    values = [delta(reasoning_content=one["thinking"], thinking_blocks=[one]) for one in pieces]
    values += [delta(thinking_blocks=[{"type": "thinking", "thinking": "", "signature": "Eq"}]), delta(content="Hi")]
    reply, pieces = read([*values, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}])
    thoughts, text = streamed(pieces, outcome_of(reply))["content"]
    assert (thoughts, text["text"]) == ({"type": "thinking", "thinking": "Let me.", "signature": "Eq"}, "Hi")


@pytest.mark.parametrize(("kind", "status"), [("overloaded_error", 529), ("rate_limit_error", 429), ("new", 500)])
def test_an_error_event_has_its_status(kind, status):
    """An error inside a stream is classified as the same error with its HTTP status."""
    with pytest.raises(BrokenReply) as caught:
        read(
            [
                *list(events_of(message([{"type": "text", "text": "a"}])))[:4],
                {"type": "error", "error": {"type": kind, "message": "Busy"}},
            ]
        )
    assert (caught.value.status_code, str(caught.value)) == (status, "Busy")


JUNK = st.none() | st.integers() | WORDS | st.lists(st.integers(), max_size=2) | st.just({"type": "text", "text": 5})
KINDS = "message_start content_block_start content_block_delta content_block_stop message_delta message error ping"
TYPES = ["text", "tool_use", "thinking", "text_delta", "input_json_delta", "citations_delta"]
FIELDS = dict.fromkeys(["text", "input", "partial_json", "citation", "stop_reason", "usage"], JUNK)
PART = st.fixed_dictionaries({"type": st.sampled_from(TYPES)}, optional=FIELDS)
NAMES = ["index", "content_block", "delta", "message", "content", "usage", "error"]
EVENT = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS.split())}, optional=dict.fromkeys(NAMES, JUNK | PART | st.lists(PART, max_size=2))
)


@given(st.lists(EVENT, max_size=6))
def test_events_of_any_form_are_read_or_refused(events):
    """A reply whose fields have other types is read or is a BrokenReply, never another error."""
    reply, chunks = ModelReply(), ChatChunks()
    try:
        for event in events:
            for chunk in chunks.of(event):
                reply.take(chunk)
        reply.end()
    except BrokenReply:
        return
    message_reply(OfAnArm(), outcome_of(reply), base="", saved=None)
