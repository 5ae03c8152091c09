"""The graph of faiss beside the vectors of a dense index."""

import numpy as np
import pytest

from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.retrievers.dense import GRAPH, DenseRetriever, NearGraph, build_index, write_graph
from ragbandit.strategies.retrievers.sentences import SentenceEncoder
from tests.support.arms.retriever_checks import PASSAGES, RETRIEVER_CHECKS, found
from tests.support.tiny_models import tiny_encoder


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder(tiny_encoder(), name="tiny")


def directions(count, *, width=16, seed=3):
    """Random vectors of length 1."""
    drawn = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float16)


@pytest.mark.parametrize("check", RETRIEVER_CHECKS, ids=lambda check: check.__name__)
def test_contract(check, encoder, tmp_path_factory):
    """An index that is searched by its graph keeps the contract of retrievers."""

    def make(passages):
        folder = tmp_path_factory.mktemp("indexes") / "dense"
        build_index(passages, folder, encoder=encoder, search_by="faiss")
        return DenseRetriever(folder, encoder=encoder, search_by="faiss")

    check(make)


def test_the_graph_finds_nearly_all_of_the_nearest(tmp_path):
    """Of the ten nearest by all cosines the candidates hold at least 98 of 100, over thousands of vectors."""
    vectors, queries = directions(4_000), directions(100, seed=4).astype(np.float32)
    write_graph(vectors, tmp_path / GRAPH)
    graph = NearGraph(tmp_path / GRAPH, passages=4_000, width=16)

    shares = []
    for query in queries:
        nearest = np.argsort(-(vectors.astype(np.float32) @ query))[:10]
        places = graph.near(query, k=10)
        assert np.all(np.diff(places) > 0)
        shares.append(np.isin(nearest, places).mean())
    assert np.mean(shares) >= 0.98
    assert np.isin(np.arange(4_000), graph.near(queries[0], k=5_000)).mean() > 0.9


def test_an_index_without_a_graph_is_not_searched_by_one(encoder, tmp_path):
    """It is refused with the command that builds it anew, and a damaged or strange graph is damage."""
    build_index(PASSAGES, tmp_path / "i", encoder=encoder)
    with pytest.raises(ConfigError, match=r"has no graph of faiss.*ragbandit index build --retriever dense"):
        DenseRetriever(tmp_path / "i", encoder=encoder, search_by="faiss")

    build_index(PASSAGES, tmp_path / "j", encoder=encoder, search_by="faiss")
    write_graph(directions(3), tmp_path / "j" / GRAPH)
    with pytest.raises(ConfigError, match="do not belong together"):
        DenseRetriever(tmp_path / "j", encoder=encoder, search_by="faiss")
    (tmp_path / "j" / GRAPH).write_bytes(b"no graph")
    with pytest.raises(ConfigError, match="is damaged"):
        DenseRetriever(tmp_path / "j", encoder=encoder, search_by="faiss")
    assert found(DenseRetriever(tmp_path / "j", encoder=encoder), "river", k=1)[0]
