"""Hashing encoder: features without a model. Style of the question, and its words."""

import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.encoders.base import HASHING
from ragbandit.router.encoders.lexical import LEXICAL_COUNTS, WORD_GROUPS, WORDS, style_counts
from ragbandit.router.encoders.projection import KINDS, RECIPE, Projection, Wide, fitted, references
from ragbandit.shared.errors import ConfigError, InvalidInput

#: fewest features: of 8 five are kinds, one is of words, two are lengths
LEAST: Final = 8
#: part of the hash: raise the version with the arithmetic
_RECIPE: Final = "hashing v2: style as states, hashed words as sketch"


class HashingEncoder:
    """The projection of router/encoders/projection.py without a model: no torch, tens of microseconds a question.

    Its states are what can be counted (router/encoders/lexical.py), from which the labels of the reference questions
    are read. In place of the states' sketch stand counts of hashed words with random signs, of one length for all
    questions: those that share words are near each other.
    """

    def __init__(self, dimension: int = 256) -> None:
        if dimension < LEAST:
            raise ConfigError(f"must be at least {LEAST}, not {dimension}", field="encoder.dimension")
        self.dimension = dimension
        self.source = "style and hashed words"
        self.origin = {"model": HASHING, "wheel": None, "sha256": None}
        self._projection, self.hash = _fitted(dimension)

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Shape (n, d). A row is the same, to the bit, whatever the other texts; mean square near 1 per entry."""
        refuse_string(texts)
        rows = np.empty((len(texts), self.dimension), dtype=np.float32)
        for row, text, style in zip(rows, texts, style_counts(texts)[:, None], strict=True):
            readings = self._projection.readings(style)
            lexical = style[:, : len(LEXICAL_COUNTS)]
            sketch = _hashed_words(text, count=self._projection.sketched(self.dimension))
            sketch *= np.sqrt((1.0 - KINDS) * self.dimension)
            row[:] = self._projection.features(readings, sketch[None], counts=lexical, dimension=self.dimension)
        return rows


@functools.lru_cache(maxsize=8)
def _fitted(dimension: int) -> tuple[Projection, str]:
    """The projection of the style of questions, and the encoder's hash."""
    known = references()
    # float64: the kernel's inverse factor magnifies what exp rounds differently from processor to processor
    projection = fitted(style_counts(known.questions), known=known, dimension=dimension, seed=0, dtype=np.float64)
    facts = {"recipe": [_RECIPE, RECIPE], "groups": WORD_GROUPS, "reference": known.text, "dimension": dimension}
    return projection, hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _hashed_words(text: str, *, count: int) -> Wide:
    """Words counted with random signs in `count` columns, of length 1; zeros for a text without a word. (count,)"""
    row = np.zeros(count)
    for word in WORDS.findall(text.casefold()):
        number = int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest())
        row[(number >> 1) % count] += 1.0 if number & 1 else -1.0
    squares = float((row * row).sum())
    return row / np.sqrt(squares) if squares else row


def refuse_string(texts: Sequence[str]) -> None:
    """Refuse one string where a list of texts is wanted.

    Raises:
        InvalidInput: `texts` is a string.
    """
    if isinstance(texts, str):
        raise InvalidInput("a list of texts is wanted, not one string", field="texts")
