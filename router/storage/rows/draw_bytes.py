"""The draw of a decision as bytes: what every row has and is long as text, in numbers of fixed width.

One byte for the form, the sha256 of the request (32 bytes), the seed (8), the pmf and the scores (8 each, float64),
little endian. Form 1 has no scores, form 2 as many as the pmf has numbers. What is read is what was written, to the
last bit.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["DrawBytes", "draw_bytes", "draw_value", "pmf_rows"]

_PLAIN, _SCORED = 1, 2
#: bytes before the pmf
_HEAD: Final = 41


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawBytes:
    """What the bytes hold."""

    #: sha256 of the request, hex digits
    body_hash: str
    seed: int
    pmf: tuple[float, ...]
    scores: tuple[float, ...] | None


@lru_cache(maxsize=256)
def _form(numbers: int) -> struct.Struct:
    return struct.Struct(f"<B32sQ{numbers}d")


def draw_bytes(body_hash: bytes, *, seed: int, pmf: Sequence[float], scores: Sequence[float] | None) -> bytes | None:
    """The bytes; None for values that have no place in them, which stand in columns of their own then.

    body_hash: 32 bytes.
    """
    if scores is not None and len(scores) != len(pmf):
        return None
    try:
        if scores is None:
            return _form(len(pmf)).pack(_PLAIN, body_hash, seed, *pmf)
        return _form(2 * len(pmf)).pack(_SCORED, body_hash, seed, *pmf, *scores)
    except struct.error:  # a seed that is no unsigned integer of 64 bits, a pmf of something else than numbers
        return None


def draw_value(raw: bytes) -> DrawBytes:
    """The inverse of `draw_bytes`. Raises ValueError for anything else."""
    count, rest = divmod(len(raw) - _HEAD, 8)
    if count < 0 or rest or raw[0] not in (_PLAIN, _SCORED) or (raw[0] == _SCORED and count % 2):
        raise ValueError("these bytes are no draw")
    form, body_hash, seed, *numbers = _form(count).unpack(raw)
    arms = count // 2 if form == _SCORED else count
    scores = tuple(numbers[arms:]) if form == _SCORED else None
    return DrawBytes(body_hash=body_hash.hex(), seed=seed, pmf=tuple(numbers[:arms]), scores=scores)


def pmf_rows(draws: Sequence[bytes], *, arms: int) -> npt.NDArray[np.float64]:
    """The pmfs of n draws over as many arms each, shape (n, arms). Raises ValueError where one has another number."""
    end = _HEAD + 8 * arms
    if not {(raw[:1], len(raw)) for raw in draws} <= {(b"\x01", end), (b"\x02", end + 8 * arms)}:
        raise ValueError("a pmf does not fit its arms")
    joined = b"".join([raw[_HEAD:end] for raw in draws])
    return np.frombuffer(joined, dtype="<f8").astype(np.float64, copy=False).reshape(len(draws), arms)
