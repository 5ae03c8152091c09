"""Features in memory: the same as computed, each question once, within the bound, from any thread."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ragbandit.router.encoders.feature_cache import CachingEncoder, embed_texts
from ragbandit.router.encoders.hashing import HashingEncoder
from tests.support.examples import CountingEncoder, steady
from tests.support.waiting import at_once

questions = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), max_size=12)


@steady
@given(batches=questions, entries=st.integers(1, 5))
def test_batches_get_the_features_of_their_texts(batches, entries):
    """Whatever was asked before, every row is the text's own; no text is computed twice in a batch."""
    inner, plain = CountingEncoder(), HashingEncoder(8)
    encoder = CachingEncoder(inner, entries=entries)
    for batch in batches:
        assert np.array_equal(encoder.encode(batch), plain.encode(batch))
    assert all(len(set(given)) == len(given) > 0 for given in inner.given)


def test_the_question_not_asked_for_longest_is_given_up():
    """A cache of two questions keeps the repeated one when a third arrives."""
    inner = CountingEncoder()
    encoder = CachingEncoder(inner, entries=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        encoder.encode([text])
    assert inner.given == [["a"], ["b"], ["c"], ["b"]]


def test_an_error_leaves_the_cache_as_it_was():
    """Where the encoder fails its error comes through, and the question is computed the next time."""
    inner = CountingEncoder()
    encoder = CachingEncoder(inner, entries=3)
    real, inner.encode = inner.encode, lambda _: 1 / 0
    with pytest.raises(ZeroDivisionError):
        encoder.encode(["a"])
    inner.encode = real
    assert np.array_equal(encoder.encode(["a"]), HashingEncoder(8).encode(["a"]))


def test_threads_share_it():
    """Eight threads over twenty questions and room for five: every row is right."""
    encoder, plain = CachingEncoder(HashingEncoder(8), entries=5), HashingEncoder(8)
    texts = [f"question {n}" for n in range(20)]
    wanted = dict(zip(texts, plain.encode(texts), strict=True))
    wrong = []

    def ask(seed):
        random = np.random.default_rng(seed)
        for _ in range(50):
            batch = [texts[i] for i in random.integers(0, 20, 3)]
            wrong.extend(t for t, row in zip(batch, encoder.encode(batch), strict=True) if (row != wanted[t]).any())

    at_once(*(partial(ask, seed) for seed in range(8)))
    assert wrong == []


def test_distinct_texts_are_encoded_once():
    """Each row is the encoder's, and a repeated text is encoded once; no text gives no row."""
    encoder, texts = CountingEncoder(), ["who?", "where?", "who?", "why?"]
    assert np.array_equal(embed_texts(texts, encoder=encoder), HashingEncoder(8).encode(texts))
    assert encoder.given == [["where?", "who?", "why?"]]
    assert embed_texts([], encoder=encoder).shape == (0, 8)
