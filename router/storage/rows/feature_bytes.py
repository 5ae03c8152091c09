"""Features as bytes: float16 where every number of a row is one exactly, else float32; little endian either way.

A row says itself which of the two it is. Bytes of float32 are the numbers alone, as they have always been: a multiple
of four. Bytes of float16 begin with one byte more, so their number is odd. What is read is what was written, to the
last bit: half the bytes are an effect of features that were rounded before anything was decided with them
(router/encoders/half_precision.py), never a loss here.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.shared.types import Features

_HALF_MARK: Final = b"\x01"
_HALF: Final = np.dtype("<f2")
_FULL: Final = np.dtype("<f4")


def features_bytes(features: Features | None) -> bytes | None:
    """The bytes of a vector, shape (d,), in half the space where nothing is lost by it."""
    if features is None:
        return None
    full = np.ascontiguousarray(features, dtype=_FULL)
    with np.errstate(over="ignore"):
        half = full.astype(_HALF)
    return _HALF_MARK + half.tobytes() if (half == full).all() else full.tobytes()


def features_value(raw: bytes | None) -> Features | None:
    """The vector of shape (d,), float32, from its bytes. Raises ValueError for bytes that are neither of the two."""
    return None if raw is None else _numbers(raw).astype(np.float32)


def feature_rows(raws: Sequence[bytes | None]) -> npt.NDArray[np.float32] | None:
    """Features of n rows at once, shape (n, d); None where a row has none, or they differ in width."""
    present = [raw for raw in raws if raw]
    if len(present) != len(raws) or not present:
        return None
    if len({len(raw) for raw in present}) == 1:
        joined = b"".join(present if len(present[0]) % 2 == 0 else [_unmarked(raw) for raw in present])
        numbers = np.frombuffer(joined, dtype=_FULL if len(present[0]) % 2 == 0 else _HALF)
        return numbers.astype(np.float32, copy=False).reshape(len(raws), -1)
    rows = [_numbers(raw) for raw in present]
    return np.array(rows, dtype=np.float32) if len({row.size for row in rows}) == 1 else None


def _numbers(raw: bytes) -> npt.NDArray[np.floating]:
    if len(raw) % 2 == 0:
        return np.frombuffer(raw, dtype=_FULL)
    return np.frombuffer(_unmarked(raw), dtype=_HALF)


def _unmarked(raw: bytes) -> memoryview:
    # A database driver may give bytes, bytearray or memoryview.
    if bytes(raw[:1]) != _HALF_MARK:
        raise ValueError("these bytes are no features")
    return memoryview(raw)[1:]
