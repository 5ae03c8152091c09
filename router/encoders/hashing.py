"""The encoder that hashes words: it needs no model."""

import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.encoders.base import HASHING, refuse_string
from ragbandit.router.encoders.features import (
    KINDS,
    LEXICAL_COUNTS,
    RECIPE,
    WORD_GROUPS,
    WORDS,
    Projection,
    Wide,
    fit_projection,
    references,
    style_features,
)
from ragbandit.shared.errors import ConfigError

#: smallest number of features: five of kinds, one of hashed words, two lengths (see `features`)
LEAST: Final = 8
#: part of the encoder's hash; raise the version if the arithmetic changes
_RECIPE: Final = "hashing v2: style as states, hashed words as sketch"


class HashingEncoder:
    """Makes features without a model, by the projection of `features`, in tens of microseconds a question.

    Features of words and characters (`style_features`) replace the model's states. Counts of hashed words with random
    signs replace the sketch of the states.
    """

    is_immediate: Final = True

    def __init__(self, dimension: int = 256) -> None:
        if dimension < LEAST:
            raise ConfigError(f"must be at least {LEAST}, not {dimension}", field="encoder.dimension")
        self.dimension = dimension
        self.source = "style and hashed words"
        self.origin = {"model": HASHING, "wheel": None, "sha256": None}
        self._projection, self.hash = _fit(dimension)

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Features of n texts: shape (n, d), of mean square near 1. A text has exactly the same row in every batch."""
        refuse_string(texts)
        rows = np.empty((len(texts), self.dimension), dtype=np.float32)
        for row, text, style in zip(rows, texts, style_features(texts)[:, None], strict=True):
            predictions = self._projection.predictions(style)
            lexical = style[:, : len(LEXICAL_COUNTS)]
            sketch = _hashed_words(text, count=self._projection.sketch_size(self.dimension))
            sketch *= np.sqrt((1.0 - KINDS) * self.dimension)
            projected = np.concatenate([predictions, sketch[None]], axis=1)
            row[:] = self._projection.features(projected, counts=lexical, dimension=self.dimension)
        return rows


@functools.lru_cache(maxsize=8)
def _fit(dimension: int) -> tuple[Projection, str]:
    reference = references()
    # float64: processors round exp differently, and the kernel's inverse factor magnifies the difference
    states = style_features(reference.questions)
    projection = fit_projection(states, reference=reference, dimension=dimension, seed=0, dtype=np.float64)
    recipe = {"recipe": [_RECIPE, RECIPE], "groups": WORD_GROUPS, "reference": reference.text, "dimension": dimension}
    return projection, hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()


def _hashed_words(text: str, *, count: int) -> Wide:
    """Counts of words with random signs, shape (count,), scaled to length 1; zeros for a text without words."""
    row = np.zeros(count)
    for token in WORDS.findall(text.casefold()):
        number = int.from_bytes(hashlib.blake2b(token.encode("utf-8", "replace"), digest_size=8).digest())
        row[(number >> 1) % count] += 1.0 if number & 1 else -1.0
    squares = float((row * row).sum())
    return row / np.sqrt(squares) if squares else row
