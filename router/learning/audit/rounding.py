"""A policy that was learned again, compared with its snapshot: by sha256, or by its numbers where processors round.

Policies on BLAS or torch add up in the order that the processor likes; they say a `tolerance`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ragbandit.router.learning.snapshots import SnapshotFiles, policy_sha256
from ragbandit.router.policies.base import Arrays, Policy, tolerance_of
from ragbandit.shared.errors import SnapshotError
from ragbandit.shared.types import Json, SnapshotInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What a policy that was learned again has to do with its snapshot."""

    #: "pruned": the sha256 differs, and the arrays that could tell rounding from change are not kept any more
    result: Literal["same", "rounding", "different", "unreadable", "pruned"]
    #: largest relative difference of the arrays, where they were compared
    apart: float = 0.0
    #: the difference in words, or why the arrays cannot be read; "" where there is nothing to say
    text: str = ""


def sha256_after(policy: Policy, *, info: SnapshotInfo) -> str:
    """The sha256 that this policy has as the version that `info` describes."""
    return policy_sha256(policy, label=info.policy, last_seq=info.last_seq, encoder_hash=info.encoder_hash)


def compared(policy: Policy, *, files: SnapshotFiles, info: SnapshotInfo) -> Comparison:
    """The policy and the snapshot that the learner made when it had learned as much."""
    if sha256_after(policy, info=info) == info.sha256:
        return Comparison(result="same")
    allowed = tolerance_of(policy)
    if allowed == 0.0:
        return Comparison(result="different")
    if not files.exists(info.version):
        return Comparison(result="pruned")
    try:
        stored, _ = files.load(info)
    except SnapshotError as error:
        return Comparison(result="unreadable", text=str(error))
    apart = largest_difference(policy.state(), stored.state())
    text = f"the replay differs by {apart:.2g} of an array, {allowed:.2g} is allowed"
    return Comparison(result="rounding" if apart <= allowed else "different", apart=apart, text=text)


def largest_difference(one: tuple[Arrays, Mapping[str, Json]], other: tuple[Arrays, Mapping[str, Json]]) -> float:
    """The largest relative difference of two states, as `Policy.state` gives them; infinity if rounding cannot be why.

    For every entry of an array's first axis (the whole array where it has one axis): the Euclidean length of the
    difference over that of the longer one, so that a small part is not hidden by a large one. Floats among the facts
    count as arrays of one number, in units of 1 where they are below it. Names, shapes, types, and what is no float
    must be equal.
    """
    (arrays, facts), (others, other_facts) = one, other
    if set(arrays) != set(others):
        return math.inf
    apart = max((_difference(arrays[name], others[name]) for name in arrays), default=0.0)
    return max(apart, _facts_apart(dict(facts), dict(other_facts)))


def _facts_apart(one: Any, other: Any) -> float:
    """The largest difference of two JSON values' floats, relative where they are above 1; infinity for other ones."""
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        return max((_facts_apart(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        return max((_facts_apart(first, second) for first, second in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, float) and isinstance(other, float) and one != other:
        return abs(one - other) / max(1.0, abs(one), abs(other))
    return 0.0 if one == other else math.inf


def _difference(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    if not np.issubdtype(one.dtype, np.floating):
        return 0.0 if np.array_equal(one, other) else math.inf
    parts = zip(one, other, strict=True) if one.ndim > 1 else [(one, other)]
    return max((_relative(first.ravel(), second.ravel()) for first, second in parts), default=0.0)


def _relative(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Of two vectors: 0 where both are zero."""
    first, second = one.astype(np.float64), other.astype(np.float64)
    apart = np.linalg.norm(first - second)
    relative = 0.0 if apart == 0.0 else float(apart / max(np.linalg.norm(first), np.linalg.norm(second)))
    return relative if math.isfinite(relative) else math.inf
