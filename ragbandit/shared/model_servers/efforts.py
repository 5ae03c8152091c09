"""Reasoning effort: how long a model thinks before it answers."""

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
#: the efforts, lowest first
EFFORTS: Final[tuple[Effort, ...]] = get_args(Effort)
#: fields of a chat that ask for an effort
_FIELDS: Final = frozenset({"reasoning_effort", "reasoning", "output_config"})


def sent_effort(chat: Mapping[str, Any]) -> str | None:
    """The effort that a chat asks for: `reasoning_effort`, or `effort` of `reasoning` or `output_config` (Anthropic);
    None if there is none.
    """
    if _FIELDS.isdisjoint(chat):
        return None
    objects = [part for part in map(chat.get, ("reasoning", "output_config")) if isinstance(part, Mapping)]
    sent = chat.get("reasoning_effort") or next(filter(None, (part.get("effort") for part in objects)), None)
    return None if sent is None else str(sent)
