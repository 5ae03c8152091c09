"""Retrievers that are those of other frameworks: of LangChain, LlamaIndex, and a Haystack pipeline.

A function without arguments of your own makes one, and `retriever.name` names it as "package.module:function":

    def retriever():
        return LangChainRetriever(store.as_retriever(search_kwargs={"k": 20}))

How many passages there are to choose from is the framework's affair: of what it finds the first k are taken.
"""

import asyncio
import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.base import Hit, Passage, Retriever, error_text

#: of metadata, the first that is there
_TITLES = ("title", "file_name", "source", "url")
_URLS = ("url", "source", "link")


class _ForeignRetriever(Retriever):
    """What the three have in common. name: kept with every outcome; tell two corpora apart by it."""

    def __init__(self, retriever: Any, *, name: str) -> None:
        self._retriever, self.name = retriever, name

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """The at most k first passages, each once. Raises ArmFailed where the framework raises."""
        if k < 1 or not query.strip():
            return ()
        try:
            every = await self._every_hit(query)
        except Exception as error:  # whatever a retriever of others does
            raise ArmFailed(f"{self.name} failed: {error_text(error)}") from error
        hits = {hit.passage.id: hit for hit in reversed(every)}
        return tuple(sorted(hits.values(), key=lambda hit: -hit.score)[:k])

    async def close(self) -> None:
        """Nothing: the object belongs to the module that made it."""

    @abstractmethod
    async def _every_hit(self, query: str) -> list[Hit]:
        """All that the framework finds, the best first. May raise whatever the framework raises."""


class LangChainRetriever(_ForeignRetriever):
    """A LangChain retriever, or any runnable from text to documents. Without scores the order alone counts."""

    def __init__(self, retriever: Any, *, name: str = "langchain") -> None:
        super().__init__(retriever, name=name)

    async def _every_hit(self, query: str) -> list[Hit]:
        documents = await self._retriever.ainvoke(query)
        return [
            _hit(each.page_content, key=each.id, facts=each.metadata, score=each.metadata.get("score"), rank=rank)
            for rank, each in enumerate(documents)
        ]


class LlamaIndexRetriever(_ForeignRetriever):
    """A LlamaIndex retriever; it searches in a thread, since its `aretrieve` may block."""

    def __init__(self, retriever: Any, *, name: str = "llama_index") -> None:
        super().__init__(retriever, name=name)

    async def _every_hit(self, query: str) -> list[Hit]:
        nodes = await asyncio.to_thread(self._retriever.retrieve, query)
        return [
            _hit(each.node.get_content(), key=each.node.node_id, facts=each.node.metadata, score=each.score, rank=rank)
            for rank, each in enumerate(nodes)
        ]


class HaystackRetriever(_ForeignRetriever):
    """A Haystack pipeline. inputs: sockets that are given the query; output: the one with the documents, each as
    "component.socket".
    """

    def __init__(self, pipeline: Any, *, inputs: Sequence[str], output: str, name: str = "haystack") -> None:
        super().__init__(pipeline, name=name)
        self._inputs = [each.rpartition(".") for each in inputs]
        self._output = output.rpartition(".")

    async def _every_hit(self, query: str) -> list[Hit]:
        given: dict[str, dict[str, str]] = {}
        for component, _, socket in self._inputs:
            given.setdefault(component, {})[socket] = query
        outputs = await self._retriever.run_async(given)
        component, _, socket = self._output
        return [
            _hit(each.content or "", key=each.id, facts=each.meta, score=each.score, rank=rank)
            for rank, each in enumerate(outputs[component][socket])
        ]


def _hit(text: str, *, key: object, facts: Mapping[str, Any], score: object, rank: int) -> Hit:
    """A hit of a document. key: its id, or None: made of its text. score: None: by its rank."""
    title = next((str(facts[name]) for name in _TITLES if facts.get(name)), "")
    url = next(
        (str(facts[name]) for name in _URLS if str(facts.get(name, "")).startswith(("http://", "https://"))), None
    )
    known = str(key) if key else hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    number = float(score) if isinstance(score, int | float) and not isinstance(score, bool) else 1.0 / (rank + 1)
    return Hit(passage=Passage(id=known, title=title, text=text, url=url), score=number)
