"""Any retriever with a reranker behind it."""

import asyncio
import itertools
import re

import numpy as np
import pytest

from ragbandit.shared.errors import ArmFailed, InvalidInput
from ragbandit.shared.types import Branch, Budget, CallFailed, Cost, Query
from ragbandit.strategies.base import Passage, book_cost
from ragbandit.strategies.failures import OutOfBudget
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.retrievers.rerankers.reranked import RerankedRetriever, ScoredAmounts, book_price
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.strategies.run import Run
from ragbandit.testing.retrievers import RETRIEVER_CHECKS, passage_ids, search_all
from tests.support.arms.rerankers import ROWS, Shortest


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


class Returning(Shortest):
    """Returns what it is given."""

    name = "odd"

    def __init__(self, scores):
        super().__init__()
        self._given = scores

    async def scores(self, query, texts):
        return self._given


@pytest.mark.parametrize("check", RETRIEVER_CHECKS, ids=lambda check: check.__name__)
def test_contract(check):
    """A retriever with a reranker behind it keeps the contract of retrievers."""
    check(lambda passages: RerankedRetriever(MemoryRetriever(passages, name=f"m:{len(passages)}"), rerank=Shortest()))


@pytest.mark.parametrize(("k", "depth", "asked"), [(2, 5, 5), (5, 2, 5), (3, 3, 3), (1, 50, 50)])
def test_the_retriever_is_asked_for_depth_hits_or_for_k(k, depth, asked):
    """The reranker sees the greater number of hits, and the k best by it come back with its scores."""
    retriever, rerank = Recording(ROWS), Shortest()
    hits = search_all(RerankedRetriever(retriever, rerank=rerank, depth=depth), "river", k=k)[0]
    assert retriever.asked == [asked]
    assert rerank.asked == [("river", min(asked, 9))]
    assert passage_ids(hits) == [f"p{n}" for n in reversed(range(min(asked, 9)))][:k]
    assert [hit.score for hit in hits] == [-len(hit.passage.text) for hit in hits]


def test_equal_scores_keep_the_order_of_the_retriever():
    """Hits with equal scores stay as the retriever ordered them, and numpy's numbers become floats."""
    hits = search_all(
        RerankedRetriever(MemoryRetriever(ROWS[:4]), rerank=Returning(np.array([0.5, 0.9, 0.5, 0.9]))), "river", k=4
    )
    assert passage_ids(hits[0]) == ["p1", "p3", "p0", "p2"]
    assert all(type(hit.score) is float for hit in hits[0])


def test_titles_are_read_with_texts():
    """The reranker reads a title on a line before the text."""
    read = []

    class Reading(Shortest):
        async def scores(self, query, texts):
            read.extend(texts)
            return [0.0] * len(texts)

    search_all(
        RerankedRetriever(MemoryRetriever([Passage(id="a", title="Sea", text="river")]), rerank=Reading()), "river"
    )
    assert read == ["Sea\nriver"]


def test_the_name_tells_retriever_reranker_and_depth():
    """A reranked retriever is named by its retriever, its model and its depth; a depth below 1 is refused."""
    retriever = MemoryRetriever([], name="one")
    assert RerankedRetriever(retriever, rerank=Shortest()).name == "one:reranked:shortest:50"
    assert RerankedRetriever(retriever, rerank=Shortest(), depth=7).name == "one:reranked:shortest:7"
    with pytest.raises(InvalidInput, match="depth"):
        RerankedRetriever(retriever, rerank=Shortest(), depth=0)


@pytest.mark.parametrize(
    "scores",
    [
        *([], [1.0] * 8, [1.0] * 10, None, [None] * 9, ["high"] * 9, [10**400] * 9, [float("nan")] * 9),
        *([float("inf")] * 9, 0.5, [[0.5] * 9], [[0.5]] * 9, [{"score": 0.5}] * 9, {"a": 0.5}, "123456789x"),
    ],
    ids=repr,
)
def test_scores_that_cannot_be_used_fail_the_search(scores):
    """Too few or too many scores, and scores that are not finite numbers, are a failure with the reranker's name."""
    with pytest.raises(ArmFailed, match="the reranker odd failed: "):
        search_all(RerankedRetriever(MemoryRetriever(ROWS), rerank=Returning(scores)), "river", k=1)


