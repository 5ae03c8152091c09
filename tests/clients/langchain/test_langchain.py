"""RoutedRunnable in real LangChain: chosen, traced under the decision's id, reported."""

import uuid

import pytest
from langchain_core.callbacks import BaseCallbackHandler
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


class Runs(BaseCallbackHandler):
    """The runs that a tracer sees."""

    def __init__(self):
        self.seen = []

    def on_chain_start(self, serialized, inputs, *, run_id, metadata=None, tags=None, **more):
        self.seen.append((run_id, metadata or {}, tags or []))


def test_without_the_service():
    """The default arm runs, under the id that the client made."""
    runs = Runs()
    with Client("http://127.0.0.1:9", default_arm="deep") as client:
        routed = RoutedRunnable(client, runnables={"fast": chain("a"), "deep": chain("b")})
        assert routed.invoke({"question": QUESTION}, config={"callbacks": [runs]}) == "b"
    assert runs.seen[0][1]["ragbandit_decision_id"] == f"degraded-{runs.seen[0][0]}"
