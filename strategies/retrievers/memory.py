"""Retrievers without an index: passages in a list, a public test double, and the one where no arm retrieves."""

import asyncio
import re
from collections.abc import Iterable, Sequence

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.base import Hit, Passage, Retriever

_WORD = re.compile(r"\w+")


class MemoryRetriever(Retriever):
    """Finds passages in a list; the score is the number of distinct words shared with title and text.

    Ties go to the earlier passage; a passage that shares no word is not found. seconds: how long every search
    takes. fail_at: the searches, counted from 1, that raise ArmFailed. `queries` holds every query seen. `closed`:
    whether close was called.
    """

    def __init__(
        self, passages: Iterable[Passage], *, name: str = "memory", seconds: float = 0.0, fail_at: Iterable[int] = ()
    ) -> None:
        self.name = name
        self.queries: list[str] = []
        self.closed = False
        self._passages = [(passage, _words(f"{passage.title} {passage.text}")) for passage in passages]
        self._seconds = seconds
        self._fail_at = frozenset(fail_at)

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """The at most k passages with the most words of the query."""
        self.queries.append(query)
        number = len(self.queries)
        await asyncio.sleep(self._seconds)
        if number in self._fail_at:
            raise ArmFailed(f"the retriever fails at search {number}")
        wanted = _words(query)
        hits = [Hit(passage=passage, score=float(len(wanted & words))) for passage, words in self._passages]
        # sorted() keeps the order of equal scores.
        return tuple(sorted((hit for hit in hits if hit.score > 0), key=lambda hit: -hit.score)[: max(0, k)])

    async def passages(self, ids: Sequence[str]) -> tuple[Passage, ...]:
        """Those that are in the list."""
        known = {passage.id: passage for passage, _ in self._passages}
        return tuple(known[key] for key in dict.fromkeys(ids) if key in known)

    async def close(self) -> None:
        """Remember that it was called."""
        self.closed = True


class NoRetriever(Retriever):
    """Finds nothing, opens nothing: a search is an error of the arm that said that it does not retrieve."""

    name = "none"

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """Raises ArmFailed."""
        del query, k
        raise ArmFailed("the arm searched, and its class says retrieves = False", remedy="remove that from the class")

    async def close(self) -> None:
        """Nothing to close."""


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))
