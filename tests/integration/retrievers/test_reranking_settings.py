"""Which reranker a setting gives."""

import re
import textwrap
from pathlib import Path

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.retrievers.bm25 import Bm25Retriever, build_index
from ragbandit.strategies.retrievers.reranking import HybridRetriever, RerankedRetriever
from ragbandit.strategies.retrievers.sentences import SentenceEncoder, build_index as build_dense
from ragbandit.workers.setup.retrievers import make_retriever
from tests.support.arms.rerankers import ROWS, Shortest, ids
from tests.support.arms.retriever_checks import RETRIEVER_CHECKS, found
from tests.support.tiny_models import tiny_encoder


@pytest.mark.parametrize("check", RETRIEVER_CHECKS, ids=lambda check: check.__name__)
def test_contract(check, tmp_path_factory):
    """An index with a reranker behind it keeps the contract of retrievers."""

    def make(passages):
        folder = tmp_path_factory.mktemp("indexes") / "words"
        build_index(passages, folder)
        return RerankedRetriever(Bm25Retriever(folder), rerank=Shortest())

    check(make)


class Sync(Shortest):
    def __call__(self, query, hits):
        return hits


class SyncClose(Shortest):
    def close(self):
        pass


class Nameless(Shortest):
    name = ""


class Needy(Shortest):
    def __init__(self, url):
        super().__init__()


def here(attribute):
    return f"{__name__}:{attribute}"


@pytest.fixture
def settings(tmp_path):
    """A function that makes settings with an index of words and one of vectors, over ROWS."""
    build_index(ROWS, tmp_path / "indexes" / "default")
    build_dense(ROWS, tmp_path / "indexes" / "default-dense", encoder=SentenceEncoder(tiny_encoder()))
    return lambda **retriever: Settings(data_dir=str(tmp_path), retriever={"model": tiny_encoder(), **retriever})


def test_a_class_of_ones_own_reranks(settings):
    """The class is made without arguments, and its order is what a search gives."""
    retriever = make_retriever(settings(rerank=here("Shortest"), rerank_depth=20))
    assert retriever.name == f"{make_retriever(settings()).name}:reranked:shortest:20"
    assert ids(found(retriever, "river sea", k=2)[0]) == ["p8", "p7"]


def test_a_hybrid_is_reranked_once_and_outside(settings, monkeypatch):
    """The joined hits are reranked, and not those of the halves."""
    asked = []

    async def rerank(self, query, hits):
        asked.append([hit.score for hit in hits])
        return hits

    monkeypatch.setattr(Shortest, "__call__", rerank)
    plain, reranked = (make_retriever(settings(name="hybrid", rerank=each)) for each in (None, here("Shortest")))
    assert isinstance(plain, HybridRetriever)
    assert reranked.name == f"{plain.name}:reranked:shortest:50"
    assert found(reranked, "river sea", k=3) == found(plain, "river sea", k=3)
    (scores,) = asked
    assert scores[0] == pytest.approx(2 / 61, abs=1e-3)


@pytest.mark.parametrize(
    ("rerank", "words"),
    [
        ("no_such_module:Judge", ["'no_such_module:Judge' cannot be imported", "PYTHONPATH"]),
        (here("Nobody"), ["cannot be imported", "Nobody"]),
        (":Judge", ["is not an import path", "package.module:Class"]),
        ("module:", ["is not an import path", "package.module:Class"]),
        (here("Needy"), ["cannot be made: TypeError", "without arguments"]),
        (here("ROWS"), ["cannot be made: TypeError", "without arguments"]),
        (here("Sync"), ["has no `async def __call__`", "reranking.Reranker"]),
        (here("SyncClose"), ["has a close that is not async"]),
        (here("Nameless"), ["has no name"]),
        ("cross-encoder/ms-marco-MiniLM-L-6-v2", ["is not an import path", "package.module:Class"]),
    ],
)
def test_a_wrong_reranker_names_the_setting(settings, rerank, words):
    """Whatever is wrong with it is a ConfigError of retriever.rerank, with a remedy."""
    with pytest.raises(ConfigError) as caught:
        make_retriever(settings(rerank=rerank))
    assert caught.value.field == "retriever.rerank"
    assert caught.value.remedy
    assert [word for word in words if word not in str(caught.value)] == []


def test_the_reranker_on_the_page_reranks(settings, tmp_path, monkeypatch):
    """The class in docs/generators.md, in a module of one's own, puts short texts first."""
    page = (Path(__file__).parents[3] / "docs" / "generators.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"\n(    from ragbandit.strategies import Hit\n.*?)\n\n\S", page, flags=re.DOTALL)
    (tmp_path / "rerankers_of_the_page.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(tmp_path)
    retriever = make_retriever(settings(rerank="rerankers_of_the_page:Shortest"))
    assert retriever.name.endswith(":reranked:shortest:50")
    assert ids(found(retriever, "river sea", k=3)[0]) == ["p8", "p7", "p6"]
