"""The openai package's `client.responses` as it comes from the index, version 2 or 3."""

import asyncio

import openai
import pytest
from openai.types.responses import Response

QUESTION = "What is the capital of France?"


@pytest.fixture
def client(service):
    with openai.OpenAI(base_url=service.base_url, api_key=service.key, timeout=60) as made:
        yield made


def test_whole(client, service):
    """A whole response has the answer, our facts beside it, and is read again by its id."""
    raw = client.responses.with_raw_response.create(
        model="arm/single_step", input=QUESTION, instructions="Be brief.", metadata={"page": "faq"}
    )
    reply = raw.parse()
    assert isinstance(reply, Response)
    assert (reply.output_text, reply.status) == (service.answer, "completed")
    assert reply.id == raw.headers["x-ragbandit-decision-id"]
    assert reply._request_id == raw.headers["x-request-id"]
    assert (reply.model, reply.metadata, reply.instructions) == ("ragbandit/single_step", {"page": "faq"}, "Be brief.")
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens > 0
    assert reply.ragbandit["forced"] is True
    urls = [citation.url for citation in reply.output[0].content[0].annotations]
    assert service.passage in urls
    assert client.responses.retrieve(reply.id) == reply
    assert service.decision(reply.id)["outcome"]["answer"] == service.answer


def test_stream(client, service):
    """The events come in their order, and the pieces make the answer."""
    events = list(client.responses.create(model="auto", input=QUESTION, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == service.answer
    assert events[-1].response.output_text == service.answer
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_stream_helper(client, service):
    """The client's own helper puts a stream together."""
    with client.responses.stream(model="auto", input=QUESTION) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == service.answer
    assert client.responses.retrieve(final.id).output_text == service.answer


def test_a_conversation(client, service):
    """A second response goes on from the first, by its id or by its items."""
    first = client.responses.create(model="auto", input=QUESTION)
    second = client.responses.create(model="auto", input="And its river?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": service.answer}]
    decision = service.decision(second.id)
    assert (decision["messages"], decision["session_id"]) == (turns, first.id)
    items = [{"role": "user", "content": QUESTION}, *first.output, {"role": "user", "content": "And its river?"}]
    third = client.responses.create(model="auto", input=items)
    assert service.decision(third.id)["messages"] == turns


def test_asynchronous(service):
    """AsyncOpenAI reads whole responses and streams, several at once."""

    async def ask():
        async with openai.AsyncOpenAI(base_url=service.base_url, api_key=service.key, timeout=60) as client:

            async def one():
                sent = await client.responses.create(model="auto", input=QUESTION, stream=True)
                return "".join([event.delta async for event in sent if event.type == "response.output_text.delta"])

            whole = await client.responses.create(model="auto", input=QUESTION)
            return [whole.output_text, *await asyncio.gather(*(one() for _ in range(8)))]

    assert asyncio.run(ask()) == [service.answer] * 9


def test_store(client):
    """What is not stored cannot be read, nor gone on from; nothing is deleted."""
    reply = client.responses.create(model="auto", input=QUESTION, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(reply.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="auto", input="And?", previous_response_id=reply.id)
    assert (caught.value.code, caught.value.param) == ("not_found", "previous_response_id")
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.delete(reply.id)
    assert caught.value.status_code == 405


@pytest.mark.parametrize(
    ("more", "error", "code", "param"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError, "model_not_found", "model"),
        ({"input": []}, openai.BadRequestError, "invalid_input", "input"),
        ({"tool_choice": "required"}, openai.BadRequestError, "unsupported_parameter", "tool_choice"),
        ({"background": True}, openai.BadRequestError, "unsupported_parameter", "background"),
        ({"conversation": "conv_1"}, openai.BadRequestError, "unsupported_parameter", "conversation"),
    ],
)
def test_errors(client, more, error, code, param):
    """What is wrong is raised as the client's own error."""
    with pytest.raises(error) as caught:
        client.responses.create(**{"model": "auto", "input": QUESTION} | more)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.request_id


def test_one_key_one_response(client):
    """The same request under one Idempotency-Key gets the same response."""
    sent = {"model": "auto", "extra_headers": {"Idempotency-Key": f"responses-{openai.VERSION.replace('.', '-')}"}}
    first, second = (client.responses.create(input=QUESTION, **sent) for _ in range(2))
    assert first == second
    with pytest.raises(openai.ConflictError):
        client.responses.create(input="Another one?", **sent)


def test_cancel(client, service):
    """A response that has ended stays as it is."""
    reply = client.responses.create(model="auto", input=QUESTION)
    assert client.responses.cancel(reply.id).output_text == service.answer
