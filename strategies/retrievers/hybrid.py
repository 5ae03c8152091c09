"""Two retrievers searched at once, their lists joined by rank."""

import asyncio
from collections.abc import Sequence

from ragbandit.shared.errors import ArmFailed, InvalidInput
from ragbandit.strategies.base import Hit, Passage, PassageSource, Retriever

#: of reciprocal rank fusion, as its authors set it
CONSTANT = 60


def fuse(lists: Sequence[Sequence[Hit]], *, k: int, constant: int = CONSTANT) -> tuple[Hit, ...]:
    """The k best of several lists: a passage scores the sum of 1 / (constant + rank) over the lists that hold it.

    Ranks count from 1, so a score lies between 0 and len(lists) / (constant + 1). Equal scores come in the order in
    which they are met, list by list. Passages are the same where their ids are.
    Source: Cormack, Clarke and Buettcher 2009, "Reciprocal rank fusion outperforms Condorcet".
    """
    scores: dict[str, float] = {}
    passages: dict[str, Passage] = {}
    for hits in lists:
        for rank, hit in enumerate(hits, start=1):
            passages.setdefault(hit.passage.id, hit.passage)
            scores[hit.passage.id] = scores.get(hit.passage.id, 0.0) + 1 / (constant + rank)
    best = sorted(scores, key=lambda name: -scores[name])[: max(0, k)]
    return tuple(Hit(passage=passages[name], score=scores[name]) for name in best)


class HybridRetriever(Retriever):
    """Asks two retrievers at the same time and fuses what they find.

    Each is asked for `depth` hits, or for k where that is more: a passage that is tenth in both lists may be first in
    the joined one. Both must index the same corpus, for passages are joined by id.
    A search fails if either retriever fails: half an answer under the name of both would mislead whoever compares.
    `name` is "hybrid:" and both names with "+" between them.
    Raises InvalidInput for a depth below 1.
    """

    def __init__(self, first: Retriever, *, second: Retriever, depth: int = 50) -> None:
        if depth < 1:
            raise InvalidInput(f"{depth} is below 1", field="depth", remedy="give at least 1")
        self.name = f"hybrid:{first.name}+{second.name}"
        self._pair = (first, second)
        self._depth = depth

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """The at most k best of both, best first. Raises ArmFailed if one of them fails."""
        if k < 1:
            return ()
        return fuse(await self._search_both(query, k=max(k, self._depth)), k=k)

    async def _search_both(self, query: str, *, k: int) -> list[tuple[Hit, ...]]:
        """Both lists. The one that is still under way when the other fails is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(retriever.search(query, k=k)) for retriever in self._pair]
        except BaseExceptionGroup as failures:
            # Not `except*`: CPython 3.11.2 puts what is raised inside it into another group.
            failed, others = failures.split(ArmFailed)
            if failed is None or others is not None:
                raise
            raise _first(failed) from failures
        return [task.result() for task in tasks]

    async def passages(self, ids: Sequence[str]) -> tuple[Passage, ...]:
        """Those that one of the two has by id: both index the same corpus. Raises ArmFailed if it fails."""
        sources = [retriever for retriever in self._pair if isinstance(retriever, PassageSource)]
        return await sources[0].passages(ids) if sources else ()

    async def close(self) -> None:
        """Close both."""
        for retriever in self._pair:
            await retriever.close()


def _first(failures: BaseExceptionGroup[ArmFailed]) -> ArmFailed:
    leaf: BaseException = failures
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    assert isinstance(leaf, ArmFailed)
    return ArmFailed(leaf.message, field=leaf.field, remedy=leaf.remedy)
