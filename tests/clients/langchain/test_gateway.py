"""LangChain's ChatOpenAI in front of models: bound tools over two turns, whole and streamed, and structured output."""

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class City(BaseModel):
    """A city."""

    name: str
    people: int


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sun in {city}"


def model(gateway, **more):
    return ChatOpenAI(model="auto", base_url=gateway.base_url, api_key=gateway.key, max_retries=0, **more)


@pytest.mark.parametrize("by_responses", [False, True])
def test_bound_tools(gateway, by_responses):
    """A call, its result, the answer; the same from the chunks of a stream."""
    bound = model(gateway, use_responses_api=by_responses).bind_tools([weather])
    asked = [HumanMessage("What is the weather?")]
    first = bound.invoke(asked)
    (call,) = first.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Paris"})
    chunks = list(bound.stream(asked))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.tool_calls[0]["args"] == {"city": "Paris"}
    second = bound.invoke([*asked, first, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])])
    assert second.text == gateway.answer


def test_structured_output(gateway):
    """The schema reaches the model, and the answer is an object of it."""
    structured = model(gateway).with_structured_output(City, method="json_schema")
    assert structured.invoke("Where?") == City(name="Paris", people=2100000)
