"""OpenAI's own client in front of models: tools, parsed outputs, images and streamed calls, as with OpenAI's server."""

import json

import openai
import pytest
from pydantic import BaseModel

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


class City(BaseModel):
    name: str
    people: int


@pytest.fixture
def client(gateway):
    with openai.OpenAI(base_url=gateway.base_url, api_key=gateway.key, timeout=60, max_retries=0) as made:
        yield made


def test_a_loop_of_tools(client, gateway):
    """A call, its result, the answer: two completions of one decision."""
    first = client.chat.completions.create(model="auto", messages=gateway.messages, tools=[TOOL])
    asked = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert json.loads(asked.tool_calls[0].function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": asked.tool_calls[0].id, "content": "sun"}
    messages = [*gateway.messages, asked, result]
    second = client.chat.completions.create(model="auto", messages=messages, tools=[TOOL])
    assert (second.choices[0].message.content, second.model) == (gateway.answer, first.model)
    assert gateway.decision(first.id)["outcome"]["answer"] == gateway.answer


def test_calls_in_pieces(client, gateway):
    """The client's own accumulator makes the call of its pieces."""
    with client.chat.completions.stream(model="auto", messages=gateway.messages, tools=[TOOL]) as events:
        done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        final = events.get_final_completion()
    assert [event.arguments for event in done] == ['{"city": "Paris"}']
    assert final.choices[0].message.tool_calls[0].function.name == "weather"


def test_parsed_outputs(client, gateway):
    """Cases of chat completions and of responses."""
    parsed = client.chat.completions.parse(model="auto", messages=gateway.messages, response_format=City)
    assert parsed.choices[0].message.parsed == City(name="Paris", people=2100000)
    reply = client.responses.parse(model="auto", input="Where?", text_format=City)
    assert reply.output_parsed == City(name="Paris", people=2100000)


def test_functions_of_responses(client, gateway):
    """A function is called and its output sent on, by the id of the response; events tell of its arguments."""
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
    with client.responses.stream(model="auto", input="The weather?", tools=[tool]) as events:
        kinds = [event.type for event in events]
        first = events.get_final_response()
    assert "response.function_call_arguments.done" in kinds
    (call,) = [item for item in first.output if item.type == "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    more = {"previous_response_id": first.id, "tools": [tool]}
    assert client.responses.create(model="auto", input=[output], **more).output_text == gateway.answer
