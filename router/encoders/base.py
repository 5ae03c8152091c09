"""Encoder: the protocol that every encoder follows."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Encoder(Protocol):
    """Turns questions into vectors."""

    #: d
    dimension: int
    #: sha256 over weights, tokenizer, pooling and precision: two encoders with one hash give the same features
    hash: str
    #: where the weights came from, for the log
    source: str

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Shape (n, d), float32. Safe to call from several threads. Empty input gives shape (0, d)."""
        ...
