"""A retriever whose hits a reranker reorders."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from ragbandit.shared.errors import ArmFailed, InvalidInput, RagBanditError
from ragbandit.shared.texts.token_estimates import estimated_tokens
from ragbandit.shared.types import Cost
from ragbandit.strategies.base import Hit, Retriever, book_cost
from ragbandit.strategies.failures import log_exception
from ragbandit.strategies.retrievers.corpus import model_text


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredAmounts:
    """Amounts of text that a reranker has scored; its price is computed from these amounts."""

    documents: int
    tokens: int
    searches: int = 1  #: number of searches as the server counts them; Cohere counts one for each 100 documents

    @classmethod
    def estimate(cls, query: str, texts: Sequence[str]) -> "ScoredAmounts":
        """The amounts of a search with these texts. The question counts for each text, since the model reads both."""
        tokens = len(texts) * estimated_tokens(query) + sum(map(estimated_tokens, texts))
        return cls(documents=len(texts), tokens=tokens)


#: function that returns the price of the scored amounts, dollars
Price = Callable[[ScoredAmounts], float]


def no_price(scored: ScoredAmounts) -> float:
    del scored
    return 0.0


def book_price(scored: ScoredAmounts, *, price: Price) -> None:
    if dollars := price(scored):
        book_cost(Cost(dollars=dollars), rule="rerank_dollars", value=f"{dollars:.6g}")


class Reranker(Protocol):
    """Scores texts for a question. All calls come from one event loop. A reranker may have `async def close(self)`."""

    name: str  #: identifies the reranker in every outcome

    async def scores(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """A finite number for each text; higher is better. Adds the price by `book_cost`, also after a failure.

        Raises ArmFailed. Any other error fails the search too, and is logged with its traceback.
        """


class RerankedRetriever(Retriever):
    """Asks a retriever for max(`depth`, k) hits, scores them with a reranker, and returns the k best.

    Hits with equal scores stay in the retriever's order. A larger depth costs more, and finds passages that the
    retriever ranks low. If the reranker fails, the search fails. Raises InvalidInput for a depth below 1.
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
        scores = await self._scores(query, hits)
        order = sorted(range(len(hits)), key=lambda index: -scores[index])
        return tuple(Hit(passage=hits[index].passage, score=scores[index]) for index in order[:k])

    async def close(self) -> None:
        try:
            await self._retriever.close()
        finally:
            close = getattr(self._rerank, "close", None)
            if close is not None:
                await close()

    async def _scores(self, query: str, hits: Sequence[Hit]) -> list[float]:
        texts = [model_text(hit.passage.text, title=hit.passage.title) for hit in hits]
        name, began = self._rerank.name, time.monotonic()
        try:
            scores = _checked(await self._rerank.scores(query, texts), texts=len(texts))
        except RagBanditError as error:
            raise ArmFailed(f"the reranker {name} failed: {error.message}", remedy=error.remedy) from error
        except Exception as error:  # the user's class may raise anything
            log_exception(error, code=f"the reranker {name}", action="rerank_failed", reranker=name)
            message = f"the reranker {name} failed: {type(error).__name__}: {error}"
            raise ArmFailed(message, remedy="see the traceback in the worker's log") from error
        finally:
            seconds = time.monotonic() - began
            book_cost(Cost(), rule="reranked", value=f"{name}: {len(texts)} passages in {seconds:.3f} s")
        return scores


def _checked(scores: Sequence[float], *, texts: int) -> list[float]:
    """The scores as floats, since numpy's numbers cannot be written as JSON."""
    numbers = [float(score) for score in islice(scores, texts + 1)]  # an iterator may have no end
    if len(numbers) != texts or not all(map(math.isfinite, numbers)):
        count = f"more than {texts}" if len(numbers) > texts else f"{len(numbers)}"
        message = f"it received {texts} texts and returned {count} scores: {numbers!r:.200}"
        raise ArmFailed(message, remedy="return one finite number for each text")
    return numbers
