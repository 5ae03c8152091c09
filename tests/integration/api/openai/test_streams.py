"""OpenAI's interface: streams, as raw events and as OpenAI's own clients read them."""

import json
import threading

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from ragbandit.shared.types import StatusNote, TextPiece
from tests.support.servers.http_service import QUESTION
from tests.support.waiting import until

ASKED = [{"role": "user", "content": QUESTION}]
BODY = {"model": "auto", "messages": ASKED, "stream": True}
#: pieces that cut words and hold characters of several bytes
PIECES = ("Br", "am Sto", "ker wrote ", "it: ", "🧛", "‍♂️ é", "\n\n")


@pytest.fixture(scope="module")
def service(serve_module):
    """One service for all of these tests."""
    return serve_module()


def events_of(http, headers=None, **more) -> tuple[httpx.Response, list[str]]:
    """The reply to a stream, read to its end, and its lines that are not blank."""
    with http.stream("POST", "/v1/chat/completions", json=BODY | more, headers=headers) as reply:
        return reply, [line for line in reply.iter_lines() if line]


def chunks_of(lines: list[str]) -> list[dict]:
    assert lines[-1] == "data: [DONE]"
    assert not [line for line in lines if not line.startswith(("data: ", ": "))]  # no names of events
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1] if line.startswith("data: ")]


def test_the_order_of_a_stream(http, in_pieces):
    """Role, pieces, the end with citations, [DONE]: chunks of one completion, as OpenAI's types have them."""
    in_pieces(*(TextPiece(text=text) for text in PIECES))
    reply, lines = events_of(http)
    chunks = chunks_of(lines)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    key = reply.headers["x-ragbandit-decision-id"]
    heads = {(chunk["id"], chunk["model"], chunk["created"], chunk["system_fingerprint"]) for chunk in chunks}
    assert len(heads) == 1
    assert chunks[0]["id"] == f"chatcmpl-{key}"
    assert chunks[0]["model"] == f"ragbandit/{reply.headers['x-ragbandit-strategy']}"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert tuple(delta["content"] for delta in deltas[1:-1]) == PIECES
    assert [each["url_citation"]["title"] for each in deltas[-1]["annotations"]] == ["Dracula", "d2"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(PIECES) + 1) + ["stop"]
    assert chunks[-1]["ragbandit"]["decision_id"] == key
    assert len(chunks[-1]["ragbandit"]["passages"]) == 2
    assert not [chunk for chunk in chunks if "usage" in chunk]


def test_the_usage_of_a_stream(http, in_pieces):
    """The usage comes where it was asked for: in a chunk of its own before the end, null on the others."""
    in_pieces(TextPiece(text="Bram Stoker"))
    chunks = chunks_of(events_of(http, stream_options={"include_usage": True})[1])
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["total_tokens"]) == ([], 322)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)


def test_a_piece_goes_out_at_once(service, in_pieces, client):
    """The reply begins with the first piece, which names the decision before there is an answer."""
    gate = threading.Event()
    in_pieces(TextPiece(text="Bram "), gate, TextPiece(text="Stoker"))
    raw = client.chat.completions.with_raw_response.create(model="auto", messages=ASKED, stream=True)
    assert service.router.decision(raw.headers["x-ragbandit-decision-id"]).outcome is None
    with raw.parse() as stream:
        read = iter(stream)
        assert next(read).choices[0].delta.role == "assistant"
        assert next(read).choices[0].delta.content == "Bram "
        gate.set()
        assert next(read).choices[0].delta.content == "Stoker"
        assert next(read).choices[0].finish_reason == "stop"
        assert list(read) == []


