"""Questions out of chats: the last user message, the turns before it as far as they are kept, and the rewrite."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ragbandit.router.config.sections import ConversationSettings
from ragbandit.router.serving.checks.fields import checked_text, checked_type
from ragbandit.router.serving.checks.questions import check_message
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Json, Message, Query

#: what stands where the middle of a long message was
_GAP: Final = " [...] "


@dataclass(frozen=True, kw_only=True, slots=True)
class Chat:
    """A list of messages, read: the question, and what is kept of what was said before it."""

    #: the last user message
    question: str
    #: system's words first, then the turns, the oldest first
    history: tuple[Message, ...] = ()
    #: messages that were left out or shortened, by how: {"left_out": 12, "shortened": 1}
    lost: dict[str, Json] = field(default_factory=dict)

    @property
    def has_turns(self) -> bool:
        """Whether user and assistant have said something before the question: it may lean on that."""
        return any(message.role != "system" for message in self.history)


def chat_of(messages: Sequence[Message], *, settings: ConversationSettings) -> Chat:
    """The chat of these messages, the oldest first; the last of user and assistant must be the user's question.

    Kept are the last `conversation.turns` messages of user and assistant, and the words of the system, together at most
    `conversation.chars` characters: of the system at most half of them. What does not fit loses its middle, or is left
    out from the oldest on. Blank messages do not count. Raises InvalidInput where there is no question, and for what
    is no text.
    """
    checked_type(messages, list | tuple, field="messages", wanted="a list of messages")
    spoken: list[Message] = []
    for each in messages:
        check_message(each)
        if each.text.strip():
            spoken.append(each)
    turns = [message for message in spoken if message.role != "system"]
    if not turns or turns[-1].role != "user":
        raise InvalidInput(
            "the last message is not the user's" if turns else "no message of a user has text",
            field="messages",
            remedy="end the list with the question, a message of the role user",
        )
    question = checked_text(turns.pop().text, field="messages")
    system = "\n\n".join(message.text for message in spoken if message.role == "system")
    instructions, shortened = [], 0
    room = settings.chars
    if system and room > 0:
        shown = _shortened(system, most=max(1, room // 2))
        shortened += shown != system
        instructions.append(Message(role="system", text=shown))
        room -= len(shown)
    latest: list[Message] = []
    for message in reversed(turns[len(turns) - settings.turns :] if settings.turns < len(turns) else turns):
        if room < 1:
            break
        shown = _shortened(message.text, most=room)
        shortened += shown != message.text
        latest.append(replace(message, text=shown))
        room -= len(shown)
    left_out = len(turns) - len(latest) + bool(system and not instructions)
    lost: dict[str, Json] = {name: count for name, count in (("left_out", left_out), ("shortened", shortened)) if count}
    return Chat(question=question, history=(*instructions, *reversed(latest)), lost=lost)


def with_chat(query: Query, *, chat: Chat, text: str | None = None, facts: dict[str, Json] | None = None) -> Query:
    """The query with the chat's question and history.

    text: the question rewritten to stand alone, None where it was not. facts: of the rewrite, for `Query.request`.
    """
    request = {**query.request, **({"history": chat.lost} if chat.lost else {})}
    request |= {"rewrite": facts} if facts is not None else {}
    asked = chat.question if chat.has_turns else None
    return replace(query, text=text or chat.question, asked=asked, messages=chat.history, request=request)


def _shortened(text: str, *, most: int) -> str:
    """The text, its middle left out where it has more than `most` characters (at least 1): ends tell the most."""
    if len(text) <= most:
        return text
    if most <= len(_GAP):
        return text[-most:] if text[-most:].strip() else text.strip()[:most]
    ends = most - len(_GAP)
    return f"{text[: ends - ends // 2]}{_GAP}{text[len(text) - ends // 2 :]}"
