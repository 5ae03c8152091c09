"""Features in memory: the same as computed, each question once, within the bound, from any thread."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbandit.router.encoders.base import CacheCounts, CachingEncoder, HashingEncoder
from ragbandit.shared.errors import InvalidInput
from tests.support.examples import steady


class Counting(HashingEncoder):
    """A hashing encoder that knows which texts it has been given."""

    def __init__(self):
        super().__init__(8)
        self.given = []

    def encode(self, texts):
        self.given.append(list(texts))
        return super().encode(texts)


questions = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), max_size=12)


@steady
@given(batches=questions, entries=st.integers(1, 5))
def test_batches_get_the_features_of_their_texts(batches, entries):
    """Whatever was asked before, every row is the text's own; no text is computed twice in a batch; counts add up."""
    inner, plain = Counting(), HashingEncoder(8)
    encoder = CachingEncoder(inner, entries=entries)
    for batch in batches:
        assert np.array_equal(encoder.encode(batch), plain.encode(batch))
        assert encoder.counts().entries <= entries
    counts = encoder.counts()
    assert counts.hits + counts.misses == sum(map(len, batches))
    assert counts.misses == sum(map(len, inner.given))
    assert all(len(set(given)) == len(given) > 0 for given in inner.given)


def test_the_question_not_asked_for_longest_is_given_up():
    """Of three questions where two fit, the one that was asked again stays."""
    inner = Counting()
    encoder = CachingEncoder(inner, entries=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        encoder.encode([text])
    assert inner.given == [["a"], ["b"], ["c"], ["b"]]
    assert encoder.counts() == CacheCounts(hits=2, misses=4, entries=2)


def test_a_batch_larger_than_the_cache_fills_it():
    """Of a hundred questions at once the last stay, and none of them keeps the batch's memory."""
    encoder = CachingEncoder(HashingEncoder(8), entries=3)
    texts = [f"question {n}" for n in range(100)]
    encoder.encode(texts)
    assert encoder.counts().entries == 3
    assert all(row.base is None for row in encoder._known.values())
    encoder.encode(texts[-3:])
    assert encoder.counts().hits == 3


def test_what_a_caller_does_with_its_rows_is_its_own_business():
    """A caller that writes into what it got changes nobody else's features."""
    encoder = CachingEncoder(HashingEncoder(8), entries=3)
    encoder.encode(["a boat"])[:] = 7.0
    encoder.encode(["a boat"])[:] = 8.0
    assert np.array_equal(encoder.encode(["a boat"]), HashingEncoder(8).encode(["a boat"]))


def test_it_is_the_encoder_that_it_remembers_for():
    """Size, hash and source are the encoder's; empty batches and broken text are served, a bare string is refused."""
    inner = HashingEncoder(8)
    encoder = CachingEncoder(inner, entries=3)
    assert (encoder.dimension, encoder.hash, encoder.source) == (8, inner.hash, inner.source)
    assert encoder.encode([]).shape == (0, 8)
    assert np.array_equal(encoder.encode(["\\ud800 x", ""]), inner.encode(["\\ud800 x", ""]))
    with pytest.raises(InvalidInput):
        encoder.encode("what?")


def test_an_error_leaves_the_cache_as_it_was():
    """Where the encoder fails its error comes through, and the question is computed the next time."""
    inner = Counting()
    encoder = CachingEncoder(inner, entries=3)
    real, inner.encode = inner.encode, lambda _: 1 / 0
    with pytest.raises(ZeroDivisionError):
        encoder.encode(["a"])
    inner.encode = real
    assert np.array_equal(encoder.encode(["a"]), HashingEncoder(8).encode(["a"]))


def test_threads_share_it():
    """Eight threads over twenty questions and room for five: every row is right, and the counts add up."""
    encoder, plain = CachingEncoder(HashingEncoder(8), entries=5), HashingEncoder(8)
    texts = [f"question {n}" for n in range(20)]
    wanted = dict(zip(texts, plain.encode(texts), strict=True))
    wrong = []

    def ask(seed):
        random = np.random.default_rng(seed)
        for _ in range(50):
            batch = [texts[i] for i in random.integers(0, 20, 3)]
            wrong.extend(t for t, row in zip(batch, encoder.encode(batch), strict=True) if (row != wanted[t]).any())

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = encoder.counts()
    assert wrong == []
    assert counts.hits + counts.misses == 8 * 50 * 3
    assert counts.entries == 5
