"""The dialects by name. Code outside a dialect's folder calls these functions, and contains nothing of the dialect."""

from collections.abc import Collection, Mapping
from functools import reduce
from typing import Any, Final

from ragbandit.shared.additions import with_additions
from ragbandit.shared.dialects.dialect import Dialect
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.reading.fields import object_in
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.types import Conversation

_CHAT: Final = Dialect(
    as_chat=lambda fields: (dict(fields), set()),
    unread=lambda _: [],
    keys_of_caller=frozenset({"parameters", "schema", "input", "arguments", "metadata"}),
    reply_prefix="chatcmpl-",
)
DIALECTS: Final[Mapping[str, Dialect]] = with_additions({"chat": _CHAT}, hook="dialects")
#: parts of a request of any dialect whose keys the caller chooses: schemas of tools and their arguments
KEYS_OF_CALLER: Final = frozenset[str]().union(*(dialect.keys_of_caller for dialect in DIALECTS.values()))
#: need -> parameters that can cause it
NATIVE_NEEDS: Final = {
    dialect.need: dialect.need_parameters for dialect in DIALECTS.values() if dialect.need is not None
}


def as_chat(conversation: Conversation) -> dict[str, Any]:
    """The conversation as a chat completion. Fields that a chat completion cannot have are left out."""
    dialect = _dialect_of(conversation)
    return dialect.as_chat(conversation.fields, *[conversation.encoding] * dialect.takes_encoding)[0]


def unread_parameters(conversation: Conversation) -> list[str]:
    """The names of the parameters that `as_chat` leaves out."""
    return _dialect_of(conversation).unread(conversation.fields)


def conversation_parameters(conversation: Conversation) -> frozenset[str]:
    """The names of the parameters that contain the conversation itself."""
    return _dialect_of(conversation).conversation


def token_limits(conversation: Conversation) -> dict[str, int]:
    """Limits of the answer's tokens in the conversation: place (see `Dialect.token_limits`) -> limit."""
    limits: dict[str, int] = {}
    for place in DIALECTS.get(conversation.dialect, _CHAT).token_limits:
        *outer, name = place.split(".")
        value = reduce(object_in, outer, conversation.fields).get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            limits[place] = value
    return limits


def with_token_limit(conversation: Conversation, limit: int, *, at: Collection[str] = ()) -> Conversation:
    """The conversation with a limit of its answer's tokens at these places; by default at the dialect's first place."""
    fields: Mapping[str, Any] = conversation.fields
    for place in at or _dialect_of(conversation).token_limits[:1]:
        fields = _with_field(fields, place, limit)
    return conversation.having(fields)


def _with_field(fields: Mapping[str, Any], place: str, value: int) -> dict[str, Any]:
    name, _, inner = place.partition(".")
    return {**fields, name: _with_field(object_in(fields, name), inner, value) if inner else value}


def _dialect_of(conversation: Conversation) -> Dialect:
    """The dialect of a conversation. Raises ConfigError if this process lacks the addition with the dialect."""
    name = conversation.dialect
    if name not in DIALECTS:
        message = f"no dialect is called {name!r:.80} here; {known_choices(DIALECTS, given=name)}"
        raise ConfigError(message, remedy="install the same additions on routers and workers")
    return DIALECTS[name]
