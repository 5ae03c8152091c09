"""The openai package as it comes from the index, version 2 or 3: both folders run this file."""

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk


@pytest.fixture
def client(service):
    with openai.OpenAI(base_url=service.base_url, api_key=service.key, timeout=60) as made:
        yield made


def test_whole(client, service):
    """A complete reply has the answer, the decision's facts, and headers."""
    raw = client.chat.completions.with_raw_response.create(model="auto", messages=service.messages)
    reply = raw.parse()
    assert isinstance(reply, ChatCompletion)
    assert reply.choices[0].message.content == service.answer
    assert reply.id == f"chatcmpl-{raw.headers['x-ragbandit-decision-id']}"
    assert reply._request_id == raw.headers["x-request-id"]
    assert reply.ragbandit["arm"] == reply.model.removeprefix("ragbandit/")
    assert reply.usage.total_tokens > 0
    assert service.decision(reply.id)["outcome"]["answer"] == service.answer


def test_stream(client, service):
    """Pieces make the answer, and the usage comes at the end."""
    options = {"include_usage": True}
    sent = client.chat.completions.create(model="auto", messages=service.messages, stream=True, stream_options=options)
    chunks = list(sent)
    assert all(isinstance(chunk, ChatCompletionChunk) for chunk in chunks)
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == service.answer
    assert chunks[-1].usage.total_tokens > 0
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "stop"
