"""Messages of a chat as our values: the role and the text of each."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Message

#: roles of OpenAI's messages -> ours; None: passed over, since no arm calls tools
_ROLES: Final[Mapping[str, Literal["system", "user", "assistant"] | None]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": None,
    "function": None,
}


#: types of parts with text, of chat completions and of responses -> where the text is
_PARTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def turns_of(messages: Sequence[Mapping[str, Any]], *, field: str = "messages") -> tuple[Message, ...]:
    """The messages that say something, in order. Raises InvalidInput naming the message.

    Of content in parts the texts are joined. What no arm can read (images, audio, files) is refused. field: the
    parameter that has the messages.
    """
    if not messages:
        raise InvalidInput(f'"{field}" is empty', field=field, remedy="send at least one message of the role user")
    turns = [_turn(message, at=f"{field}.{index}") for index, message in enumerate(messages)]
    return tuple(turn for turn in turns if turn is not None and turn.text.strip())


def _turn(message: Mapping[str, Any], *, at: str) -> Message | None:
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        named = ", ".join(_ROLES)
        raise InvalidInput(f"{role!r:.80} is no role of a message", field=f"{at}.role", remedy=f"use {named}")
    known = _ROLES[role]
    text = _text(message.get("content"), at=f"{at}.content")
    return None if known is None else Message(role=known, text=text)


def _text(content: object, *, at: str) -> str:
    if content is None:
        return ""  # an assistant that called a tool
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidInput(f'"{at}" must be text or a list of parts', field=at, remedy="send a string")
    return "\n".join(_part(part, at=f"{at}.{index}") for index, part in enumerate(content))


def _part(part: object, *, at: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        remedy = 'send {"type": "text", "text": "..."}'
        raise InvalidInput(f'"{at}" is no part of a message', field=at, remedy=remedy)
    if kind not in _PARTS:
        message = f"the arms read text alone, not {kind:.40}"
        raise Unsupported(message, field=f"{at}.type", remedy="send the text of it, as a part of the type text")
    key = _PARTS[kind]
    text = part.get(key)
    if not isinstance(text, str):
        raise InvalidInput(f'"{at}.{key}" must be text', field=f"{at}.{key}", remedy="send a string")
    return text
