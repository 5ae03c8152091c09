"""OpenAI's Agents SDK as it comes from the index: agents whose model is the service, by its Responses model."""

import asyncio

import pytest
from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

QUESTION = "What is the capital of France?"


@pytest.fixture(autouse=True)
def untraced():
    set_tracing_disabled(True)


def asked(service, ask, **more):
    """What `ask` returns of an agent; its client is closed in the loop that it was used in."""

    async def whole():
        async with AsyncOpenAI(base_url=service.base_url, api_key=service.key, timeout=60) as client:
            model = OpenAIResponsesModel(model="auto", openai_client=client)
            agent = Agent(name="Guide", instructions="Answer in one sentence.", model=model, **more)
            return await ask(agent)

    return asyncio.run(whole())


def test_a_run(service):
    """The answer is the run's output; instructions, tokens and the decision are there."""
    result = asked(service, lambda agent: Runner.run(agent, QUESTION))
    assert result.final_output == service.answer
    assert result.context_wrapper.usage.total_tokens > 0
    decision = service.decision(result.last_response_id)
    assert decision["question"] == QUESTION
    assert {"role": "system", "content": "Answer in one sentence."} in decision["messages"]


def test_a_second_turn(service):
    """A run continues the previous response, by its id and by the list of its items."""

    async def ask(agent):
        first = await Runner.run(agent, QUESTION)
        by_id = await Runner.run(agent, "And its river?", previous_response_id=first.last_response_id)
        items = [*first.to_input_list(), {"role": "user", "content": "And its river?"}]
        by_items = await Runner.run(agent, items)
        return first, by_id, by_items

    first, by_id, by_items = asked(service, ask)
    decisions = [service.decision(result.last_response_id) for result in (by_id, by_items)]
    said = [decision["messages"][-2:] for decision in decisions]
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": service.answer}]
    assert said == [turns, turns]
    assert decisions[0]["session_id"] == first.last_response_id
