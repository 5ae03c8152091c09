"""The events of a streamed chat completion, and the pieces of a run on the same event loop."""

import asyncio
import json

import pytest

from ragbandit.router.api.openai.replies import ChatStream
from ragbandit.router.queue.stream_reader import ReadStream
from ragbandit.shared.types import DeltaPiece, TextPiece
from tests.support.examples import made_decision


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_chunk_has_the_head_of_its_stream_and_its_own_delta(include_usage):
    """Each event of a piece is a line of JSON with the same head, the delta, its logprobs, and "usage" if asked for."""
    stream = ChatStream(made_decision(), include_usage=include_usage, base="", open_webui=False)
    logprobs = {"content": [{"token": "é", "logprob": -0.5}]}
    delta = {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]}
    events = stream.events_for(TextPiece(text='"é\n'))
    events += stream.events_for(DeltaPiece(delta={**delta, "logprobs": logprobs}))
    assert all(
        event.startswith(b"data: {") and event.endswith(b"}\n\n") and event.count(b"\n") == 2 for event in events
    )
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert [chunk.pop("choices") for chunk in chunks] == [
        [{"index": 0, "delta": delta, "finish_reason": None, "logprobs": logprobs}]
        for delta, logprobs in (
            ({"role": "assistant", "content": ""}, None),
            ({"content": '"é\n'}, None),
            (delta, logprobs),
        )
    ]
    assert chunks[0] == chunks[1] == chunks[2]
    assert chunks[0].pop("usage", "missing") == (None if include_usage else "missing")
    assert chunks[0].keys() == {"id", "created", "model", "system_fingerprint", "object"}


def test_a_delta_stays_as_it_was_passed_on():
    """A reader on the same event loop gets the fields of a piece, whatever the run does with them later."""
    stream = ReadStream(made_decision().id)
    delta = {"reasoning_content": "a\x00"}
    asyncio.run(stream.delta(delta))
    delta["reasoning_content"] = "b"
    assert stream.read() == [DeltaPiece(delta={"reasoning_content": "a\x00"})]
