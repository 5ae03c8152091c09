"""Hashing encoder: features without a model, for tests and for trying things out."""

import hashlib
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ragbandit.shared.errors import ConfigError, InvalidInput


class HashingEncoder:
    """Counts of hashed words with random signs, of mean square one: no model, no torch. For tests and trials.

    Questions that share words are near each other; nothing else about meaning is in it.
    """

    def __init__(self, dimension: int = 32) -> None:
        if dimension < 1:
            raise ConfigError("must be at least 1", field="encoder.dimension", remedy="use 32 or more")
        self.dimension = dimension
        self.source = "hashed words"
        self.hash = hashlib.sha256(f"hashed words v1, {dimension}".encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Shape (n, d). A text without a word gives a row of zeros."""
        refuse_string(texts)
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in re.findall(r"\w+", text.casefold()):
                number = int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest())
                row[(number >> 1) % self.dimension] += 1.0 if number & 1 else -1.0
            length = float(np.sqrt(np.mean(row**2)))
            if length > 0:
                row /= length
        return rows


def refuse_string(texts: Sequence[str]) -> None:
    """Refuse one string where a list of texts is wanted.

    Raises:
        InvalidInput: `texts` is a string.
    """
    if isinstance(texts, str):
        raise InvalidInput("a list of texts is wanted, not one string", field="texts")
