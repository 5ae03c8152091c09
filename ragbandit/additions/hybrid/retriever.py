"""A retriever that fuses the hits of two others."""

from collections.abc import Sequence
from functools import partial

from ragbandit.shared.errors import InvalidInput
from ragbandit.strategies.base import Hit, Passage, Retriever, run_concurrently

CONSTANT = 60  #: constant of reciprocal rank fusion, as in the paper


def fuse(lists: Sequence[Sequence[Hit]], *, k: int) -> tuple[Hit, ...]:
    """The k best passages of several lists. A passage scores the sum of 1 / (CONSTANT + rank) over its lists.

    Ranks count from 1. Passages with equal scores are in the order of their first occurrence, list by list.
    Source: Cormack, Clarke and Buettcher 2009, "Reciprocal rank fusion outperforms Condorcet".
    """
    scores: dict[str, float] = {}
    passages: dict[str, Passage] = {}
    for hits in lists:
        for rank, hit in enumerate(hits, start=1):
            passages.setdefault(hit.passage.id, hit.passage)
            scores[hit.passage.id] = scores.get(hit.passage.id, 0.0) + 1 / (CONSTANT + rank)
    best = sorted(scores, key=lambda passage_id: -scores[passage_id])[: max(0, k)]
    return tuple(Hit(passage=passages[passage_id], score=scores[passage_id]) for passage_id in best)


class HybridRetriever(Retriever):
    """Asks two retrievers of the same corpus concurrently and fuses their hits by id.

    Each retriever returns up to max(`depth`, k) hits, because a passage that is low in both lists may be the first of
    the fused list. Raises InvalidInput for a depth below 1.
    """

    def __init__(self, first: Retriever, *, second: Retriever, depth: int = 50) -> None:
        if depth < 1:
            raise InvalidInput(f"{depth} is below 1", field="depth", remedy="give at least 1")
        self._pair = (first, second)
        self._depth = depth

    @property
    def name(self) -> str:  # type: ignore[override] # it changes when one of the two opens another index
        return f"hybrid:{self._pair[0].name}+{self._pair[1].name}"

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        if k < 1:
            return ()
        searches = [partial(retriever.search, query, k=max(k, self._depth)) for retriever in self._pair]
        return fuse(await run_concurrently(searches), k=k)

    async def close(self) -> None:
        for retriever in self._pair:
            await retriever.close()
