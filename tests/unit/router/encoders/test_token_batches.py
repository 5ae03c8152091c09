"""Questions in batches and buckets: each once, within the caps, and padded where it pays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ragbandit.router.encoders.forward import TokenBatch, buckets, token_batches
from tests.support.examples import steady

questions = st.lists(st.lists(st.integers(1, 30_000), min_size=1, max_size=70), max_size=40)


@steady
@given(rows=questions, most_questions=st.integers(1, 9), most_tokens=st.integers(1, 300))
def test_every_question_is_in_one_batch(rows, most_questions, most_tokens):
    """Each question is in one batch, under its place, with its own tokens in order; no batch is above a cap."""
    seen = {}
    for places, batch in token_batches(rows, most_questions=most_questions, most_tokens=most_tokens):
        assert 1 <= len(places) == len(batch.lengths) <= most_questions
        assert len(places) == 1 or len(places) * batch.lengths.max() <= most_tokens
        assert (np.diff(batch.lengths) >= 0).all()
        ends = np.cumsum(batch.lengths)
        for place, end, length in zip(places, ends, batch.lengths, strict=True):
            assert place not in seen
            seen[place] = batch.ids[end - length : end].tolist()
            assert batch.places[end - length : end].tolist() == list(range(length))
    assert seen == dict(enumerate(rows))


@steady
@given(rows=questions.filter(bool), longest=st.integers(70, 80))
def test_buckets_hold_the_batch(rows, longest):
    """Bucket after bucket gives the questions of the batch, zeros behind them, none wider than the model reads."""
    rows = sorted(rows, key=len)
    found = []
    for bucket in buckets(TokenBatch.of(rows), longest=longest):
        assert bucket.ids.shape[1] <= longest
        assert bucket.ids.shape[1] % 8 == 0 or bucket.ids.shape[1] == longest
        for ids, length in zip(bucket.ids, bucket.lengths, strict=True):
            found.append(ids[:length].tolist())
            assert not ids[length:].any()
    assert found == rows


def test_groups_are_the_questions_of_one_length():
    """Counts and lengths, the shortest first."""
    assert TokenBatch.of([[1], [2], [3, 4, 5]]).groups == [(2, 1), (1, 3)]


def test_a_bucket_is_cut_where_padding_costs_more_than_a_pass():
    """A few short questions beside long ones are padded to them; hundreds are read apart."""
    few = TokenBatch.of([[1] * 10] * 4 + [[2] * 100] * 4)
    assert [bucket.ids.shape for bucket in buckets(few, longest=512)] == [(8, 104)]
    many = TokenBatch.of([[1] * 10] * 300 + [[2] * 100] * 4)
    assert [bucket.ids.shape for bucket in buckets(many, longest=512)] == [(300, 16), (4, 104)]
    mixed = TokenBatch.of([[1] * 10] * 300 + [[1] * 30] * 200 + [[2] * 100] * 90)
    assert [bucket.ids.shape for bucket in buckets(mixed, longest=512)] == [(300, 16), (200, 32), (90, 104)]
