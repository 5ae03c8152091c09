"""`self_refine`: search once, summarise what is useful, answer from the summary (Adaptive-Note's baseline)."""

from ragbandit.strategies.arm_parts.two_stages import TwoStages

__all__ = ["SelfRefine"]


class SelfRefine(TwoStages):
    """A summary and analysis of what is useful in the passages, then the answer from it."""

    _stage = "self_refine"
