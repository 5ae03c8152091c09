"""Retrievers that use other retrievers (reranked, hybrid), and retrievers without an index (a list, none)."""

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Protocol

from ragbandit.shared.errors import ArmFailed, InvalidInput, RagBanditError
from ragbandit.shared.texts.text_forms import words
from ragbandit.strategies.base import Hit, Passage, Retriever, at_once
from ragbandit.strategies.failures import log_exception


class Reranker(Protocol):
    """Reorders hits; all calls come from one event loop. It may have `async def close(self)`."""

    name: str  #: identifies the reranker in every outcome

    async def __call__(self, query: str, hits: tuple[Hit, ...], /) -> tuple[Hit, ...]:
        """Return the same hits with new scores, best first. If it raises, the search fails with ArmFailed."""


class RerankedRetriever(Retriever):
    """Asks a retriever for max(`depth`, k) hits, reranks them and returns the k best.

    A larger depth costs more, and finds passages that the retriever ranks low. Raises InvalidInput for a depth below 1.
    """

    def __init__(self, retriever: Retriever, *, rerank: Reranker, depth: int = 50) -> None:
        if depth < 1:
            raise InvalidInput(f"{depth} is below 1", field="depth", remedy="give at least 1")
        self._retriever = retriever
        self._rerank = rerank
        self._depth = depth

    @property
    def name(self) -> str:  # type: ignore[override] # it changes when the retriever opens another index
        return f"{self._retriever.name}:reranked:{self._rerank.name}:{self._depth}"

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        if k < 1:
            return ()
        hits = await self._retriever.search(query, k=max(k, self._depth))
        if not hits:
            return ()
        try:
            ranked = await self._rerank(query, hits)
        except RagBanditError:
            raise
        except Exception as error:  # the user's class may raise anything
            name = self._rerank.name
            log_exception(error, of=f"the reranker {name}", action="rerank_failed", reranker=name)
            message = f"the reranker {name} failed: {type(error).__name__}: {error}"
            raise ArmFailed(message, remedy="see the traceback in the worker's log") from error
        return self._checked(ranked, hits=hits)[:k]

    async def close(self) -> None:
        try:
            await self._retriever.close()
        finally:
            close = getattr(self._rerank, "close", None)
            if close is not None:
                await close()

    def _checked(self, ranked: object, *, hits: tuple[Hit, ...]) -> tuple[Hit, ...]:
        """Check the ranked hits, and convert scores to float, because numpy's numbers cannot be written as JSON."""
        name = self._rerank.name
        try:
            result = tuple(Hit(passage=hit.passage, score=float(hit.score)) for hit in ranked)  # type: ignore[attr-defined]  # the except handles it
            before, after = Counter(hit.passage for hit in hits), Counter(hit.passage for hit in result)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise _failed(f"the reranker {name} returned no hits but {ranked!r:.200}") from error
        for verb, passages in (("left out", before - after), ("added", after - before)):
            if passages:
                ids = ", ".join(repr(getattr(passage, "id", passage)) for passage in islice(passages, 3))
                raise _failed(f"the reranker {name} received {len(hits)} hits and {verb} {ids}")
        scores = [hit.score for hit in result]
        if not all(map(math.isfinite, scores)) or any(score < next_score for score, next_score in pairwise(scores)):
            raise _failed(f"the reranker {name} returned scores that rise, or are not numbers: {scores!r:.200}")
        return result


def _failed(fault: str) -> ArmFailed:
    return ArmFailed(fault, remedy="return every received hit once, with its unchanged passage and a score, best first")


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

    Each retriever returns max(`depth`, k) hits, because a passage that is low in both lists may be the first of the
    fused list. Raises InvalidInput for a depth below 1.
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
        return fuse(await at_once(searches), k=k)

    async def close(self) -> None:
        for retriever in self._pair:
            await retriever.close()


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
