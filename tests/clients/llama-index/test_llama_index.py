"""The selector and the query engine in real LlamaIndex."""

import asyncio
import uuid

import pytest
from llama_index.core.base.base_selector import SelectorResult
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import CustomQueryEngine, RouterQueryEngine
from llama_index.core.retrievers import BaseRetriever, RouterRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.tools import QueryEngineTool, RetrieverTool, ToolMetadata

from ragbandit import Client
from ragbandit.integrations.llama_index import BanditSelector, arms_of
from ragbandit.shared.errors import InvalidInput

QUESTION = "Who wrote Dracula?"


class Fixed(CustomQueryEngine):
    """Answers with its text."""

    text: str

    def custom_query(self, query_str):
        if self.text == "broken":
            raise LookupError("no index")
        return self.text


class Nodes(BaseRetriever):
    """Finds one node."""

    def __init__(self, text):
        self.text = text
        super().__init__()

    def _retrieve(self, query_bundle):
        return [NodeWithScore(node=TextNode(text=self.text), score=1.0)]


@pytest.fixture
def client():
    with Client() as opened:
        yield opened


def engine_of(selector, **texts):
    tools = [QueryEngineTool.from_defaults(Fixed(text=text), name=name) for name, text in texts.items()]
    return RouterQueryEngine(selector=selector, query_engine_tools=tools, llm=MockLLM())


def test_router_query_engine(client):
    """The chosen engine answers; the selection's reason is the decision's id; the block reports the answer."""
    selector = BanditSelector(client)
    engine = engine_of(selector, fast="Bram Stoker", deep="Abraham Stoker")
    with selector.reporting() as run:
        run.response = engine.query(QUESTION)
    selection: SelectorResult = run.response.metadata["selector_result"]
    record = client.decision(run.decision_id)
    assert selection.reason == run.decision_id
    assert str(run.response) == {"fast": "Bram Stoker", "deep": "Abraham Stoker"}[run.arm]
    assert (record["arm"], record["outcome"]["answer"]) == (run.arm, str(run.response))
    assert client.feedback(run.decision_id, rating=True)["waiting_for"] is None


def test_async(client):
    """The same with aquery, several at once, each with its own decision."""
    selector = BanditSelector(client)
    engine = engine_of(selector, fast="Bram Stoker", deep="Abraham Stoker")

    async def ask():
        async with selector.reporting() as run:
            run.response = await engine.aquery(QUESTION)
        return run

    async def walk():
        return await asyncio.gather(*(ask() for _ in range(10)))

    runs = asyncio.run(walk())
    assert len({run.decision_id for run in runs}) == 10
    assert all(client.decision(run.decision_id)["outcome"]["answer"] == str(run.response) for run in runs)


def test_router_retriever(client):
    """A RouterRetriever asks the chosen retriever."""
    selector = BanditSelector(client)
    tools = [RetrieverTool.from_defaults(Nodes(name), name=name, description=name) for name in ("fast", "deep")]
    retriever = RouterRetriever(selector=selector, retriever_tools=tools, llm=MockLLM())
    with selector.reporting() as run:
        (node,) = retriever.retrieve(QUESTION)
        run.fields = {"answer": node.text, "cost": {"retriever_calls": 1}}
    assert node.text == run.arm == client.decision(run.decision_id)["outcome"]["answer"]


def test_arms_of_tools():
    """The section `arms` has the tools' names and descriptions; a tool without a name is refused."""
    fast = QueryEngineTool.from_defaults(Fixed(text="a"), name="fast", description="answers from memory")
    deep = QueryEngineTool.from_defaults(Fixed(text="b"), name="deep", description="searches several times")
    assert arms_of([fast, deep.metadata]) == {
        "fast": {"run_by": "caller", "description": "answers from memory"},
        "deep": {"run_by": "caller", "description": "searches several times"},
    }
    with pytest.raises(InvalidInput, match="two tools have the same name"):
        arms_of([fast, fast])


def test_a_conversation_is_a_task(client):
    """With the unit task, a selector chooses one tool for all questions of its conversation."""
    selector = BanditSelector(client, session_id=str(uuid.uuid4()), unit="task")
    choices = [ToolMetadata(name=name, description=name) for name in ("fast", "deep")]
    assert len({selector.select(choices, QUESTION).selections[0].index for _ in range(8)}) == 1
