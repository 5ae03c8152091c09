"""LlamaIndex inside our workers: a query engine as an arm, a retriever as ours."""

import sys

import pytest
from llama_index.core import Document, SummaryIndex
from llama_index.core.llms import MockLLM

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import Budget
from ragbandit.strategies.adapters import LlamaIndexRetriever
from tests.clients.rag_of_yours import outcome_of, searched


def index():
    texts = [
        Document(text="Bram Stoker wrote Dracula.", id_="d1", metadata={"title": "Dracula"}),
        Document(text="Else."),
    ]
    return SummaryIndex.from_documents(texts)


def engine():
    return index().as_query_engine(llm=MockLLM(), response_mode="simple_summarize")


@pytest.fixture(autouse=True)
def my_rag(monkeypatch):
    """This file as the module beside a configuration."""
    monkeypatch.setitem(sys.modules, "my_rag", sys.modules[__name__])


def test_an_engine_answers():
    """Its response is the answer, its nodes the passages that were shown, one answer one step."""
    outcome = outcome_of("LlamaIndexArm", object="my_rag:engine")
    assert outcome.status == "answered"
    assert "Bram Stoker wrote Dracula." in outcome.answer
    assert (outcome.cost.passages, outcome.steps) == (2, 1)


def test_the_budget():
    """More nodes than the budget's passages end it, with its answer."""
    outcome = outcome_of("LlamaIndexArm", object="my_rag:engine", budget=Budget(passages=1))
    assert (outcome.status, outcome.stop_reason) == ("exhausted", "budget_passages")
    assert outcome.answer


def test_what_is_no_engine():
    """An index is none."""
    with pytest.raises(ConfigError, match="query"):
        outcome_of("LlamaIndexArm", object="my_rag:index")


def test_a_retriever():
    """Its nodes are hits, with title and text."""
    first, second = searched(LlamaIndexRetriever(index().as_retriever(), name="library"))
    assert first.passage.title == "Dracula"
    assert "Stoker" in first.passage.text
    assert first.score > second.score
