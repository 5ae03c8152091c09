"""Wiring of the service's own search: the configured retriever, opened by the first search."""

import asyncio

from ragbandit.router.config.settings import Settings
from ragbandit.shared.types import Source
from ragbandit.strategies.base import Retriever
from ragbandit.strategies.runner import source_of
from ragbandit.workers.wiring.retrievers import make_retriever


class CorpusSearch:
    """Searches the configured corpus, from one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opening = asyncio.Lock()
        self._retriever: Retriever | None = None

    async def __call__(self, query: str, k: int) -> list[Source]:
        """The best passages, best first. Raises ConfigError and ArmFailed: no index, or an unreadable one."""
        async with self._opening:
            if self._retriever is None:
                self._retriever = await asyncio.to_thread(make_retriever, self._settings)
        chars = self._settings.log.source_chars
        hits = await self._retriever.search(query, k=k)
        return [source_of(hit.passage, score=hit.score, chars=chars) for hit in hits]
