"""How far a policy that was learned again differs from its snapshot."""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.learning.snapshots import SnapshotFiles, snapshot_sha256
from ragbandit.router.policies.base import Policy
from ragbandit.shared.types import SnapshotInfo

#: smallest length that a row of float64 counts as. If sums of terms near 1 cancel, the rest depends on the processor:
#: zero on one, 1e-17 on another. Rows of float32, such as squares of gradients, do not cancel and may be that short
SHORTEST_ROW: Final = 1e-7


def snapshot_difference(policy: Policy, *, files: SnapshotFiles, info: SnapshotInfo) -> float | None:
    """Largest relative difference between a relearned policy and a snapshot; None if the files were deleted."""
    if snapshot_sha256(policy, info=info) == info.sha256:
        return 0.0
    if not files.exists(info.version):
        return None
    stored, _ = files.load(info)
    return largest_difference(policy.state(), stored.state())


def largest_difference(a: Any, b: Any) -> float:
    """Largest relative difference between two policy states; infinity if names, shapes, types or other values differ.

    Arrays are compared row by row, so that large rows do not hide small ones: the Euclidean length of the difference is
    divided by the length of the longer row, at least SHORTEST_ROW for float64. An array with one axis is one row. The
    difference of two floats is divided by the larger absolute value, or by 1 if both are smaller.
    """
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return _array_difference(a, b)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return math.inf
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        return max((largest_difference(a[key], b[key]) for key in a), default=0.0)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return max(map(largest_difference, a, b), default=0.0)
    if isinstance(a, float) and isinstance(b, float) and a != b:
        return abs(a - b) / max(1.0, abs(a), abs(b))
    return 0.0 if a == b else math.inf


def _array_difference(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    if a.shape != b.shape or a.dtype != b.dtype or not np.issubdtype(a.dtype, np.floating):
        return 0.0 if a.dtype == b.dtype and np.array_equal(a, b) else math.inf
    if not a.size:
        return 0.0
    rows = len(a) if a.ndim > 1 else 1
    first, second = (array.astype(np.float64).reshape(rows, -1) for array in (a, b))
    length = np.maximum(np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1))
    if a.dtype == np.float64:
        length = np.maximum(length, SHORTEST_ROW)
    worst = float((np.linalg.norm(first - second, axis=1) / np.where(length > 0.0, length, 1.0)).max(initial=0.0))
    return worst if math.isfinite(worst) else math.inf
