"""Features to bytes and back: the very numbers, in half the bytes where float16 has them all."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from ragbandit.router.storage.rows.conversion import features_bytes, features_value
from tests.support.examples import steady

any_features = arrays(np.float32, st.integers(0, 9), elements=st.floats(width=32, allow_nan=True, allow_infinity=True))
half_features = arrays(np.float32, st.integers(0, 9), elements=st.floats(width=16, allow_nan=False))


@steady
@given(features=any_features | half_features)
def test_what_is_read_is_what_was_written(features):
    """Every vector comes back bit by bit, those with NaN, infinities, zeros of both signs and tiny numbers too."""
    found = features_value(features_bytes(features))
    assert found.dtype == np.float32
    assert found.tobytes() == features.tobytes()
    assert features_value(memoryview(features_bytes(features))).tobytes() == features.tobytes()
    assert features_value(None) is features_bytes(None) is None


@pytest.mark.parametrize("number", [0.1, 1e-9, 70_000.0, 2.0**-25, float("nan"), 1.0009765625 + 2.0**-20])
def test_one_number_that_half_precision_lacks_keeps_the_row_whole(number):
    """Such a row is stored as the float32 numbers, little endian."""
    features = np.array([1.0, number, 2.0], dtype=np.float32)
    assert features_bytes(features) == features.astype("<f4").tobytes()
