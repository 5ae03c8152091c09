"""OpenAI's interface: Open WebUI's chats."""

import pytest
from openai.types.chat import ChatCompletionChunk

from ragbandit.shared.types import StatusNote, TextPiece
from tests.integration.api.openai.test_streams import chunks_of, events_of, in_pieces  # noqa: F401 - a fixture
from tests.support.servers.http_service import QUESTION


@pytest.mark.parametrize(("sent", "session"), [("c1", "c1"), ("{{CHAT_ID}}", None)])
def test_a_chat_is_a_conversation(http, service, answers, sent, session):
    """The chat's id is the session of the decision; a template that was not filled in is none."""
    answers()
    body = {"model": "auto", "messages": [{"role": "user", "content": QUESTION}]}
    reply = http.post("/v1/chat/completions", json=body, headers={"X-OpenWebUI-Chat-Id": sent})
    assert service.router.decision(reply.json()["ragbandit"]["decision_id"]).decision.query.session == session


def test_status_and_sources(http, in_pieces):  # noqa: F811 - a fixture
    """Open WebUI is told what the arm does, and gets the passages with their texts instead of citations."""
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
