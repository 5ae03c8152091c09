"""OpenAI's Agents SDK in front of models: a function tool over several turns, by both of its models; typed outputs."""

import asyncio

import pytest
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel


class City(BaseModel):
    name: str
    people: int


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sun in {city}"


@pytest.mark.parametrize("kind", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_over_several_turns(gateway, kind, streamed):
    """The agent calls its tool and answers; both turns are one decision."""
    set_tracing_disabled(True)

    async def whole():
        async with AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.key, timeout=60, max_retries=0) as client:
            agent = Agent(name="Guide", tools=[weather], model=kind(model="auto", openai_client=client))
            if not streamed:
                return await Runner.run(agent, "What is the weather?")
            result = Runner.run_streamed(agent, "What is the weather?")
            async for _ in result.stream_events():
                pass
            return result

    result = asyncio.run(whole())
    assert result.final_output == gateway.answer
    assert [item.output for item in result.new_items if item.type == "tool_call_output_item"] == ["sun in Paris"]


def test_a_typed_output(gateway):
    """An `output_type` reaches the model as the form of its answer."""
    set_tracing_disabled(True)

    async def whole():
        async with AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.key, timeout=60, max_retries=0) as client:
            model = OpenAIResponsesModel(model="auto", openai_client=client)
            return await Runner.run(Agent(name="Guide", model=model, output_type=City), "Where?")

    assert asyncio.run(whole()).final_output == City(name="Paris", people=2100000)
