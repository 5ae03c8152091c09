"""Thoughts that a model of Anthropic has signed: other models do not read them, and Anthropic's read no others."""

from collections.abc import Mapping
from typing import Any

from ragbandit.shared.dialects.thoughts import THINKING, is_thought


def is_signed(block: Mapping[str, Any]) -> bool:
    """Whether a block has thoughts that a model of Anthropic has signed. `chat_of` leaves it out."""
    return block.get("type") == THINKING[1] or bool(block.get("type") == THINKING[0] and block.get("signature"))


def is_foreign(block: Any) -> bool:
    """Whether a block has thoughts that no model of Anthropic has signed."""
    return is_thought(block) and not is_signed(block)
