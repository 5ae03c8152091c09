"""The contract that every retriever must pass, ours or yours.

A check takes `make_retriever`, a function from passages to a fresh retriever that has indexed them, and raises
AssertionError if the retriever breaks the contract. Run all of `RETRIEVER_CHECKS`.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ragbandit.strategies.base import Hit, Passage, Retriever

MakeRetriever = Callable[[Sequence[Passage]], Retriever]

PASSAGES = (
    Passage(id="vistula", title="Vistula", text="The longest river in Poland."),
    Passage(id="warsaw", title="Warsaw", text="A city that stands on a river."),
    Passage(id="paris", title="Paris", text="The capital of France."),
    Passage(id="signs", title="", text="Joan's running shoes 😀 北京 \x00 \t end"),
)


def search_all(retriever: Retriever, *queries: str, k: int = 3) -> list[tuple[Hit, ...]]:
    """The hits of each query. Queries run at once; then the retriever is closed twice."""

    async def ask() -> list[tuple[Hit, ...]]:
        try:
            return list(await asyncio.gather(*(retriever.search(query, k=k) for query in queries)))
        finally:
            await retriever.close()
            await retriever.close()

    return asyncio.run(ask())


def check_protocol(make: MakeRetriever) -> None:
    """The retriever follows the protocol and has a name. A retriever of another corpus has another name."""
    one, other = make(PASSAGES), make(PASSAGES[:2])
    assert isinstance(one, Retriever)
    assert one.name != other.name
    search_all(one)
    search_all(other)


def check_order_and_size(make: MakeRetriever) -> None:
    """At most k distinct hits come, scores never rise, and fewer hits are the first of more."""
    few = search_all(make(PASSAGES), "river city Poland", k=2)[0]
    many = search_all(make(PASSAGES), "river city Poland", k=100)[0]
    assert len(few) == 2
    assert few == many[:2]
    assert len({hit.passage.id for hit in many}) == len(many) <= len(PASSAGES)
    assert all(one.score >= two.score for one, two in itertools.pairwise(many))
    assert search_all(make(PASSAGES), "river", k=0) == [()]


def check_whole_passages(make: MakeRetriever) -> None:
    """Passages come back as they went in, with emoji, foreign letters and control characters."""
    hits = search_all(make(PASSAGES), "Joan's running shoes", k=len(PASSAGES))[0]
    assert {hit.passage for hit in hits} <= set(PASSAGES)
    assert PASSAGES[3] in {hit.passage for hit in hits}


def check_nothing_to_search_for(make: MakeRetriever) -> None:
    """Empty queries, and queries without a letter or digit, find nothing."""
    queries = ["", "   ", "?!", "👍👍", "\x00"]
    assert search_all(make(PASSAGES), *queries) == [()] * len(queries)


def check_strange_queries(make: MakeRetriever) -> None:
    """Chinese, half a surrogate pair, query syntax and ten thousand words are queries like any other."""
    queries = ["北", "river \ud800", 'title:"river" AND (-city) {"match"} \\', "Vistula river " * 5000]
    queries.append(" ".join(f"word{number}" for number in range(10_000)) + " river")
    queries.append("Vistula " + "北京上海" * 3000)
    answers = search_all(make(PASSAGES), *queries, k=len(PASSAGES))
    assert all(answers[place] for place in (0, 1, 2, 3, 5))


def check_very_long_passage(make: MakeRetriever) -> None:
    """A passage of 100,000 words is indexed and comes back whole."""
    long = Passage(id="long", title="Endless", text="zebra " + " ".join(f"w{n % 977}" for n in range(100_000)))
    hits = search_all(make([*PASSAGES, long]), "zebra endless", k=len(PASSAGES) + 1)[0]
    assert long in {hit.passage for hit in hits}


def check_same_again(make: MakeRetriever) -> None:
    """Simultaneous searches have the hits of single searches."""
    queries = ["vistula", "warsaw city", "joan runs", "river"]
    together = search_all(make(PASSAGES), *queries * 5)
    assert together == [search_all(make(PASSAGES), query)[0] for query in queries] * 5


RETRIEVER_CHECKS: tuple[Callable[[MakeRetriever], Any], ...] = (
    *(check_protocol, check_order_and_size, check_whole_passages, check_nothing_to_search_for),
    *(check_strange_queries, check_very_long_passage, check_same_again),
)


def passage_ids(hits: Iterable[Hit]) -> list[str]:
    """The ids of the passages of these hits."""
    return [hit.passage.id for hit in hits]
