"""Answers in audio and images: what the client gets, what the outcome has, and what is scored."""

import json

import pytest

from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.additions import needs

AUDIO = {"id": "audio_1", "data": "UklG", "transcript": "It is Paris.", "expires_at": 1}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}
#: word of the question -> the model's reply
REPLIES = {
    "spoken": Reply(message={"content": None, "audio": AUDIO}),
    "both": Reply(text="It is Paris.", message={"audio": AUDIO}),
    "part": Reply(message={"content": [{"type": "output_audio", "data": "UklG", "transcript": "It is Paris."}]}),
    "sound": Reply(message={"content": None, "audio": {"id": "audio_2", "data": "UklG"}}),
    "drawn": Reply(message={"content": None, "images": [IMAGE]}),
    "silent": Reply(message={"content": None}),
}


@pytest.fixture(scope="module")
def service(serve_module):
    """A service with a model whose replies are REPLIES, and a judge that nobody runs."""
    with ScriptedServer({f"{name}?": reply for name, reply in REPLIES.items()}) as server:
        generator = {"name": "openai", "model": "small", "supports": ["audio"], "openai": {"base_url": server.url}}
        service = serve_module(
            inline=True,
            generator=generator,
            arms={name: {"class": "model"} for name in ("a", "b")},
            judge={"generator": generator, "first": 1000},
            conversation={"rewrite": {"by": "off"}},
        )
        yield service
        service.close()


def ask(service, word, *, path="/v1/chat/completions", stream=False, **more):
    """Returns (whole reply or list of events, outcome of the decision, whether the answer waits for the judge)."""
    turns = {"input": f"{word}?"} if "responses" in path else {"messages": [{"role": "user", "content": f"{word}?"}]}
    before = service.http.get("/v1/status").json()["judge"]["waiting"]
    reply = service.http.post(path, json={"model": "auto", "stream": stream, **turns, **more})
    assert reply.status_code == 200, reply.text
    key = reply.headers["x-ragbandit-decision-id"]
    waits = service.http.get("/v1/status").json()["judge"]["waiting"] - before
    lines = [line[6:] for line in reply.text.split("\n") if line.startswith("data: {")]
    sent = list(map(json.loads, lines)) if stream else reply.json()
    return sent, service.http.get(f"/v1/decisions/{key}").json()["outcome"], waits == 1


def sent_message(sent):
    """The message of a chat's reply, or of the deltas of a streamed one."""
    if isinstance(sent, dict):
        return sent["choices"][0]["message"]
    deltas = [choice["delta"] for event in sent for choice in event["choices"]]
    joined = {name: value for delta in deltas for name, value in delta.items() if value}
    return joined | {"content": "".join(delta.get("content") or "" for delta in deltas) or None}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("word", "content"), [("spoken", None), ("part", None), ("both", "It is Paris.")])
def test_the_transcript_of_an_answer_in_audio_is_its_text(service, word, content, stream):
    """The outcome and the judge have the transcript; the client gets the audio as it came, and no second text."""
    sent, outcome, waits = ask(service, word, stream=stream, modalities=["text", "audio"])
    assert (outcome["answer"], outcome["stop_reason"], waits) == ("It is Paris.", "answered", True)
    message = sent_message(sent)
    assert (message["content"], message["audio"]["data"]) == (content, "UklG")
    assert message["audio"]["transcript"] == "It is Paris."
    if word != "part":
        assert message["audio"] == AUDIO


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("word", "reason", "waits"),
    [("drawn", "no_text", False), ("sound", "no_text", False), ("silent", "empty_answer", True)],
)
def test_an_answer_without_text_gets_no_score_of_texts(service, word, reason, waits, stream):
    """Images, and audio without a transcript, are no empty answer: no judge scores them 0, and clients get them."""
    sent, outcome, is_waiting = ask(service, word, stream=stream)
    assert (outcome["answer"], outcome["stop_reason"], is_waiting) == ("", reason, waits)
    message = sent_message(sent)
    assert ("images" in message, "audio" in message) == (word == "drawn", word == "sound")


@needs("anthropic")
@needs("anthropic")
@pytest.mark.parametrize("stream", [False, True])
def test_messages_have_the_transcript(service, stream):
    """Messages have no audio, so their client gets the transcript as text, whole and streamed."""
    sent, _, _ = ask(service, "spoken", path="/v1/messages", stream=stream, max_tokens=9)
    if stream:
        text = "".join(event.get("delta", {}).get("text", "") for event in sent)
    else:
        text = "".join(block["text"] for block in sent["content"])
    assert text == "It is Paris."


@needs("responses")
@needs("responses")
@pytest.mark.parametrize("stream", [False, True])
def test_responses_have_the_transcript(service, stream):
    """The text of a response is the transcript, whole and in its pieces."""
    sent, _, _ = ask(service, "spoken", path="/v1/responses", stream=stream)
    if stream:
        deltas = [event["delta"] for event in sent if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == "It is Paris."
        sent = sent[-1]["response"]
    (message,) = (item for item in sent["output"] if item["type"] == "message")
    assert message["content"][0]["text"] == "It is Paris."
