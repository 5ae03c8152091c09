"""Tool loops: hashes of conversations, by which the results of tools find the decision that called the tools.

Clients send the whole conversation again with every request, and in varying form: other whitespace, missing or empty
content, text as a string or as parts, results in another order. All forms of a conversation have the same hash. It
contains the ids of tool calls, the id and content of a result, and role, name and content of any other message.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

from ragbandit.router.storage.decisions.tool_turns import loop_key
from ragbandit.router.storage.rows.conversion import body_hash


def hashed(messages: Sequence[Any], *, begin: str, start: int = 0) -> tuple[str, str | None]:
    """Hash a conversation. begin: hash of the messages before the index `start`. Returns (hash, key of the tool calls
    whose results end the conversation). The key is None unless these are results of the last calls.
    """
    results = results_of(messages)
    caller = max(0, len(messages) - len(results) - 1)  # index of the message that called the tools
    calls = _call_ids(messages[caller]) if results else ()
    before = _folded(messages[start:caller], state=begin)
    answers_calls = len(set(results)) == len(results) and set(results) <= set(calls)
    whole = _folded(messages[max(start, caller) :], state=before)
    return whole, loop_key(before, calls) if answers_calls else None


def beginning(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Hash of the messages up to the first one of a user, which is the same for all turns; None without a user."""
    first = next((place for place, message in enumerate(messages) if message.get("role") == "user"), None)
    return None if first is None else _folded(messages[: first + 1], state="")


def results_of(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ids of the calls whose results end the messages, last one first; "" for a result without an id."""
    last = takewhile(lambda message: message.get("role") == "tool", reversed(messages))
    return [_text(message.get("tool_call_id")) for message in last]


def _call_ids(message: Mapping[str, Any]) -> list[str]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return []
    return [_text(call.get("id")) if isinstance(call, Mapping) else "" for call in calls]


def _folded(messages: Sequence[Mapping[str, Any]], *, state: str) -> str:
    """The hash of a whole conversation. state: hash of its first messages; messages: the messages that follow."""
    for is_result, group in groupby(messages, key=lambda message: message.get("role") == "tool"):
        rows = [_comparable(message) for message in group]
        for row in sorted(rows) if is_result else rows:
            state = body_hash([state, *row]) if any(row[1:]) else state
    return state


def _comparable(message: Mapping[str, Any]) -> list[str]:
    role, content = str(message.get("role")), _without_space(message.get("content"))
    calls = _call_ids(message)
    if role == "assistant" and calls:
        return [role, *sorted(calls)]
    if role == "tool":
        return [role, _text(message.get("tool_call_id")), content]
    return ["system" if role == "developer" else role, content and _text(message.get("name")), content]


def _without_space(content: object) -> str:
    """The text of a content without whitespace; images, audio and files are replaced by the hash of their data."""
    if isinstance(content, list):
        return "".join(map(_without_space, content))
    if not isinstance(content, Mapping):
        return "".join(_text(content).split())
    texts = [content[key] for key in ("text", "refusal") if isinstance(content.get(key), str)]
    data = content.get(_text(content.get("type")))
    if isinstance(data, Mapping):
        data = data.get("url") or [value for name, value in sorted(data.items()) if value and name != "detail"]
    return _without_space(texts) if texts or not data else f"[{body_hash(data)}]"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
