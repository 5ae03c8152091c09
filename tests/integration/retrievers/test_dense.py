"""The index of vectors on disk, with a tiny encoder."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers import sentences
from ragbandit.strategies.retrievers.bm25 import Bm25Retriever, build_index as build_bm25
from ragbandit.strategies.retrievers.sentences import DenseRetriever, SentenceEncoder, build_sentence_index
from ragbandit.testing.retrievers import RETRIEVER_CHECKS, search_all
from tests.support.tiny_models import WIDTH, tiny_encoder

ROWS = [
    Passage(id="film", title="", text="who is the director of the film ?"),
    Passage(id="birth", title="", text="where born"),
    Passage(id="river", title="", text="what river is in paris"),
    Passage(id="again", title="", text="where born"),
]


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder(tiny_encoder(), name="tiny")


def passage_ids(hits):
    return [hit.passage.id for hit in hits]


@pytest.mark.parametrize("check", RETRIEVER_CHECKS, ids=lambda check: check.__name__)
def test_contract(check, encoder, tmp_path_factory):
    """The index of vectors keeps the contract of retrievers."""

    def make(passages):
        folder = tmp_path_factory.mktemp("indexes") / "dense"
        build_sentence_index(passages, folder, encoder=encoder)
        return DenseRetriever(folder, encoder=encoder)

    check(make)


@pytest.mark.parametrize("block", [1, 3, 100])
def test_search_is_exact(encoder, tmp_path, monkeypatch, block):
    """Order and scores are those of all cosines, whatever the block; equal ones come in the order indexed."""
    monkeypatch.setattr(sentences, "_BLOCK", block)
    build_sentence_index(ROWS, tmp_path / "i", encoder=encoder)
    query = "where is paris"
    hits = search_all(DenseRetriever(tmp_path / "i", encoder=encoder), query, k=4)[0]
    cosines = encoder.encode([row.text for row in ROWS]) @ encoder.encode([query])[0]
    best = sorted(range(4), key=lambda place: (-round(float(cosines[place]), 3), place))
    assert passage_ids(hits) == [ROWS[place].id for place in best]
    assert [hit.score for hit in hits] == pytest.approx([float(cosines[place]) for place in best], abs=2e-3)
    assert passage_ids(hits).index("again") == passage_ids(hits).index("birth") + 1


def test_the_index_says_what_it_is(encoder, tmp_path):
    """Its sha256 is that of the same corpus under bm25; the name begins with "dense:" and holds its start."""
    done = []
    meta = build_sentence_index(ROWS, tmp_path / "i", encoder=encoder, progress=done.append)
    assert done[-1] == 4
    assert meta["sha256"] == build_bm25(ROWS, tmp_path / "words")["sha256"]
    assert (meta["format"], meta["passages"], meta["width"]) == (sentences.FORMAT, 4, WIDTH)
    retriever = DenseRetriever(tmp_path / "i", encoder=encoder)
    assert (retriever.meta, len(retriever)) == (meta, 4)
    assert retriever.name == f"dense:{str(meta['sha256'])[:12]}"


def test_another_encoder_or_another_index_is_refused(encoder, tmp_path):
    """Vectors of another model, and the folder of another retriever, are not searched."""
    build_sentence_index(ROWS, tmp_path / "i", encoder=encoder)
    build_bm25(ROWS, tmp_path / "words")
    with pytest.raises(ConfigError, match="has vectors of 'tiny:"):
        DenseRetriever(tmp_path / "i", encoder=SentenceEncoder(tiny_encoder(1), name="tiny"))
    with pytest.raises(ConfigError, match="has format 'bm25-1'"):
        DenseRetriever(tmp_path / "words", encoder=encoder)
    with pytest.raises(ConfigError, match="has format 'dense-1'"):
        Bm25Retriever(tmp_path / "i")


def test_damage_is_refused(encoder, tmp_path):
    """A file that is too short is damage, with the command that builds the index again."""
    build_sentence_index(ROWS, tmp_path / "i", encoder=encoder)
    vectors = tmp_path / "i" / "vectors.float16"
    vectors.write_bytes(vectors.read_bytes()[:-2])
    with pytest.raises(ConfigError, match=r"is damaged.*ragbandit index build --retriever dense"):
        DenseRetriever(tmp_path / "i", encoder=encoder)


def test_vectors_have_length_one_and_do_not_depend_on_the_batch(encoder):
    """Texts of unlike length, in any batch, give the vectors that they give alone."""
    texts = ["where", "who is the director of the film ?", "", "paris " * 500]
    together = encoder.encode(texts, batch=2)
    assert together.shape == (4, WIDTH)
    assert np.linalg.norm(together, axis=1) == pytest.approx(np.ones(4), abs=1e-5)
    assert together == pytest.approx(np.concatenate([encoder.encode([text]) for text in texts]), abs=1e-5)


def with_pooling(folder, settings):
    shutil.copytree(tiny_encoder(), folder)
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(
        json.dumps([{"path": "", "type": "m.Transformer"}, {"path": "1_Pooling", "type": "m.Pooling"}])
    )
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    return folder


def test_the_folder_says_how_vectors_are_pooled(encoder, tmp_path):
    """The pooling is the mean over the tokens, or the first token if the folder sets it; others are refused."""
    mean = SentenceEncoder(with_pooling(tmp_path / "mean", {"pooling_mode_mean_tokens": True}))
    first = SentenceEncoder(with_pooling(tmp_path / "first", {"pooling_mode_cls_token": True}))
    assert mean.encode(["where born"]) == pytest.approx(encoder.encode(["where born"]))
    assert first.encode(["where born"]) != pytest.approx(encoder.encode(["where born"]))
    with pytest.raises(ConfigError, match="pooling_mode_max_tokens"):
        SentenceEncoder(with_pooling(tmp_path / "max", {"pooling_mode_max_tokens": True}))
    with pytest.raises(ConfigError, match=r"retriever\.model"):
        SentenceEncoder(Path(tmp_path / "none"))
