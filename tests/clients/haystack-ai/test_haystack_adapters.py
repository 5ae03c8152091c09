"""Haystack inside our workers: a pipeline as an arm, a pipeline as our retriever."""

import sys

import pytest
from haystack import Document, Pipeline, component
from haystack.components.builders import PromptBuilder
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
from haystack.dataclasses import ChatMessage
from haystack.document_stores.in_memory import InMemoryDocumentStore

from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.adapters import HaystackRetriever
from tests.clients.rag_of_yours import outcome_of, searched


@component
class Echo:
    """A chat model that answers with its prompt."""

    @component.output_types(replies=list[ChatMessage])
    def run(self, prompt: str):
        return {"replies": [ChatMessage.from_assistant(prompt)]}


def answering():
    pipeline = Pipeline()
    pipeline.add_component("prompt", PromptBuilder("In a word: {{ query }}", required_variables=["query"]))
    pipeline.add_component("llm", Echo())
    pipeline.connect("prompt.prompt", "llm.prompt")
    return pipeline


def searching():
    store = InMemoryDocumentStore()
    facts = {"title": "Dracula", "url": "https://example.org/dracula"}
    store.write_documents(
        [Document(content="Bram Stoker wrote Dracula.", meta=facts), Document(content="Jane Austen wrote Emma.")]
    )
    pipeline = Pipeline()
    pipeline.add_component("bm25", InMemoryBM25Retriever(store))
    return pipeline


@pytest.fixture(autouse=True)
def my_rag(monkeypatch):
    """This file as the module beside a configuration."""
    monkeypatch.setitem(sys.modules, "my_rag", sys.modules[__name__])


def test_a_pipeline_answers():
    """The question goes to the input sockets, the output socket's message is the answer."""
    outcome = outcome_of("HaystackArm", object="my_rag:answering", inputs=["prompt.query"], output="llm.replies")
    assert (outcome.status, outcome.answer, outcome.steps) == ("answered", "In a word: Who wrote Dracula?", 1)


def test_an_output_that_is_not_reached():
    """A pipeline that does not come to its output socket fails."""
    outcome = outcome_of("HaystackArm", object="my_rag:answering", inputs=["prompt.query"], output="llm.answer")
    assert (outcome.status, "no text" in outcome.error) == ("failed", True)


@pytest.mark.parametrize("given", [{}, {"inputs": ["prompt.query"]}, {"inputs": ["prompt"], "output": "llm.replies"}])
def test_sockets_that_are_none(given):
    """They are a ConfigError of the setting."""
    with pytest.raises(ConfigError) as caught:
        outcome_of("HaystackArm", object="my_rag:answering", **given)
    assert caught.value.field.startswith("arms.mine.")


def test_a_retriever():
    """The documents of the output socket are hits, best first."""
    retriever = HaystackRetriever(searching(), inputs=["bm25.query"], output="bm25.documents")
    (best,) = searched(retriever, k=1)
    assert (best.passage.title, best.passage.url) == ("Dracula", "https://example.org/dracula")
