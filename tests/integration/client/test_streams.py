"""Answers that are read while they are written, by both clients."""

import asyncio
import threading

import pytest

from ragbandit import AsyncClient, Client
from ragbandit.client.transport import AnswerReader
from ragbandit.shared import errors
from tests.support.servers.http_service import QUESTION, worker_answers
from tests.support.servers.scripted_http import Scripted, ScriptedHttp, json_reply
from tests.support.waiting import until

EVENTS = (
    b'event: decision\ndata: {"decision_id":"d","arm":"a"}\n\n: ping\n\nevent: status\ndata: {"text":"searching"}\n\n'
    + 'event: text\ndata: {"text":"Šárka\u2028"}\n\n'.encode()
    + b'event: outcome\ndata: {"answer":"x","status":"answered"}\n\n'
)
BROKEN = b'event: text\ndata: {"text":"a"}\n\n'
FAILED = BROKEN + b'event: error\ndata: {"error":{"code":"STORE_UNAVAILABLE","message":"gone"}}\n\n'


def streamed(body, **more):
    return Scripted(body=body, headers={"content-type": "text/event-stream"}, **more)


def collected(url, *, kind, **more):
    """The events that a client reads."""
    if kind == "Client":
        with Client(url, **more) as client:
            return list(client.answer_stream(QUESTION))

    async def walk():
        async with AsyncClient(url, **more) as client:
            return [event async for event in client.answer_stream(QUESTION)]

    return asyncio.run(walk())


KINDS = pytest.mark.parametrize("kind", ["Client", "AsyncClient"])


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_wherever_they_are_cut(size):
    """The events are the same however the bytes come, in the middle of a character too; comments are none."""
    reader = AnswerReader()
    found = [event for at in range(0, len(EVENTS), size) for event in reader.read(EVENTS[at : at + size])]
    reader.end()
    assert [event.event for event in found] == ["decision", "status", "text", "outcome"]
    assert found[2].data == {"text": "Šárka\u2028"}


@KINDS
def test_a_stream(kind):
    """Both clients give the events in order, and ask again where the service was too busy to begin."""
    busy = json_reply({"error": {"code": "OVERLOADED", "message": "busy"}}, status=503, retry_after=1)
    with ScriptedHttp(busy, streamed(EVENTS)) as server:
        assert [event.event for event in collected(server.url, kind=kind)][-1] == "outcome"
        (first, _, sent), (again, _, same) = server.seen
    assert first == again == "/v1/answer?stream=true"
    assert sent == same


@KINDS
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (streamed(BROKEN), errors.NotReady),
        (streamed(FAILED), errors.StoreError),
        (streamed(b"data: {\n\n"), errors.RagBanditError),
        (json_reply({"error": {"code": "UNAUTHORIZED", "message": "no"}}, status=401), errors.Unauthorized),
        (streamed(EVENTS, delay_s=30), errors.NotReady),
    ],
)
def test_failures(kind, reply, error):
    """A stream that breaks off, says an error, is no JSON, is refused or does not begin is that error."""
    with ScriptedHttp(reply) as server, pytest.raises(error):
        collected(server.url, kind=kind, timeout_s=1)


def test_a_real_service(service):
    """The service's decision comes first and its outcome last, with the answer."""
    found = []

    def ask():
        with Client(service.url) as client:
            found.extend(client.answer_stream(QUESTION, decision_id="mine", wait_s=20))

    asking = threading.Thread(target=ask)
    asking.start()
    with Client(service.url) as client:
        until(lambda: decided(client), seconds=20)
    worker_answers(service, "mine", "Bram Stoker")
    asking.join(30)
    assert found[0].event == "decision"
    assert found[0].data["decision_id"] == "mine"
    assert (found[-1].event, found[-1].data["answer"]) == ("outcome", "Bram Stoker")


def decided(client):
    try:
        return client.decision("mine")
    except errors.NotFound:
        return None
