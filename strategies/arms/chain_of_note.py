"""`chain_of_note`: search once, take notes on every passage, answer from the notes (Yu et al. 2024)."""

from ragbandit.strategies.arm_parts.two_stages import TwoStages

__all__ = ["ChainOfNote"]


class ChainOfNote(TwoStages):
    """Notes on every passage and what they are worth, then the answer from the notes."""

    _stage = "chain_of_note"
