"""Reranking: the hits of any retriever, put into a better order by another model or class."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Protocol

from ragbandit.shared.errors import ArmFailed, InvalidInput, RagBanditError
from ragbandit.strategies.base import Hit, Passage, PassageSource, Retriever

log = logging.getLogger("ragbandit.reranking")


class Reranker(Protocol):
    """Puts hits in a better order. All calls come from one event loop.

    One that has an `async def close(self)` as well is closed with its retriever; a second time must do nothing.
    """

    #: tells two rerankers apart: it is kept with every outcome
    name: str

    async def __call__(self, query: str, hits: tuple[Hit, ...], /) -> tuple[Hit, ...]:
        """The same hits with scores of its own, best first. What it raises is an ArmFailed to whoever searched."""
        ...


class RerankedRetriever(Retriever):
    """Asks a retriever for `depth` hits, or for k where that is more, reranks them and gives the k best.

    A passage that the retriever puts in the last place may be the reranker's first, so `depth` is how far down the
    reranker looks, and what it costs. Where the retriever finds nothing the reranker is not asked.
    `name` is the retriever's with ":reranked:", the reranker's name, ":" and the depth: another depth finds others.
    Raises InvalidInput for a depth below 1.
    """

    def __init__(self, retriever: Retriever, *, rerank: Reranker, depth: int = 50) -> None:
        if depth < 1:
            raise InvalidInput(f"{depth} is below 1", field="depth", remedy="give at least 1")
        self.name = f"{retriever.name}:reranked:{rerank.name}:{depth}"
        self._retriever = retriever
        self._rerank = rerank
        self._depth = depth

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """The at most k best by the reranker, with its scores.

        Raises ArmFailed if the retriever does, if the reranker raises, or if it returns other hits than it was given,
        one twice, fewer, or scores that are no numbers or rise.
        """
        if k < 1:
            return ()
        hits = await self._retriever.search(query, k=max(k, self._depth))
        if not hits:
            return ()
        try:
            ranked = await self._rerank(query, hits)
        except RagBanditError:
            raise
        except Exception as error:  # of the user's own class: whatever it may be
            log.exception(
                "the reranker raised an exception; the arm fails",
                extra={"action": "rerank_failed", "reranker": self._rerank.name},
            )
            message = f"the reranker {self._rerank.name} failed: {type(error).__name__}: {error}"
            raise ArmFailed(message, remedy="see the traceback in the worker's log") from error
        return self._checked(ranked, given=hits)[:k]

    async def passages(self, ids: Sequence[str]) -> tuple[Passage, ...]:
        """Those that the retriever has by id; none where it offers no such look-up."""
        return await self._retriever.passages(ids) if isinstance(self._retriever, PassageSource) else ()

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
        return ArmFailed(
            f"the reranker {self._rerank.name} {fault}",
            remedy="return every hit that was given, once and with its passage as it is, best first, its score beside",
        )
