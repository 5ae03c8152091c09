"""The Open Responses specification: its schemas, as a package from the index has them, hold for what the service sends.

The project's own suite needs its repository; what it asks of a service without tools, images and files is asked here.
"""

import json
from functools import reduce
from operator import or_

import httpx
import openresponses_types as spec
import pytest
from pydantic import TypeAdapter

QUESTION = "What is the capital of France?"
#: every event that the specification has
EVENTS = [value for name, value in vars(spec).items() if name.endswith("StreamingEvent")]
EVENT = TypeAdapter(reduce(or_, EVENTS))


@pytest.fixture
def http(service):
    headers = {"authorization": f"Bearer {service.key}"}
    with httpx.Client(base_url=service.base_url, headers=headers, timeout=60) as made:
        yield made


def created(http, **body):
    """The response to a body that is itself as the specification has it."""
    body = {"model": "auto", "input": QUESTION} | body
    spec.CreateResponseBody.model_validate(body)
    reply = http.post("/responses", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/json"
    spec.ResponseResource.model_validate(reply.json())
    return reply.json()


def said(role, content):
    return {"type": "message", "role": role, "content": content}


@pytest.mark.parametrize(
    "body",
    [
        {"input": "Say hello in three words."},
        {"input": [said("user", "Say hello in three words.")]},
        {"input": [said("system", "Be a pirate."), said("user", "Say hello.")]},
        {"input": [said("developer", [{"type": "input_text", "text": "Be brief."}]), said("user", "Hello?")]},
        {"input": [said("user", "I am Ann."), said("assistant", "Hello."), said("user", "Who am I?")]},
        {"instructions": "Be brief.", "metadata": {"page": "faq"}, "safety_identifier": "u-1", "store": True},
        {"temperature": 0.1, "top_p": 0.5, "max_output_tokens": 64, "truncation": "auto", "tools": []},
    ],
)
def test_a_response(http, service, body):
    """A request of text is answered with a completed response of the schema, which its id brings back."""
    reply = created(http, **body)
    assert reply["status"] == "completed"
    assert [item["type"] for item in reply["output"]] == ["message"]
    assert reply["output"][0]["content"][0]["text"] == service.answer
    stored = http.get(f"/responses/{reply['id']}").json()
    spec.ResponseResource.model_validate(stored)
    assert stored == reply


def test_a_stream(http, service):
    """Every event is of the schema, named by its type, and numbered; the text is that of its pieces; [DONE] is last."""
    body = {"model": "auto", "input": [said("user", QUESTION)], "stream": True}
    reply = http.post("/responses", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    blocks = [block for block in reply.text.split("\n\n") if block and not block.startswith(":")]
    assert blocks.pop() == "data: [DONE]"
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        EVENT.validate_python(events[-1])
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    assert "".join(event.get("delta", "") for event in events) == service.answer


def test_the_previous_response(http):
    """A response goes on from another one."""
    first = created(http, input="Remember the word papaya, and say OK.")
    second = created(http, input="Which word was it?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert second["status"] == "completed"


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"type": "function", "name": "weather"}], "tool_choice": "required"},
        {"input": [said("user", [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}])]},
        {"input": [said("user", [{"type": "input_file", "filename": "a.pdf", "file_data": "AA=="}])]},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
    ],
)
def test_what_is_not_served(http, body):
    """What the arms cannot do is refused as the specification has errors, before there is a decision."""
    spec.CreateResponseBody.model_validate({"model": "auto", "input": QUESTION} | body)
    reply = http.post("/responses", json={"model": "auto", "input": QUESTION} | body)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["code"]) == (400, "invalid_request_error", "unsupported_parameter")
    assert error["param"]
    assert "x-ragbandit-decision-id" not in reply.headers
