"""langchain-openai's ChatOpenAI, as it comes from the index."""

import asyncio

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

QUESTION = [SystemMessage("Be brief."), HumanMessage("What is the capital of France?")]


@pytest.fixture
def chat(service):
    return ChatOpenAI(model="auto", base_url=service.base_url, api_key=service.key, timeout=60)


def test_invoke(chat, service):
    """The answer has the decision's id, the arm and what decided in its metadata, and its tokens."""
    reply = chat.invoke(QUESTION)
    assert isinstance(reply, AIMessage)
    assert reply.content == service.answer
    facts = reply.response_metadata
    shown = service.decision(facts["id"])
    assert facts["model_name"] == f"ragbandit/{shown['arm']}"
    assert facts["system_fingerprint"] == f"{shown['policy']}:{shown['version']}"
    assert reply.usage_metadata["total_tokens"] > 0


def test_headers(service):
    """With its headers included the reply names the decision, whole and in pieces."""
    chat = ChatOpenAI(model="auto", base_url=service.base_url, api_key=service.key, include_response_headers=True)
    key = chat.invoke(QUESTION).response_metadata["headers"]["x-ragbandit-decision-id"]
    assert service.decision(key)["outcome"]["answer"] == service.answer
    first = next(iter(chat.stream(QUESTION)))
    assert service.decision(first.response_metadata["headers"]["x-ragbandit-decision-id"])


def test_stream(chat, service):
    """Pieces make the answer; what decided is on the last one."""
    whole = None
    for chunk in chat.stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    assert whole.content == service.answer
    assert whole.response_metadata["model_name"].startswith("ragbandit/")
    assert whole.response_metadata["system_fingerprint"]


def test_stream_usage(service):
    """stream_usage=True brings the tokens of a stream."""
    chat = ChatOpenAI(model="auto", base_url=service.base_url, api_key=service.key, stream_usage=True)
    whole = None
    for chunk in chat.stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    assert whole.usage_metadata["total_tokens"] > 0


def test_asynchronous(chat, service):
    """ainvoke, astream and abatch."""

    async def ask():
        pieces = [chunk.content async for chunk in chat.astream(QUESTION)]
        batch = await chat.abatch([QUESTION] * 3)
        return [(await chat.ainvoke(QUESTION)).content, "".join(pieces), *(each.content for each in batch)]

    assert asyncio.run(ask()) == [service.answer] * 5


def test_responses(service):
    """By the Responses API the answer has its passages, in pieces too, and the next turn goes on from its id."""
    given = {"model": "arm/single_step", "base_url": service.base_url, "api_key": service.key}
    chat = ChatOpenAI(**given, use_responses_api=True, use_previous_response_id=True)
    reply = chat.invoke(QUESTION)
    assert reply.text == service.answer
    assert service.passage in [citation["url"] for citation in reply.content[0]["annotations"]]
    assert reply.usage_metadata["total_tokens"] > 0
    assert "".join(chunk.text for chunk in chat.stream(QUESTION)) == service.answer
    more = chat.invoke([*QUESTION, reply, HumanMessage("And its river?")])
    decision = service.decision(more.response_metadata["id"])
    assert decision["request"]["previous_response_id"] == reply.response_metadata["id"]
    assert [message["content"] for message in decision["messages"][-2:]] == [QUESTION[-1].content, service.answer]


def test_a_chain(chat, service):
    """It is a Runnable like any other."""
    assert (chat | (lambda message: message.content.upper())).invoke(QUESTION) == service.answer.upper()


def test_a_conversation(chat, service):
    """Turns before the question are kept with the decision's question."""
    reply = chat.invoke([HumanMessage("Hello"), AIMessage("Hello!"), HumanMessage("What is the capital of France?")])
    assert service.decision(reply.response_metadata["id"])["question"] == "What is the capital of France?"


def test_structured_output_is_refused(chat):
    """What the service does not do is an error that names the parameter."""
    made = chat.with_structured_output({"title": "x", "type": "object", "properties": {}}, method="json_mode")
    with pytest.raises(openai.BadRequestError) as caught:
        made.invoke(QUESTION)
    assert caught.value.param == "response_format"


def test_tools_that_may_be_left_alone(chat, service):
    """Tools with the choice left to the model are ignored, and the answer is text."""

    def lookup(word: str) -> str:
        """Look a word up."""
        return word

    assert chat.bind_tools([lookup]).invoke(QUESTION).content == service.answer
    with pytest.raises(openai.BadRequestError) as caught:
        chat.bind_tools([lookup], tool_choice="lookup").invoke(QUESTION)
    assert caught.value.param == "tool_choice"
