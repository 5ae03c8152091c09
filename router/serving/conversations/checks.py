"""Checks of what a query has of a conversation: bounded, and text that can be stored."""

from typing import Final

from ragbandit.router.serving.field_checks import checked_text, checked_type
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import MAX_TEXT, Message, Query

__all__ = [
    "MAX_MESSAGES",
    "MAX_SESSION",
    "MAX_STICKY_TURNS",
    "check_conversation",
    "check_sticky_turns",
    "checked_session",
]

#: longest id of a conversation, characters
MAX_SESSION: Final = 128
#: most messages before a question that are kept with it
MAX_MESSAGES: Final = 64
#: most turns that a session may stay on an arm, whatever the settings
MAX_STICKY_TURNS: Final = 1000
_ROLES: Final = ("system", "user", "assistant")


def check_conversation(query: Query) -> None:
    """Raises InvalidInput, naming the field and the remedy, for a conversation that cannot be kept."""
    if query.forced and (query.arms is None or len(query.arms) != 1):
        raise InvalidInput("an arm is forced, and not one is allowed", field="arms", remedy="name the one arm")
    if query.session is not None:
        checked_session(query.session)
    check_sticky_turns(query, most=MAX_STICKY_TURNS)
    if query.asked is not None:
        checked_text(query.asked, field="question")
    checked_type(query.messages, list | tuple, field="messages", wanted="a list of messages")
    if len(query.messages) > MAX_MESSAGES:
        message = f'"messages" has {len(query.messages)} entries'
        raise InvalidInput(message, field="messages", remedy=f"send at most {MAX_MESSAGES}")
    for each in query.messages:
        check_message(each)
    if sum(len(each.text) for each in query.messages) > MAX_TEXT:
        remedy = f"send at most {MAX_TEXT} characters of history: the last turns"
        raise InvalidInput('"messages" is too long', field="messages", remedy=remedy)


def check_message(message: object) -> None:
    """Raises InvalidInput for what is no Message that can be stored; it may be blank: an assistant may say nothing."""
    checked_type(message, Message, field="messages", wanted="a list of messages")
    assert isinstance(message, Message)
    if message.role not in _ROLES:
        raise InvalidInput(
            f"a message has the role {message.role!r:.40}", field="messages", remedy=f"use one of {', '.join(_ROLES)}"
        )
    checked_type(message.text, str, field="messages", wanted="messages of text")
    if message.text.strip():
        checked_text(message.text, field="messages")


def checked_session(value: object) -> str:
    """The id of a conversation: text of at most MAX_SESSION characters. Raises InvalidInput."""
    session = checked_text(value, field="session_id")
    if len(session) > MAX_SESSION:
        message = f'"session_id" has {len(session)} characters'
        raise InvalidInput(message, field="session_id", remedy=f"send at most {MAX_SESSION}")
    return session


def check_sticky_turns(query: Query, *, most: int) -> None:
    """Raises InvalidInput for a query that asks to stay for more than so many turns, or for what is no number."""
    turns = query.sticky_turns
    if turns is None:
        return
    if not isinstance(turns, int) or isinstance(turns, bool) or not 0 <= turns <= most:
        message = f'"sticky_turns" is {turns!r:.40}'
        raise InvalidInput(
            message,
            field="sticky_turns",
            remedy=f"send a whole number from 0 (every turn is drawn) to {most} (conversation.max_sticky_turns)",
        )
