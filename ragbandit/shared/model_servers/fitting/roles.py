"""Roles of messages, and where they may stand."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ragbandit.shared.model_servers.fitting.contents import joined, text_of, with_text
from ragbandit.shared.model_servers.fitting.fitted import Fitted
from ragbandit.shared.model_servers.fitting.kinds import Takes

#: text of the assistant between the results of tools and a user's message
BETWEEN: Final = "I have read the results."
#: text of a user before an assistant's message that begins a conversation
BEGINNING: Final = "(The conversation begins.)"
_SYSTEM: Final = ("system", "developer")
_SPOKEN: Final = ("user", "assistant")


def fit_roles(body: dict[str, Any], *, takes: Takes, fitted: Fitted) -> None:
    """Fit the roles of a chat completion, and the places of its messages."""
    messages: list[Any] = body["messages"]
    roles = [message.get("role") for message in messages]
    if not takes.developer and "developer" in roles:
        fitted.changed.add("messages.role")
        messages = [
            message | {"role": "system"} if message.get("role") == "developer" else message for message in messages
        ]
    placed = _placed(messages, roles=roles, takes=takes)
    if placed != messages:
        fitted.changed.add("messages.order")
    last = placed[-1] if placed else {}
    if takes.prefix_mark and last.get("role") == "assistant" and not last.get("tool_calls"):
        placed = [*placed[:-1], {**last, takes.prefix_mark: True}]
    body["messages"] = placed


def _placed(messages: list[Any], *, roles: Sequence[Any], takes: Takes) -> list[Any]:
    if not takes.without_user and all(role in _SYSTEM for role in roles):
        messages = [*messages[:-1], *({**message, "role": "user"} for message in messages[-1:])]
    if takes.system != "anywhere" and (takes.system == "nowhere" or any(role in _SYSTEM for role in roles[1:])):
        messages = _system_first(messages)
        if takes.system == "nowhere" and messages and messages[0].get("role") in _SYSTEM:
            messages = _without_system(messages)
    first = next((at for at, message in enumerate(messages) if message.get("role") not in _SYSTEM), len(messages))
    is_asked = takes.user_first or (not takes.without_user and all(one.get("role") != "user" for one in messages))
    if is_asked and [message.get("role") for message in messages[first : first + 1]] != ["user"]:
        messages = [*messages[:first], {"role": "user", "content": BEGINNING}, *messages[first:]]
    if takes.alternates:
        messages = _alternating(messages)
    return messages if takes.user_after_result else _with_answers(messages)


def _system_first(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """One system message at the beginning. Later ones become texts of a user at their place, so that the beginning of
    the conversation stays the same from turn to turn, and caches of servers hold.
    """
    placed, waiting, lead = list[Any](), list[str](), list[Any]()
    for message in messages:
        role = message.get("role")
        if role in _SYSTEM and not placed:
            lead.append(message)
        elif role in _SYSTEM:
            text = _reminder(message)
            if placed[-1].get("role") in ("user", "tool") and not waiting:
                placed[-1] = with_text(placed[-1], text)
            else:
                waiting.append(text)
        elif waiting and role == "user":
            placed.append(with_text(message, "\n\n".join(waiting), first=True))
            waiting = []
        else:
            placed += [{"role": "user", "content": "\n\n".join(waiting)}] if waiting else []
            waiting = []
            placed.append(message)
    placed += [{"role": "user", "content": "\n\n".join(waiting)}] if waiting else []
    return [joined(lead), *placed] if lead else placed


def _reminder(message: Mapping[str, Any]) -> str:
    return f"<system-reminder>\n{text_of(message)}\n</system-reminder>"


def _without_system(messages: Sequence[Any]) -> list[Any]:
    """The system message in the first message of a user."""
    first, *rest = messages
    at = next((at for at, message in enumerate(rest) if message.get("role") == "user"), None)
    if at != 0:
        return [{**first, "role": "user"}, *rest]
    return [with_text(rest[0], text_of(first), first=True), *rest[1:]]


def _alternating(messages: Sequence[Any]) -> list[Any]:
    """Messages of user or assistant that follow one of the same role are joined with it."""
    placed = list[Any]()
    for message in messages:
        role = message.get("role")
        is_plain = not (message.get("tool_calls") or (placed and placed[-1].get("tool_calls")))
        if placed and role in _SPOKEN and placed[-1].get("role") == role and is_plain:
            placed[-1] = joined([placed[-1], message])
        else:
            placed.append(message)
    return placed


def _with_answers(messages: Sequence[Any]) -> list[Any]:
    placed = list[Any]()
    for message in messages:
        if message.get("role") == "user" and placed and placed[-1].get("role") == "tool":
            placed.append({"role": "assistant", "content": BETWEEN})
        placed.append(message)
    return placed
