"""The openai package's `client.responses` as it comes from the index, version 2 or 3."""

import openai
import pytest
from openai.types.responses import Response

QUESTION = "What is the capital of France?"


@pytest.fixture
def client(service):
    with openai.OpenAI(base_url=service.base_url, api_key=service.key, timeout=60) as made:
        yield made


def test_whole(client, service):
    """A complete response has the answer and the decision's facts, and can be read again by its id."""
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
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == service.answer
    assert events[-1].response.output_text == service.answer
    assert [event.sequence_number for event in events] == list(range(len(events)))