def test_pings(http, client, in_pieces, monkeypatch):
    """Once a reply may begin without content there are comments while nothing comes, which clients pass over."""
    monkeypatch.setattr("ragbandit.router.api.openai.chat_exchange.HOLD_S", 0.0)
    in_pieces(None, None, TextPiece(text="Bram Stoker"))
    with http.stream("POST", "/v1/chat/completions", json=BODY) as reply:
        lines = list(filter(None, reply.iter_lines()))
    assert lines.count(": ping") == 2
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks_of(lines)] == ["", "Bram Stoker", None]
    stream = client.chat.completions.create(model="auto", messages=ASKED, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Bram Stoker"


def test_a_failure_in_mid_stream(http, client, in_pieces, decided):
    """An arm that fails after some pieces: the client raises what failed, and has asked once."""
    in_pieces(TextPiece(text="Bram "), status="failed", answer=None, error="the model is gone", stop_reason="failed")
    _, lines = events_of(http)
    *_, failed = chunks_of(lines)
    assert set(failed) == {"error"}
    assert set(failed["error"]) == {"message", "type", "param", "code"}
    stream = client.chat.completions.create(model="auto", messages=ASKED, stream=True)
    read: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        read.extend(chunk.choices[0].delta.content or "" for chunk in stream)
    assert caught.value.code == "arm_failed"
    assert "the model is gone" in caught.value.message
    assert decided() == 2


@pytest.mark.parametrize("error", [TimeoutError("ending"), RuntimeError("a fault of ours")])
def test_the_service_fails_in_mid_stream(http, in_pieces, error):
    """The end of the service, or a fault of ours, is an error in the stream as well, and no half of an event."""
    in_pieces(TextPiece(text="Bram "), error)
    _, lines = events_of(http)
    code = chunks_of(lines)[-1]["error"]["code"]
    assert code == ("not_ready" if isinstance(error, TimeoutError) else "internal")


def test_a_client_that_goes_away(http, service, monkeypatch):
    """A client that hangs up in mid-stream leaves nothing that waits for its answer."""
    monkeypatch.setattr("ragbandit.router.api.openai.chat_exchange.HOLD_S", 0.2)
    with http.stream("POST", "/v1/chat/completions", json=BODY) as reply:
        key = reply.headers["x-ragbandit-decision-id"]
        assert service.router.process.answers.is_awaited(key)
    until(lambda: not service.router.process.answers.is_awaited(key), seconds=20)
    assert service.http.get("/health").status_code == 200


@pytest.mark.parametrize(("sent", "session"), [("c1", "c1"), ("{{CHAT_ID}}", None)])
def test_a_chat_is_a_conversation(http, service, answers, sent, session):
    """The chat's id is the session of the decision; an unfilled template is none. The message is stored."""
    answers()
    body = {"model": "auto", "messages": [{"role": "user", "content": QUESTION}]}
    headers = {"X-OpenWebUI-Chat-Id": sent, "X-OpenWebUI-Message-Id": "m1"}
    reply = http.post("/v1/chat/completions", json=body, headers=headers)
    query = service.router.decision(reply.json()["ragbandit"]["decision_id"]).decision.query
    assert (query.session, query.sent.message) == (session, "m1")


def test_status_and_sources(http, in_pieces):
    """Open WebUI gets the steps of the arm, and the passages with their texts instead of citations."""
    in_pieces(StatusNote(text="searching"), TextPiece(text="Bram Stoker"))
    chunks = chunks_of(events_of(http, headers={"X-OpenWebUI-Chat-Id": "c1"})[1])
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    events = [chunk["event"] for chunk in chunks if "event" in chunk]
    assert all(chunk["choices"] == [] for chunk in chunks if "event" in chunk)
    assert [event["type"] for event in events] == ["status", "status", "source", "source"]
    assert events[0]["data"] == {"description": "searching", "done": False}
    assert events[1]["data"]["done"] is True
    first = events[2]["data"]
    assert first["source"] == {"name": "Dracula", "url": "https://books.example/d1"}
    assert (first["document"], first["distances"]) == (["A novel by Bram Stoker."], [2.5])
    assert first["metadata"] == [{"source": "https://books.example/d1", "name": "Dracula"}]
    assert "distances" not in events[3]["data"]
    assert not [each for chunk in chunks for each in chunk["choices"] if "annotations" in each["delta"]]
