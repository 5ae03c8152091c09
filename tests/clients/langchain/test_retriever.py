"""Our retriever over a vector store of LangChain, as `retriever.name` makes it."""

import asyncio

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from ragbandit.strategies.retrievers.langchain import LangChainRetriever


def test_a_vector_store():
    """The document with the query's own vector comes first, with its id, title and url; k reaches the store."""
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=16))
    texts = ["river", "sea", "lake", "pond", "stream", "brook"]
    store.add_documents([Document(text, metadata={"title": text.upper(), "url": f"/{text}"}) for text in texts])
    retriever = LangChainRetriever(store.as_retriever(), name="memory")
    hits = asyncio.run(retriever.search("lake", k=6))
    asyncio.run(retriever.close())
    assert sorted(hit.passage.text for hit in hits) == sorted(texts)
    best = hits[0].passage
    assert (best.text, best.title, best.url, best.id in store.store) == ("lake", "LAKE", "/lake", True)
