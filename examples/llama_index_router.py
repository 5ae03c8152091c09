"""LlamaIndex: the service selects the query engine (pip install '.[llama-index]').

    ragbandit up --config examples/bring_your_own_pipelines.yaml
    python -m ragbandit.examples.llama_index_router

The engines give two sentences to a model that repeats its prompt: put yours in their place.
"""

from llama_index.core import Document, SummaryIndex
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RouterQueryEngine
from llama_index.core.tools import QueryEngineTool

from ragbandit import Client
from ragbandit.integrations.llama_index import BanditSelector


def main() -> None:
    llm = MockLLM()  # repeats its prompt
    index = SummaryIndex.from_documents([Document(text="Bram Stoker wrote Dracula."), Document(text="It is of 1897.")])
    fast = QueryEngineTool.from_defaults(index.as_query_engine(llm=llm, response_mode="simple_summarize"), name="fast")
    deep = QueryEngineTool.from_defaults(index.as_query_engine(llm=llm, response_mode="tree_summarize"), name="deep")
    with Client() as client:
        selector = BanditSelector(client)
        engine = RouterQueryEngine(selector=selector, query_engine_tools=[fast, deep], llm=llm)
        with selector.reporting() as run:
            run.response = engine.query("Who wrote Dracula?")
            run.fields = {"steps": 1 if run.arm == "fast" else 2}
        print(run.arm, str(run.response).replace("\n", " ")[:80])
        client.feedback(str(run.decision_id), rating="Stoker" in str(run.response))


if __name__ == "__main__":
    main()
