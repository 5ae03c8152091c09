"""Questions in batches and buckets: each once, within the caps, and padded where it pays."""

import numpy as np
from hypothesis import given, strategies as st

from ragbandit.router.encoders.forward import TokenBatch, token_batches
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
            assert batch.positions[end - length : end].tolist() == list(range(length))
    assert seen == dict(enumerate(rows))


def test_groups_are_the_questions_of_one_length():
    """Counts and lengths, the shortest first."""
    assert TokenBatch.of([[1], [2], [3, 4, 5]]).groups == [(2, 1), (1, 3)]
