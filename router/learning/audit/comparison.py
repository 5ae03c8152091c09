"""A policy that was learned again, compared with the snapshot that the learner made."""

from ragbandit.router.learning.audit.rounding import largest_difference
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.policies.base import Policy, tolerance_of
from ragbandit.shared.types import SnapshotInfo

__all__ = ["apart_from", "told"]


def apart_from(policy: Policy, *, files: SnapshotFiles, info: SnapshotInfo) -> float:
    """The largest relative difference between a replayed policy and its snapshot. Raises SnapshotError."""
    stored, _ = files.load(info)
    return largest_difference(policy.state(), stored.state())


def told(policy: Policy, *, apart: float) -> str:
    """The difference in words, beside what is allowed."""
    return f"the replay differs by {apart:.2g} of an array, {tolerance_of(policy):.2g} is allowed"
