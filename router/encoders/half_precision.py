"""Rounds features to half precision, so that sums of their products do not depend on the order."""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from ragbandit.router.encoders.base import Encoder, WrappingEncoder
from ragbandit.shared.types import FeatureRows

#: features are multiples of 1/_STEPS, so that sums of their products are exact in float64, in any order
_STEPS: Final = 1024
#: largest absolute feature: small enough for an exact sum of the squares of 2**23 rows
_MOST: Final = 32.0
#: part of the hash of `HalfPrecisionEncoder`
_RECIPE: Final = f"rounded to float16, then to multiples of 1/{_STEPS}, at most {_MOST:g} from zero"


class HalfPrecisionEncoder(WrappingEncoder):
    """Rounds the features of another encoder to float16, which halves their size and changes the hash."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.hash = half_precision_hash(encoder.hash)

    def encode(self, texts: Sequence[str]) -> FeatureRows:
        return round_features(self.encoder.encode(texts))


def half_precision_hash(encoder_hash: str) -> str:
    return hashlib.sha256(f"{encoder_hash}; {_RECIPE}".encode()).hexdigest()


def round_features(features: FeatureRows) -> FeatureRows:
    """Features rounded to float16 and to multiples of 1/1024, clipped to [-32, 32]; NaN stays NaN."""
    # For numbers below 2, multiples of 1/1024 are coarser than float16; for larger numbers float16 is coarser.
    with np.errstate(under="ignore"):  # a feature that float16 cannot hold is far below 1/1024, so it becomes 0
        half = np.minimum(np.maximum(features, -_MOST), _MOST).astype(np.float16).astype(np.float32)
    multiples: FeatureRows = np.rint(half * np.float32(_STEPS)) / np.float32(_STEPS) + np.float32(0.0)  # no -0.0
    return multiples
