"""Retrievers around others: reranked and hybrid; and those without an index: passages in a list, and none at all."""

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Protocol

from ragbandit.shared.errors import ArmFailed, InvalidInput, RagBanditError
from ragbandit.shared.text_forms import words
from ragbandit.strategies.base import Hit, Passage, Retriever, at_once, log_exception


class Reranker(Protocol):
    """Puts hits in a better order, on one event loop. Its retriever calls its `async def close(self)`, if any."""

    #: tells two rerankers apart: it is kept with every outcome
    name: str

    async def __call__(self, query: str, hits: tuple[Hit, ...], /) -> tuple[Hit, ...]:
        """The same hits with scores of its own, best first. Any exception makes the search an ArmFailed."""
        ...


class RerankedRetriever(Retriever):
    """Asks a retriever for `depth` hits, or for k if that is more, reranks them and gives the k best.

    The reranker may put the last of these first, so a larger depth finds and costs more. It is not asked without hits.
    `name` has both names and the depth. Raises InvalidInput for a depth below 1.
    """

    def __init__(self, retriever: Retriever, *, rerank: Reranker, depth: int = 50) -> None:
        if depth < 1:
            raise InvalidInput(f"{depth} is below 1", field="depth", remedy="give at least 1")
        self._retriever = retriever
        self._rerank = rerank
        self._depth = depth

    @property
    def name(self) -> str:  # type: ignore[override] # it changes when the retriever opens another index
        """The retriever's name, the reranker's and the depth."""
        return f"{self._retriever.name}:reranked:{self._rerank.name}:{self._depth}"

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """The at most k best by the reranker, with its scores. Raises ArmFailed if one fails, or changes hits."""
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
            message = f"the reranker {self._rerank.name} failed: {type(error).__name__}: {error}"
            raise ArmFailed(message, remedy="see the traceback in the worker's log") from error
        return self._checked(ranked, given=hits)[:k]

    async def close(self) -> None:
        """Close the retriever, and the reranker if it can be closed."""
        try:
            await self._retriever.close()
        finally:
            close = getattr(self._rerank, "close", None)
            if close is not None:
                await close()

    def _checked(self, ranked: object, *, given: tuple[Hit, ...]) -> tuple[Hit, ...]:
        """The hits, their scores made plain floats: many a model's are numpy's, which no JSON takes."""
        try:
            hits = tuple(Hit(passage=hit.passage, score=float(hit.score)) for hit in ranked)  # type: ignore[attr-defined]  # the except says so
            before, after = (Counter(hit.passage for hit in each) for each in (given, hits))
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise self._failed(f"returned no hits but {ranked!r:.200}") from error
        for word, which in (("left out", before - after), ("added", after - before)):
            if which:
                names = ", ".join(repr(getattr(each, "id", each)) for each in islice(which, 3))
                raise self._failed(f"was given {len(given)} hits and {word} {names}")
        scores = [hit.score for hit in hits]
        if not all(map(math.isfinite, scores)) or any(one < two for one, two in pairwise(scores)):
            raise self._failed(f"returned scores that are no numbers or rise: {scores!r:.200}")
        return hits

    def _failed(self, fault: str) -> ArmFailed:
        remedy = "return every hit that was given, once and with its passage as it is, best first, each with its score"
        return ArmFailed(f"the reranker {self._rerank.name} {fault}", remedy=remedy)


#: constant of reciprocal rank fusion, as its authors set it
CONSTANT = 60


def fuse(lists: Sequence[Sequence[Hit]], *, k: int) -> tuple[Hit, ...]:
    """The k best of several lists: a passage scores the sum of 1 / (CONSTANT + rank) over the lists that hold it.

    Ranks count from 1, so a score lies between 0 and len(lists) / (CONSTANT + 1). Equal scores come in the order in
    which they are met, list by list. Passages are the same where their ids are.
    Source: Cormack, Clarke and Buettcher 2009, "Reciprocal rank fusion outperforms Condorcet".
    """
    scores: dict[str, float] = {}
    passages: dict[str, Passage] = {}
    for hits in lists:
        for rank, hit in enumerate(hits, start=1):
            passages.setdefault(hit.passage.id, hit.passage)
            scores[hit.passage.id] = scores.get(hit.passage.id, 0.0) + 1 / (CONSTANT + rank)
    best = sorted(scores, key=lambda name: -scores[name])[: max(0, k)]
    return tuple(Hit(passage=passages[name], score=scores[name]) for name in best)


class HybridRetriever(Retriever):
    """Asks two retrievers of the same corpus at the same time and fuses their hits by id.

    Each gives `depth` hits, or k if that is more: a passage that is tenth in both lists may be first in the joined one.
    A search fails if either fails. `name` has both names. Raises InvalidInput for a depth below 1.
    """

    def __init__(self, first: Retriever, *, second: Retriever, depth: int = 50) -> None:
        if depth < 1:
            raise InvalidInput(f"{depth} is below 1", field="depth", remedy="give at least 1")
        self._pair = (first, second)
        self._depth = depth

    @property
    def name(self) -> str:  # type: ignore[override] # it changes when one of the two opens another index
        """Both names."""
        return f"hybrid:{self._pair[0].name}+{self._pair[1].name}"

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """The at most k best of both, best first. Raises ArmFailed if one of them fails."""
        if k < 1:
            return ()
        searches = [partial(retriever.search, query, k=max(k, self._depth)) for retriever in self._pair]
        return fuse(await at_once(searches), k=k)

    async def close(self) -> None:
        """Close both."""
        for retriever in self._pair:
            await retriever.close()


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
        hits = [Hit(passage=passage, score=float(len(wanted & known))) for passage, known in self._passages]
        # sorted() keeps the order of equal scores.
        return tuple(sorted((hit for hit in hits if hit.score > 0), key=lambda hit: -hit.score)[: max(0, k)])

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


def _words(text: str) -> frozenset[str]:
    return frozenset(words(text))
