"""Hashes of conversations with tools: the key by which results of tools find the decision whose calls they answer.

Clients write a conversation again for every request, each in its own way: no content or an empty one, text as a string
or as parts, other whitespace, results in another order. All of these have one hash. Calls count by their ids; fields
that do not say who said what are ignored.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

from ragbandit.router.storage.decisions.tool_turns import loop_key
from ragbandit.router.storage.rows.conversion import body_hash


def hashed(messages: Sequence[Any], *, begin: str, start: int = 0) -> tuple[str, str | None]:
    """The hash of a conversation; the key of the calls whose results end it, or None. begin: hash before `start`."""
    results = results_of(messages)
    asked = max(0, len(messages) - len(results) - 1)  # the message with the calls
    calls = _call_ids(messages[asked]) if results else []
    before = _folded(messages[start:asked], state=begin)
    is_answer = len({*results}) == len(results) and {*results} <= {*calls}
    whole = _folded(messages[max(start, asked) :], state=before)
    return whole, loop_key(before, calls) if is_answer else None


def results_of(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ids of the calls whose results end the messages, the last first; "" for a result without one."""
    last = takewhile(lambda message: message.get("role") == "tool", reversed(messages))
    return [_text(message.get("tool_call_id")) for message in last]


def _call_ids(message: Mapping[str, Any]) -> list[str]:
    calls = message.get("tool_calls")
    calls = calls if isinstance(calls, list) else []
    return [_text(call.get("id")) if isinstance(call, Mapping) else "" for call in calls]


def _folded(messages: Sequence[Mapping[str, Any]], *, state: str) -> str:
    """The hash of a conversation with the hash `state`, and of these messages after it."""
    for is_result, group in groupby(messages, key=lambda message: message.get("role") == "tool"):
        alike = [_comparable(message) for message in group]
        for each in sorted(alike) if is_result else alike:
            state = body_hash([state, *each]) if any(each[1:]) else state
    return state


def _comparable(message: Mapping[str, Any]) -> list[str]:
    """The parts of a message that are compared: role, name or ids, and content without whitespace."""
    role, content = str(message.get("role")), _without_space(message.get("content"))
    if role == "assistant" and (calls := _call_ids(message)):
        return [role, *sorted(calls)]
    if role == "tool":
        return [role, _text(message.get("tool_call_id")), content]
    return ["system" if role == "developer" else role, content and _text(message.get("name")), content]


def _without_space(content: object) -> str:
    """The text of a content without whitespace; an image, a sound or a file as the hash of its bytes or URL."""
    if isinstance(content, list):
        return "".join(map(_without_space, content))
    if not isinstance(content, Mapping):
        return "".join(_text(content).split())
    texts = [content[key] for key in ("text", "refusal") if isinstance(content.get(key), str)]
    own = content.get(_text(content.get("type")))
    if isinstance(own, Mapping):
        own = own.get("url") or [value for name, value in sorted(own.items()) if value and name != "detail"]
    return _without_space(texts) if texts or not own else f"[{body_hash(own)}]"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
