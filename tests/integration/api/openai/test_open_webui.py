"""OpenAI's interface: Open WebUI's chats, and its background tasks, which make no decision."""

import json
from pathlib import Path

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from ragbandit.router.storage.decisions.links import linked_decisions
from ragbandit.shared.types import StatusNote, TextPiece
from tests.integration.api.openai.test_streams import chunks_of, events_of, in_pieces  # noqa: F401 - a fixture

#: bodies as Open WebUI 0.12 sends them, shortened
SENT = json.loads((Path(__file__).parents[3] / "data" / "open_webui" / "requests.json").read_text(encoding="utf-8"))
MADE = {
    "title_generation": {"title": "Who wrote Dracula, and when was"},
    "tags_generation": {"tags": ["General"]},
    "follow_up_generation": {"follow_ups": []},
    "query_generation": {"queries": []},
    "image_prompt_generation": {"prompt": ""},
    "autocomplete_generation": {"text": ""},
    "function_calling": {"tool_calls": []},
}


@pytest.mark.parametrize("task", sorted(MADE))
@pytest.mark.parametrize("told", [True, False])
def test_background_tasks(unmoved, task, told):
    """A task is known by its header, or by its template's opening words; it gets JSON of its shape, and no decision."""
    body = SENT[task] if not told else SENT[task] | {"messages": [{"role": "user", "content": "A template of my own"}]}
    reply = unmoved.post("/v1/chat/completions", json=body, headers={"X-OpenWebUI-Task": task} if told else None)
    assert reply.status_code == 200, reply.text
    completion = ChatCompletion.model_validate(reply.json(), strict=True)
    made = json.loads(completion.choices[0].message.content)
    assert set(made) == set(MADE[task])
    if not told:
        assert made == MADE[task]
    assert "ragbandit" not in reply.json()
    assert "x-ragbandit-decision-id" not in reply.headers


def test_a_task_in_pieces(unmoved):
    """A task that is asked for as a stream gets one."""
    _, lines = events_of(
        unmoved, **SENT["tags_generation"] | {"stream": True, "stream_options": {"include_usage": True}}
    )
    chunks = chunks_of(lines)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert chunks[1]["choices"][0]["delta"]["content"] == '{"tags": ["General"]}'
    assert chunks[-1]["usage"]["total_tokens"] == 0


def test_an_emoji(unmoved):
    """The emoji of a message is plain text."""
    reply = unmoved.post("/v1/chat/completions", json=SENT["emoji_generation"])
    assert reply.json()["choices"][0]["message"]["content"] == "💬"


def test_a_task_that_needs_a_model(unmoved):
    """Answers of several models cannot be merged: the error says what to do."""
    reply = unmoved.post("/v1/chat/completions", json=SENT["moa_response_generation"])
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "unsupported_parameter")
    assert "language model" in reply.json()["error"]["message"]


@pytest.mark.parametrize("task", ["", "default", "{{TASK}}"])
def test_a_chat_is_no_task(http, service, answers, task):
    """A chat comes with an empty task, or with a template that was not filled in: it is decided."""
    answers()
    chat = SENT["chat"] | {"stream": False}
    reply = http.post("/v1/chat/completions", json=chat, headers={"X-OpenWebUI-Task": task})
    assert reply.json()["ragbandit"]["decision_id"]
    assert service.router.status().counters.decided == 1


def test_the_way_back_of_a_rating(http, service, answers):
    """The message's id is kept as a link by which a rating finds its decision, the chat's as the session."""
    answers()
    headers = {"X-OpenWebUI-Message-Id": "9f1c-m1", "X-OpenWebUI-Chat-Id": "c1", "X-OpenWebUI-User-Id": "{{USER_ID}}"}
    reply = http.post("/v1/chat/completions", json=SENT["chat"] | {"stream": False}, headers=headers)
    key = reply.json()["ragbandit"]["decision_id"]
    query = service.router.decision(key).decision.query
    assert query.session == "c1"
    assert query.request["links"] == {"openwebui_message": "9f1c-m1"}
    with service.router.database.read() as connection:
        found = linked_decisions(connection, "openwebui_message", ["9f1c-m1"])
    assert [each.decision_id for each in found["9f1c-m1"]] == [key]
    assert query.text == "Who wrote Dracula?"


def test_an_id_that_was_not_filled_in(http, service, answers):
    """A template that Open WebUI left as it is makes no link and no session."""
    answers()
    headers = {"X-OpenWebUI-Message-Id": "{{MESSAGE_ID}}", "X-OpenWebUI-Chat-Id": "{{CHAT_ID}}"}
    reply = http.post("/v1/chat/completions", json=SENT["chat"] | {"stream": False}, headers=headers)
    query = service.router.decision(reply.json()["ragbandit"]["decision_id"]).decision.query
    assert query.session is None
    assert "links" not in query.request


def test_status_and_sources(http, in_pieces):  # noqa: F811 - a fixture
    """Open WebUI is told what the arm does, and gets the passages with their texts instead of citations."""
    in_pieces(StatusNote(text="searching"), TextPiece(text="Bram Stoker"))
    chunks = chunks_of(events_of(http, headers={"X-OpenWebUI-Chat-Id": "c1"}, **SENT["chat"])[1])
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
