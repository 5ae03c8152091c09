"""The openai package as it comes from the index, version 2 or 3: both folders run this file."""

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk


@pytest.fixture
def client(service):
    with openai.OpenAI(base_url=service.base_url, api_key=service.key, timeout=60) as made:
        yield made


def test_models(client):
    """The models are listed, and each can be read."""
    names = [model.id for model in client.models.list()]
    assert names[0] == "auto"
    assert [client.models.retrieve(name).id for name in names] == names


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


@pytest.mark.parametrize(
    ("more", "error", "code", "param"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError, "model_not_found", "model"),
        ({"n": 2}, openai.BadRequestError, "unsupported_parameter", "n"),
        ({"messages": []}, openai.BadRequestError, "invalid_input", "messages"),
        ({"logprobs": True}, openai.BadRequestError, "unsupported_parameter", "logprobs"),
    ],
)
def test_errors(client, service, more, error, code, param):
    """What is wrong is raised as the client's own error."""
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"model": "auto", "messages": service.messages} | more)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.request_id


def test_one_key_one_decision(client, service):
    """The same request under one Idempotency-Key gets the same reply; another one is not tried again."""
    sent = {"model": "auto", "extra_headers": {"Idempotency-Key": f"clients-{openai.VERSION.replace('.', '-')}"}}
    first, second = (client.chat.completions.create(messages=service.messages, **sent) for _ in range(2))
    assert first == second
    with pytest.raises(openai.ConflictError):
        client.chat.completions.create(messages=[{"role": "user", "content": "Another one?"}], **sent)


def test_everything_that_clients_send(client, service):
    """Parameters that no arm reads are ignored."""
    reply = client.chat.completions.create(
        model="auto",
        messages=[{"role": "developer", "content": "Be brief."}, *service.messages],
        temperature=0.1,
        top_p=0.9,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        seed=7,
        stop=["\n"],
        max_completion_tokens=100,
        user="u-1",
        metadata={"page": "faq"},
        store=False,
        reasoning_effort="low",
        tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    )
    assert reply.choices[0].message.content == service.answer
    assert {"temperature", "seed", "stop", "tools"} <= set(service.decision(reply.id)["request"]["ignored"])
