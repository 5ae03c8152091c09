"""RoutedRunnable in real LangChain: chosen, traced under the decision's id, reported."""

import uuid

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

from ragbandit import Client
from ragbandit.integrations.langchain import RoutedRunnable

QUESTION = "Who wrote Dracula?"


@pytest.fixture
def client():
    with Client() as opened:
        yield opened


def chain(answer):
    prompt = ChatPromptTemplate.from_messages([("user", "{question}")])
    return prompt | FakeListChatModel(responses=[answer]) | StrOutputParser()


def test_a_chain(client):
    """In a chain it is a Runnable as any: the chosen chain's text goes on, and is the outcome's answer."""
    key = str(uuid.uuid4())
    routed = RoutedRunnable(client, runnables={"fast": chain("Bram Stoker"), "deep": chain("Abraham Stoker")})
    whole = RunnableLambda(lambda question: {"question": question}) | routed.with_config(run_id=uuid.UUID(key))
    answer = (whole | str.upper).invoke(QUESTION)
    record = client.decision(key)
    assert record["outcome"]["answer"].upper() == answer
    assert answer == {"fast": "BRAM STOKER", "deep": "ABRAHAM STOKER"}[record["arm"]]
    assert record["question"] == QUESTION
    assert set(record["pmf"]) == {"fast", "deep"}
    assert client.feedback(key, rating=True)["waiting_for"] is None


def test_a_conversation_is_a_task(client):
    """With the unit task, all questions of a conversation run one chain."""
    chains = {"fast": chain("fast"), "deep": chain("deep")}
    routed = RoutedRunnable(client, runnables=chains, session_of=lambda value: value["chat"], unit="task")
    chat = str(uuid.uuid4())
    assert len({routed.invoke({"question": QUESTION, "chat": chat}) for _ in range(8)}) == 1
