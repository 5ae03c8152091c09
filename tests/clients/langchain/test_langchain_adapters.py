"""LangChain inside our workers: a chain as an arm, a retriever as ours."""

import sys

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda

from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.types import Budget
from ragbandit.strategies.adapters import LangChainRetriever
from tests.clients.rag_of_yours import outcome_of, searched

chain = ChatPromptTemplate.from_messages([("user", "{question}")]) | FakeListChatModel(responses=["Bram Stoker"])
texts = RunnableLambda(lambda question: {"answer": f"{question}!"})
turns = RunnableLambda(lambda messages: " | ".join(text for _, text in messages))
no_text = RunnableLambda(lambda _: 7)
broken = RunnableLambda(lambda _: 1 / 0)


def counted():
    """A chain whose model says what it used."""
    used = {"input_tokens": 12, "output_tokens": 3, "total_tokens": 15}
    message = AIMessage("Bram Stoker", usage_metadata=used, response_metadata={"model_name": "fake"})
    return RunnableLambda(lambda _: "q") | GenericFakeChatModel(messages=iter([message] * 9)) | StrOutputParser()


@pytest.fixture(autouse=True)
def my_rag(monkeypatch):
    """This file as the module beside a configuration."""
    monkeypatch.setitem(sys.modules, "my_rag", sys.modules[__name__])


def test_a_chain_answers():
    """A prompt and a model: the message is the answer, one answer is one step."""
    outcome = outcome_of("LangChainArm", object="my_rag:chain")
    assert (outcome.status, outcome.answer, outcome.steps) == ("answered", "Bram Stoker", 1)
    assert outcome.made_by["params"]["object"] == "my_rag:chain"


def test_what_it_is_given():
    """Text, or the conversation's messages."""
    assert outcome_of("LangChainArm", object="my_rag:texts", input="text").answer == "Who wrote Dracula?!"
    said = outcome_of("LangChainArm", object="my_rag:turns", input="messages", messages=["Hello"])
    assert said.answer == "Hello | Who wrote Dracula?"


def test_tokens_are_counted():
    """Tokens of the chain's models are its cost, and the budget's tokens end it."""
    outcome = outcome_of("LangChainArm", object="my_rag:counted")
    assert (outcome.cost.llm_calls, outcome.cost.prompt_tokens, outcome.cost.completion_tokens) == (1, 12, 3)
    spent = outcome_of("LangChainArm", object="my_rag:counted", budget=Budget(tokens=10))
    assert (spent.status, spent.stop_reason) == ("exhausted", "budget_tokens")


@pytest.mark.parametrize(("name", "said"), [("no_text", "no text"), ("broken", "division")])
def test_failures(name, said):
    """What it raises, and an output without text, are failed outcomes."""
    outcome = outcome_of("LangChainArm", object=f"my_rag:{name}")
    assert outcome.status == "failed"
    assert said in outcome.error


@pytest.mark.parametrize("path", ["", "my_rag:nothing", "my_rag:QUESTION", "my_rag", "no_such_module:chain"])
def test_what_is_no_runnable(path):
    """It is a ConfigError that names the setting, before any question."""
    with pytest.raises(ConfigError) as caught:
        outcome_of("LangChainArm", object=path)
    assert caught.value.field == "arms.mine.object"


class Library(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        if query == "broken":
            raise LookupError("no index")
        facts = {"title": "Dracula", "source": "https://example.org/dracula"}
        first = Document(page_content="Bram Stoker wrote it.", id="d1", metadata=facts)
        return [first, Document(page_content="Another text."), first]


QUESTION = "no runnable"


def test_a_retriever():
    """Its documents are hits in its order, each once, with id, title and address; at most k."""
    retriever = LangChainRetriever(Library(), name="library")
    first, second = searched(retriever, k=5)
    assert (first.passage.id, first.passage.title, first.passage.url) == (
        "d1",
        "Dracula",
        "https://example.org/dracula",
    )
    assert first.score > second.score
    assert second.passage.id
    assert len(searched(retriever, k=1)) == 1
    assert searched(retriever, query=" ") == searched(retriever, k=0) == ()
    with pytest.raises(ArmFailed, match="no index"):
        searched(retriever, query="broken")
