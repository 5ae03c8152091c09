"""Any retriever with a reranker behind it."""

import asyncio
from dataclasses import replace

import pytest

from ragbandit.shared.errors import ArmFailed, InvalidInput
from ragbandit.strategies.base import Hit, Passage
from ragbandit.strategies.retrievers.reranking import MemoryRetriever, RerankedRetriever
from tests.support.arms.rerankers import ROWS, Shortest, ids
from tests.support.arms.retriever_checks import found


class Recording(MemoryRetriever):
    """Writes down how many hits it is asked for."""

    def __init__(self, passages, **options):
        super().__init__(passages, **options)
        self.asked = []

    async def search(self, query, *, k):
        self.asked.append(k)
        return await super().search(query, k=k)


class Breaking(MemoryRetriever):
    """Cannot be closed."""

    async def close(self):
        raise OSError("the connection is gone")


@pytest.mark.parametrize(("k", "depth", "asked"), [(2, 5, 5), (5, 2, 5), (3, 3, 3), (1, 50, 50)])
def test_the_retriever_is_asked_for_depth_hits_or_for_k(k, depth, asked):
    """The reranker sees the greater number of hits, and the k best by it come back."""
    retriever, rerank = Recording(ROWS), Shortest()
    hits = found(RerankedRetriever(retriever, rerank=rerank, depth=depth), "river", k=k)[0]
    assert retriever.asked == [asked]
    assert rerank.asked == [("river", min(asked, 9))]
    assert ids(hits) == [f"p{n}" for n in reversed(range(min(asked, 9)))][:k]
    assert [hit.score for hit in hits] == [-len(hit.passage.text) for hit in hits]


def test_the_name_tells_retriever_reranker_and_depth():
    """A reranked retriever is named by its retriever, its model and its depth; a depth below 1 is refused."""
    retriever = MemoryRetriever([], name="one")
    assert RerankedRetriever(retriever, rerank=Shortest()).name == "one:reranked:shortest:50"
    assert RerankedRetriever(retriever, rerank=Shortest(), depth=7).name == "one:reranked:shortest:7"
    with pytest.raises(InvalidInput, match="depth"):
        RerankedRetriever(retriever, rerank=Shortest(), depth=0)


STRANGER = Hit(passage=Passage(id="stranger", title="", text="t"), score=0.0)


@pytest.mark.parametrize(
    ("returned", "fault"),
    [
        (lambda hits: hits[:-1], "received 9 hits and left out 'p8'"),
        (lambda hits: (), "left out 'p0', 'p1', 'p2'"),
        (lambda hits: (*hits, hits[-1]), "added 'p8'"),
        (lambda hits: (*hits[:-1], hits[0]), "left out 'p8'"),
        (lambda hits: (*hits, STRANGER), "added 'stranger'"),
        (lambda hits: (*hits[:-1], STRANGER), "left out 'p8'"),
        (lambda hits: [replace(hit, passage=replace(hit.passage, text="other")) for hit in hits], "left out 'p0'"),
        (lambda hits: None, "returned no hits but None"),
        (lambda hits: [hit.passage for hit in hits], "returned no hits but"),
        (lambda hits: [replace(hit, score=None) for hit in hits], "returned no hits but"),
        (lambda hits: [replace(hit, score="high") for hit in hits], "returned no hits but"),
        (lambda hits: [replace(hit, score=10**400) for hit in hits], "returned no hits but"),
        (lambda hits: [replace(hit, passage=[hit.passage.id]) for hit in hits], "returned no hits but"),
        (lambda hits: [replace(hit, score=float("nan")) for hit in hits], "scores that rise, or are not numbers"),
        (lambda hits: [replace(hit, score=float("inf")) for hit in hits], "scores that rise, or are not numbers"),
        (lambda hits: [replace(hit, score=float(n)) for n, hit in enumerate(hits)], "scores that rise"),
    ],
)
def test_a_reranker_that_returns_something_else_is_a_failed_arm(returned, fault):
    """Hits left out, added, doubled or changed, and scores in no order, are said with the reranker's name."""

    class Odd(Shortest):
        name = "odd"

        async def __call__(self, query, hits):
            return returned(hits)

    with pytest.raises(ArmFailed, match="the reranker odd ") as caught:
        found(RerankedRetriever(MemoryRetriever(ROWS), rerank=Odd()), "river", k=1)
    assert fault in str(caught.value)
    assert "return every received hit" in str(caught.value)


def test_failures_are_told(caplog):
    """A failure of the retriever is raised unchanged; an error of the reranker is a failure with its name."""

    class Broken(Shortest):
        async def __call__(self, query, hits):
            raise KeyError("no key")

    with pytest.raises(ArmFailed, match="the retriever fails at search 1"):
        found(RerankedRetriever(MemoryRetriever(ROWS, fail_at=[1]), rerank=Shortest()), "river")
    for _ in range(3):
        with pytest.raises(ArmFailed, match="the reranker shortest failed: KeyError: 'no key'"):
            found(RerankedRetriever(MemoryRetriever(ROWS), rerank=Broken()), "river")
    assert caplog.text.count("Traceback") == 1
    assert "the reranker shortest raised an exception" in caplog.text
    assert "the reranker shortest raised the same KeyError 2 times" in caplog.text


def test_closing_closes_both():
    """The reranker is closed with the retriever, also where that fails; one without `close` need not be."""
    retriever, rerank = MemoryRetriever(ROWS), Shortest()
    asyncio.run(RerankedRetriever(retriever, rerank=rerank).close())
    assert (retriever.closed, rerank.closed) == (True, 1)
    with pytest.raises(OSError, match="the connection is gone"):
        asyncio.run(RerankedRetriever(Breaking([]), rerank=rerank).close())
    assert rerank.closed == 2
