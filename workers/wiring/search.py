"""Wiring of the service's own search: the configured retrievers, each opened by the first search of it."""

import asyncio

from ragbandit.router.config.settings import Settings
from ragbandit.shared.types import Source
from ragbandit.strategies.base import Retriever
from ragbandit.strategies.runner import source_of
from ragbandit.workers.wiring.retrievers import make_retriever, with_retriever


class CorpusSearch:
    """Searches the configured corpora, from one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opening = asyncio.Lock()
        self._retrievers: dict[str, Retriever] = {}

    async def __call__(self, query: str, k: int, retriever: str) -> list[Source]:
        """The best passages, best first. Raises ConfigError and ArmFailed: no index, or an unreadable one."""
        async with self._opening:
            if retriever not in self._retrievers:
                chosen = with_retriever(self._settings, retriever)
                self._retrievers[retriever] = await asyncio.to_thread(make_retriever, chosen)
        hits = await self._retrievers[retriever].search(query, k=k)
        chars = self._settings.log.source_chars
        return [source_of(hit.passage, score=hit.score, chars=chars) for hit in hits]
