"""Retrievers without an index: over a list, and for arms that do not search."""

import asyncio
from collections.abc import Iterable

from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.texts.text_forms import words
from ragbandit.strategies.base import Hit, Passage, Retriever


class MemoryRetriever(Retriever):
    """Finds passages in a list. The score is the number of distinct words that query and passage have in common.

    seconds: duration of a search. fail_at: numbers of the searches, from 1, that raise ArmFailed.
    Attributes: `queries` has every query; `closed` is True after `close`.
    """

    def __init__(
        self, passages: Iterable[Passage], *, name: str = "memory", seconds: float = 0.0, fail_at: Iterable[int] = ()
    ) -> None:
        self.name = name
        self.queries: list[str] = []
        self.closed = False
        self._passages = [(passage, set(words(f"{passage.title} {passage.text}"))) for passage in passages]
        self._seconds = seconds
        self._fail_at = frozenset(fail_at)

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        self.queries.append(query)
        number = len(self.queries)
        await asyncio.sleep(self._seconds)
        if number in self._fail_at:
            raise ArmFailed(f"the retriever fails at search {number}")
        query_words = set(words(query))
        hits = [Hit(passage=passage, score=float(len(query_words & terms))) for passage, terms in self._passages]
        return tuple(sorted((hit for hit in hits if hit.score > 0), key=lambda hit: -hit.score)[: max(0, k)])

    async def close(self) -> None:
        self.closed = True


class NoRetriever(Retriever):
    """The retriever of arms whose class sets `retrieves = False`: every search is an error."""

    name = "none"

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        del query, k
        remedy = "remove retrieves = False from the class"
        raise ArmFailed("the arm searched, and its class says retrieves = False", remedy=remedy)
