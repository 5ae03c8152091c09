"""The retriever over LangChain's retrievers, with what their documents send; LangChain's own is in tests/clients."""

from types import SimpleNamespace

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.retrievers.langchain import LangChainRetriever
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.testing.retrievers import PASSAGES, RETRIEVER_CHECKS, search_all
from ragbandit.workers.setup.retrievers import retriever_kind
from tests.support.additions import needs


class Store:
    """Finds documents by common words, as `store.as_retriever()` does."""

    def __init__(self, passages):
        self._memory = MemoryRetriever(passages)

    def invoke(self, query, *, k):
        (hits,) = search_all(self._memory, query, k=k)
        return [
            SimpleNamespace(id=hit.passage.id, page_content=hit.passage.text, metadata={"title": hit.passage.title})
            for hit in hits
        ]


@pytest.mark.parametrize("check", RETRIEVER_CHECKS, ids=lambda check: check.__name__)
def test_contract(check):
    """It keeps the contract of retrievers."""
    check(lambda passages: LangChainRetriever(Store(passages), name=f"store:{len(passages)}"))


def documents(*rows):
    return SimpleNamespace(invoke=lambda query, *, k: [SimpleNamespace(**row) for row in rows])


def test_documents_may_lack_everything_but_their_text():
    """Null ids and metadata, blank texts, repeated ids and more than k documents are taken, in the store's order."""
    rows = [
        {"id": None, "page_content": "river", "metadata": None},
        {"id": 7, "page_content": "sea", "metadata": {"title": None, "url": "https://example.com", "page": 3}},
        {"id": "blank", "page_content": " \n", "metadata": {}},
        {"id": "7", "page_content": "again", "metadata": {}},
        {"page_content": "half \ud800"},
        {"id": "more", "page_content": "more than k", "metadata": {}},
    ]
    (hits,) = search_all(LangChainRetriever(documents(*rows), name="store"), "river", k=3)
    assert [hit.score for hit in hits] == [1.0, 0.5, pytest.approx(1 / 3)]
    first, second, third = (hit.passage for hit in hits)
    assert (len(first.id), first.title, first.text, first.url) == (16, "", "river", None)
    assert (second.id, second.title, second.text, second.url) == ("7", "", "sea", "https://example.com")
    assert third.text == "half \ud800"


def test_the_metadata_may_have_the_id():
    """With id_key the id of a passage is that of the metadata, and the store's own id without one."""
    rows = [
        {"id": "0b1c", "page_content": "river", "metadata": {"key": "guide.md#1"}},
        {"id": "0b1d", "page_content": "sea", "metadata": {"key": None}},
    ]
    (hits,) = search_all(LangChainRetriever(documents(*rows), name="store", id_key="key"), "river", k=3)
    assert [hit.passage.id for hit in hits] == ["guide.md#1", "0b1d"]


@pytest.mark.parametrize("reply", [None, [{"page_content": 7}], [{"id": "no text"}]])
def test_a_store_that_fails_fails_the_search(reply):
    """An error of the store is ArmFailed, and so is a reply without documents."""
    store = SimpleNamespace(invoke=lambda query, *, k: [SimpleNamespace(**row) for row in reply])
    with pytest.raises(ArmFailed, match="the retriever store failed"):
        search_all(LangChainRetriever(store, name="store"), "river")


def store():
    return LangChainRetriever(Store(PASSAGES), name="store")


@needs("hybrid")
def test_it_is_one_half_of_a_hybrid(tmp_path):
    """`first` or `second` may name it; only the other half is built, and hits of both are fused by id."""
    settings = Settings(data_dir=str(tmp_path), retriever={"name": "hybrid", "second": f"{__name__}:store"})
    assert list(retriever_kind(settings).build_index(lambda: PASSAGES, lambda _: None)) == ["bm25"]
    retriever = retriever_kind(settings).open()
    (hits,) = search_all(retriever, "river city")
    assert retriever.name.endswith("+store")
    assert hits[0].passage == PASSAGES[1]
    assert hits[0].score == pytest.approx(2 / 61)
