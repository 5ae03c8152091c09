"""Token-level details of a completion, for the arms that ask for them (`Request.want`, `Completion.details`).

    want             details[want]
    logprobs         tuple of Token, one per token written
    entropy          tuple of float, one per token written: of the whole next-token distribution, in nats (>= 0)
    attention        Attention
    hidden_states    float32 array, shape (layers + 1, d): of the last token written, embedding first
    trained_tokens   tuple of mappings, one per token written: added special token -> its log-probability there

The tokens are those of the model: joined they give the completion's text, and what a stop string cut off may follow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

#: shape (layers + 1, d), float32
HiddenStates = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """A token written, as text, and how sure the model was of it."""

    text: str
    #: natural logarithm of its probability (<= 0)
    logprob: float
    #: other tokens that might have stood there -> their log-probability; as many as the generator tells
    others: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Attention of the last layer while it wrote."""

    #: shape (heads, written, read + written), float32; every row of the last axis sums to 1
    weights: npt.NDArray[np.float32]
    #: text of every token of the last axis: the prompt's, then those written
    keys: tuple[str, ...]
