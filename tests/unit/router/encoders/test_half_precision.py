"""Features rounded to float16 when they are made."""

import numpy as np
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from ragbandit.router.encoders.half_precision import HalfPrecisionEncoder, half_precision_hash, round_features
from ragbandit.router.encoders.hashing import HashingEncoder
from tests.support.examples import steady

any_rows = arrays(
    np.float32,
    st.tuples(st.integers(0, 3), st.integers(1, 5)),
    elements=st.floats(width=32, allow_nan=False)
    | st.floats(-40, 40, width=32)
    | st.floats(-(2.0**-7), 2.0**-7, width=32),
)


@steady
@given(rows=any_rows)
def test_rounded_numbers_are_float16_and_multiples(rows):
    """Each is a float16, a multiple of 1/1024, within 32 of zero, no -0.0, near what it was, and rounds to itself."""
    found = round_features(rows)
    assert found.dtype == np.float32
    assert np.array_equal(found.astype(np.float16).astype(np.float32), found)
    assert np.array_equal(np.rint(found * 1024), found * 1024)
    assert not np.signbit(found[found == 0]).any()
    assert np.array_equal(round_features(found), found)
    near = np.clip(rows, -32, 32)
    assert (np.abs(found - near) <= np.maximum(2.0**-11, np.abs(near) * 2.0**-11) * 1.5).all()


def test_it_is_another_encoder():
    """Same size and source, features near those of the encoder, another hash that follows from the encoder's."""
    full = HashingEncoder(24)
    half = HalfPrecisionEncoder(full)
    texts = ["a red boat", "who?", ""]
    assert (half.dimension, half.source) == (24, full.source)
    assert half.hash == half_precision_hash(full.hash) not in (full.hash, half_precision_hash(HashingEncoder(25).hash))
    np.testing.assert_allclose(half.encode(texts), full.encode(texts), rtol=1e-3, atol=1e-3)
    assert half.encode([]).shape == (0, 24)


def test_a_feature_that_float16_cannot_hold_becomes_zero():
    """It is far below the smallest multiple, also where numpy raises for an underflow."""
    with np.errstate(all="raise"):
        assert round_features(np.array([[1e-30, -1e-9]], dtype=np.float32)).tolist() == [[0.0, 0.0]]
