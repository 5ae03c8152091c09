"""Rounding: how far two states of one policy are apart, where processors may add up in different orders."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ragbandit.router.policies.base import Arrays
from ragbandit.shared.types import Json

__all__ = ["largest_difference"]

#: numbers of an array that are turned into float64 at once: a state may have hundreds of millions
_CHUNK = 1 << 20


def largest_difference(one: tuple[Arrays, Mapping[str, Json]], other: tuple[Arrays, Mapping[str, Json]]) -> float:
    """The largest relative difference of two states, as `Policy.state` gives them; infinity if rounding cannot be why.

    For every entry of an array's first axis (the whole array where it has one axis): the Euclidean length of the
    difference over that of the longer one, so that a small part is not hidden by a large one. Facts, names, shapes,
    types and numbers that are no floats must be equal.
    """
    (arrays, facts), (others, other_facts) = one, other
    if dict(facts) != dict(other_facts) or set(arrays) != set(others):
        return math.inf
    return max((_difference(arrays[name], others[name]) for name in arrays), default=0.0)


def _difference(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    if not np.issubdtype(one.dtype, np.floating):
        return 0.0 if np.array_equal(one, other) else math.inf
    parts = zip(one, other, strict=True) if one.ndim > 1 else [(one, other)]
    return max((_relative(first.ravel(), second.ravel()) for first, second in parts), default=0.0)


def _relative(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Of two vectors: 0 where both are zero."""
    apart = first = second = 0.0
    for a, b in _chunks(one, other):
        apart += float(((a - b) ** 2).sum())
        first += float((a * a).sum())
        second += float((b * b).sum())
    found = 0.0 if apart == 0.0 else math.sqrt(apart / max(first, second))
    return found if math.isfinite(found) else math.inf


def _chunks(*vectors: npt.NDArray[Any]) -> Iterator[tuple[npt.NDArray[np.float64], ...]]:
    for start in range(0, len(vectors[0]), _CHUNK):
        yield tuple(vector[start : start + _CHUNK].astype(np.float64) for vector in vectors)
