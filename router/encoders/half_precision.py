"""Features in half precision: rounded when they are made, so that what decides is what is stored."""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from ragbandit.router.encoders.base import Encoder
from ragbandit.shared.types import FeatureRows

#: features are multiples of 1/_STEPS: then products and sums of features are exact in float64, whatever their order
_STEPS: Final = 1024
#: and no further from zero: 2**23 rows of squares still add up exactly
_MOST: Final = 32.0
#: part of the hash
_RECIPE: Final = f"rounded to float16, then to multiples of 1/{_STEPS}, at most {_MOST:g} from zero"


class HalfPrecisionEncoder:
    """Another encoder with its features rounded to numbers that float16 has exactly: half the bytes in the store.

    It is another recipe, so it has another hash. encode() gives float32 arrays, as every encoder does.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.dimension = encoder.dimension
        self.source = encoder.source
        self.origin = getattr(encoder, "origin", None)
        self.hash = half_hash(encoder.hash)

    def encode(self, texts: Sequence[str]) -> FeatureRows:
        """Shape (n, d)."""
        return rounded(self.encoder.encode(texts))


def half_hash(encoder_hash: str) -> str:
    """The hash of the encoder that rounds the features of the encoder with this hash."""
    return hashlib.sha256(f"{encoder_hash}; {_RECIPE}".encode()).hexdigest()


def rounded(features: FeatureRows) -> FeatureRows:
    """The nearest numbers that float16 has and that are multiples of 1/1024; beyond 32 from zero they are 32.

    Below 2 the multiples are the coarser of the two grids, from there on float16 is. NaN stays NaN.
    """
    half = np.clip(features, -_MOST, _MOST).astype(np.float16).astype(np.float32)
    multiples: FeatureRows = np.rint(half * np.float32(_STEPS)) / np.float32(_STEPS) + np.float32(0.0)  # and no -0.0
    return multiples
