"""Fits the roles and the order of messages."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from ragbandit.shared.model_servers.fitting.contents import join_messages, message_text, with_texts
from ragbandit.shared.model_servers.fitting.fitted import RequestChanges
from ragbandit.shared.model_servers.fitting.kinds import ServerFeatures

#: text of the assistant between the results of tools and a user's message
BETWEEN: Final = "I have read the results."
#: text of a user before an assistant's message that begins a conversation
BEGINNING: Final = "(The conversation begins.)"
_SYSTEM: Final = ("system", "developer")
_SPOKEN: Final = ("user", "assistant")


def fit_roles(body: dict[str, Any], *, server: ServerFeatures, changes: RequestChanges) -> None:
    """Fit the roles of a chat completion, and the order of its messages."""
    messages: list[Any] = body["messages"]
    roles = [message.get("role") for message in messages]
    if not server.developer and "developer" in roles:
        changes.changed.add("messages.role")
        messages = [
            message | {"role": "system"} if message.get("role") == "developer" else message for message in messages
        ]
    placed = _reorder(messages, roles=roles, server=server)
    if placed != messages:
        changes.changed.add("messages.order")
    last = placed[-1] if placed else {}
    if server.prefix_mark and last.get("role") == "assistant" and not last.get("tool_calls"):
        placed = [*placed[:-1], {**last, server.prefix_mark: True}]
    body["messages"] = placed


def _reorder(messages: list[Any], *, roles: Sequence[Any], server: ServerFeatures) -> list[Any]:
    later_system = [role for role in roles[1:] if role in _SYSTEM]
    if not server.without_user and len(later_system) >= len(roles) - 1 and all(role in _SYSTEM for role in roles[:1]):
        messages = [*messages[:-1], *({**message, "role": "user"} for message in messages[-1:])]
    if server.system != "anywhere" and (server.system == "nowhere" or later_system):
        messages = _system_first(messages)
        if server.system == "nowhere" and messages and messages[0].get("role") in _SYSTEM:
            messages = _without_system(messages)
    first = next((at for at, message in enumerate(messages) if message.get("role") not in _SYSTEM), len(messages))
    is_asked = server.user_first or (not server.without_user and all(one.get("role") != "user" for one in messages))
    if is_asked and [message.get("role") for message in messages[first : first + 1]] != ["user"]:
        messages = [*messages[:first], {"role": "user", "content": BEGINNING}, *messages[first:]]
    if server.alternates:
        messages = _alternating(messages)
    return messages if server.user_after_result else _answer_results(messages)


def _system_first(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The messages with one system message at the beginning. Later system messages become texts of a user at their
    position, so that the beginning of the conversation stays the same from turn to turn, and caches stay valid.
    """
    lead, groups = list[Any](), list[tuple[list[str], Any, list[str]]]()
    for message in messages:
        if message.get("role") not in _SYSTEM:
            groups.append(([], message, []))
        elif not groups:
            lead.append(message)
        else:
            groups[-1][2].append(f"<system-reminder>\n{message_text(message)}\n</system-reminder>")
    placed = list[Any]([join_messages(lead)] if lead else [])
    for (before, message, after), following in zip_longest(groups, groups[1:]):
        if after and message.get("role") not in ("user", "tool"):
            if following is not None and following[1].get("role") == "user":
                following[0].extend(after)
                after = []
            placed.append(message)
            placed += [{"role": "user", "content": "\n\n".join(after)}] if after else []
        else:
            placed.append(with_texts(message, before, after) if before or after else message)
    return placed


def _without_system(messages: Sequence[Any]) -> list[Any]:
    """The messages with the system message joined to a user's message after it, or else as a user's message."""
    first, *rest = messages
    at = next((at for at, message in enumerate(rest) if message.get("role") == "user"), None)
    if at != 0:
        return [{**first, "role": "user"}, *rest]
    return [with_texts(rest[0], [message_text(first)]), *rest[1:]]


def _alternating(messages: Sequence[Any]) -> list[Any]:
    """Join adjacent messages of the same role, user or assistant, unless they have tool calls."""
    groups = list[list[Any]]()
    for message in messages:
        before = groups[-1][-1] if groups else {}
        is_plain = not (message.get("tool_calls") or before.get("tool_calls"))
        if is_plain and before.get("role") == message.get("role") in _SPOKEN:
            groups[-1].append(message)
        else:
            groups.append([message])
    return [group[0] if len(group) == 1 else join_messages(group) for group in groups]


def _answer_results(messages: Sequence[Any]) -> list[Any]:
    placed = list[Any]()
    for message in messages:
        if message.get("role") == "user" and placed and placed[-1].get("role") == "tool":
            placed.append({"role": "assistant", "content": BETWEEN})
        placed.append(message)
    return placed
