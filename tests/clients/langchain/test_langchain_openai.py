"""langchain-openai's ChatOpenAI, as it comes from the index."""

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


def test_stream(chat, service):
    """Pieces make the answer; what decided is on the last one."""
    whole = None
    for chunk in chat.stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    assert whole.content == service.answer
    assert whole.response_metadata["model_name"].startswith("ragbandit/")
    assert whole.response_metadata["system_fingerprint"]


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