def test_scores_without_end_fail_the_search():
    """A search reads one score more than there are texts, and fails if there is one."""
    read = itertools.count()
    endless = itertools.islice(map(float, read), 100_000)
    with pytest.raises(ArmFailed, match="9 texts and returned more than 9 scores"):
        search_all(RerankedRetriever(MemoryRetriever(ROWS), rerank=Returning(endless)), "river", k=1)
    assert next(read) == 10


def test_failures_are_told(caplog):
    """A failure of the retriever is raised unchanged; an error of the reranker is a failure with its name."""

    class Broken(Shortest):
        async def scores(self, query, texts):
            raise KeyError("no key")

    with pytest.raises(ArmFailed, match="the retriever fails at search 1"):
        search_all(RerankedRetriever(MemoryRetriever(ROWS, fail_at=[1]), rerank=Shortest()), "river")
    for _ in range(3):
        with pytest.raises(ArmFailed, match="the reranker shortest failed: KeyError: 'no key'"):
            search_all(RerankedRetriever(MemoryRetriever(ROWS), rerank=Broken()), "river")
    assert caplog.text.count("Traceback") == 1
    assert "the reranker shortest raised the same KeyError 2 times" in caplog.text


def test_closing_closes_both():
    """The reranker is closed with the retriever, also where that fails."""
    retriever, rerank = MemoryRetriever(ROWS), Shortest()
    asyncio.run(RerankedRetriever(retriever, rerank=rerank).close())
    assert (retriever.closed, rerank.closed) == (True, 1)
    with pytest.raises(OSError, match="the connection is gone"):
        asyncio.run(RerankedRetriever(Breaking([]), rerank=rerank).close())
    assert rerank.closed == 2


class Priced(Shortest):
    """Costs 2 cents, however it ends."""

    def __init__(self, *, ends=lambda: None):
        super().__init__()
        self._ends = ends

    async def scores(self, query, texts):
        try:
            await asyncio.sleep(0 if self._ends() is None else 9)
            return await super().scores(query, texts)
        finally:
            book_price(ScoredAmounts.estimate(query, texts), price=lambda scored: 0.02)


def searched(rerank, *, searches=1, **budget):
    """A run after these searches, and what the last of them raised."""
    retriever = RerankedRetriever(MemoryRetriever(ROWS), rerank=rerank)
    run = Run(query=Query(text="river"), retriever=retriever, generator=ScriptedGenerator(""), budget=Budget(**budget))

    async def search():
        run.begin_round(cap=1)
        for _ in range(searches):
            await run.search("river", k=2)

    try:
        asyncio.run(search())
    except (ArmFailed, OutOfBudget, RuntimeError) as error:
        return run, error
    return run, None


def failing():
    raise RuntimeError("the GPU is gone")


@pytest.mark.parametrize(
    ("ends", "budget", "error"),
    [
        (lambda: None, {}, None),
        (failing, {}, "the reranker shortest failed: RuntimeError: the GPU is gone"),
        (lambda: "late", {"seconds": 1.0}, "the budget of seconds ran out"),
    ],
    ids=["answered", "failed", "late"],
)
def test_dollars_and_seconds_are_in_the_outcome(ends, budget, error):
    """The run has the reranker's dollars, and its name and seconds in the trace, however the search ends."""
    run, raised = searched(Priced(ends=ends), **budget)
    assert (None if raised is None else str(raised.message if isinstance(raised, ArmFailed) else raised)) == error
    assert (run.cost.dollars, run.cost.retriever_calls) == (0.02, 1)
    notes = {event.rule: event.value for event in run.trace if isinstance(event, Branch)}
    assert notes["rerank_dollars"] == "0.02"
    assert re.fullmatch(r"shortest: 9 passages in \d+\.\d{3} s", notes["reranked"])
    assert isinstance(run.trace[-1], CallFailed) == (error is not None)


def test_a_search_begins_within_the_budget_of_dollars_only():
    """When reranking has spent the budget's dollars, no further search begins."""
    rerank = Priced()
    run, raised = searched(rerank, searches=3, dollars=0.03)
    assert str(raised) == "the budget of dollars ran out"
    assert (len(rerank.asked), run.cost.dollars) == (2, 0.04)


def test_costs_outside_of_a_run_are_nobodys():
    """`book_cost` does nothing where no run searches."""
    book_cost(Cost(dollars=1.0), rule="rerank_dollars", value="1")
    assert searched(Shortest())[0].cost.dollars == 0.0
