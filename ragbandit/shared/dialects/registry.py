"""The dialects by name. Who is outside the folder of a dialect asks here, and knows no word of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ragbandit.shared.dialects.messages import requests as messages
from ragbandit.shared.dialects.messages.in_chats import in_chat_form
from ragbandit.shared.types import Conversation


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """How fields of this dialect become a chat completion, which is what most servers take, and what is lost then."""

    #: fields -> (chat completion, types of what the fields have and a chat completion cannot have)
    as_chat: Callable[[Mapping[str, Any]], tuple[dict[str, Any], set[str]]]
    #: fields -> names of the parameters that a chat completion cannot have
    unread: Callable[[Mapping[str, Any]], list[str]]
    #: chat completion with parts of this dialect -> (its changed fields, names of what a chat completion lacks)
    in_chat_form: Callable[[Mapping[str, Any]], tuple[dict[str, Any], list[str]]] = lambda _: ({}, [])
    #: name of the generators that send this dialect, and of what a request needs if no other server can read it; None
    #: if every server can
    need: str | None = None
    #: parameters that can cause this need; messages can cause it, too
    need_parameters: tuple[str, ...] = ()


DIALECTS: Final[Mapping[str, Dialect]] = {
    "chat": Dialect(as_chat=lambda fields: (dict(fields), set()), unread=lambda _: []),
    messages.DIALECT: Dialect(
        as_chat=messages.chat_of,
        unread=messages.unread,
        in_chat_form=in_chat_form,
        need=messages.NEED,
        need_parameters=("mcp_servers", "tools"),
    ),
}
#: parts of a request, of any dialect, in which the caller names the keys: schemas of tools and their arguments
KEYS_OF_CALLER: Final = frozenset({"parameters", "input_schema", "schema", "input", "arguments", "metadata"})
#: need -> parameters that can cause it
NATIVE_NEEDS: Final = {
    dialect.need: dialect.need_parameters for dialect in DIALECTS.values() if dialect.need is not None
}


def as_chat(conversation: Conversation) -> dict[str, Any]:
    """The conversation as a chat completion. What a chat completion cannot have is left out."""
    return DIALECTS[conversation.dialect].as_chat(conversation.fields)[0]


def unread_parameters(conversation: Conversation) -> list[str]:
    """The names of the parameters that `as_chat` leaves out."""
    return DIALECTS[conversation.dialect].unread(conversation.fields)
