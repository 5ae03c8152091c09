"""Reasoning effort: how long a model thinks before it answers."""

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
#: the efforts, lowest first
EFFORTS: Final[tuple[Effort, ...]] = get_args(Effort)


def sent_effort(chat: Mapping[str, Any]) -> str | None:
    """The effort that a chat asks for, as `reasoning_effort` or as `effort` of `reasoning`; None without one."""
    reasoning = chat.get("reasoning")
    sent = chat.get("reasoning_effort") or (reasoning.get("effort") if isinstance(reasoning, Mapping) else None)
    return None if sent is None else str(sent)
