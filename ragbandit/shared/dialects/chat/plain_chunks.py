"""Chunks of a streamed chat that bring text and nothing else, as most chunks do."""

from typing import Any, Final

PlainParts = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
#: fields of a delta that a plain chunk may have
_PLAIN: Final = ("content", "role")


def chunk_parts(value: Any) -> PlainParts | None:
    """Returns (chunk, its choice, its delta), each without the text; None unless the only content is a text."""
    try:
        (choice,) = value["choices"]
        delta = choice["delta"]
        for name, sent in delta.items():  # a comprehension would cost one more call for every chunk
            if sent is not None and name not in _PLAIN:
                return None
        is_joined = list in map(type, choice.values())  # lists of a choice are joined over all chunks
        if is_joined or not (delta["content"] and isinstance(delta["content"], str)):
            return None
        return {**value, "choices": None}, {**choice, "delta": None}, {**delta, "content": None}
    except (TypeError, KeyError, ValueError, AttributeError):
        return None
