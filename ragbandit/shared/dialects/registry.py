"""The dialects by name. Who is outside the folder of a dialect asks here, and knows no word of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ragbandit.shared.dialects.messages import requests as messages
from ragbandit.shared.types import Conversation


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """How fields of this dialect become a chat completion, which is what most servers take."""

    #: fields -> (chat completion, types of what the fields have and a chat completion cannot have)
    as_chat: Callable[[Mapping[str, Any]], tuple[dict[str, Any], set[str]]]
    #: fields -> names of the parameters that a chat completion cannot have
    unread: Callable[[Mapping[str, Any]], list[str]]


DIALECTS: Final[Mapping[str, Dialect]] = {
    "chat": Dialect(as_chat=lambda fields: (dict(fields), set()), unread=lambda _: []),
    messages.DIALECT: Dialect(as_chat=messages.chat_of, unread=messages.unread),
}


def as_chat(conversation: Conversation) -> dict[str, Any]:
    """The conversation as a chat completion. What a chat completion cannot have is left out."""
    return DIALECTS[conversation.dialect].as_chat(conversation.fields)[0]


def unread_parameters(conversation: Conversation) -> list[str]:
    """The names of the parameters that `as_chat` leaves out."""
    return DIALECTS[conversation.dialect].unread(conversation.fields)
