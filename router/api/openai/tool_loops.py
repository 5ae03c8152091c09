"""Conversations with tools as hashes, by which results of tools find the decision whose calls they answer.

Clients write a conversation again for every request, each in its own way: without content or with an empty one, text as
a string or as parts, with other whitespace, results in another order. All of these have one hash. What the messages of
a model are beside their text and the ids of their calls does not count, nor do fields that say nothing of who said
what. The caller counts: the hash begins with the tenant, the API key, and the session that a header names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any

from ragbandit.router.storage.decisions.tool_turns import loop_key
from ragbandit.router.storage.rows.conversion import body_hash


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """The response that a request goes on from."""

    decision: str
    #: the hash of all its messages but the answer
    conversation: str
    #: messages of the request that this hash covers; the next one is the answer
    messages: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """The hashes of a conversation."""

    #: of the caller and all messages
    whole: str
    #: by which its last messages, results of tools, find the calls; None: they are no results, or cannot be told apart
    call: str | None
    #: the decision that the request says it goes on from
    previous: str | None


def hashed(
    messages: Sequence[Mapping[str, Any]], *, caller: Sequence[str | None], earlier: Earlier | None = None
) -> Conversation:
    """The hashes of a chat's messages. caller: who sends them. earlier: what they go on from."""
    results = results_of(messages)
    asked = max(0, len(messages) - len(results) - 1)  # the message with the calls
    calls = _call_ids(messages[asked]) if results else []
    # What the service has stored of an earlier response may be shorter than what its caller sent.
    start, state = (0, body_hash(list(caller))) if earlier is None else (earlier.messages, earlier.conversation)
    before = _folded(messages[start:asked], state=state)
    is_answer = len({*results}) == len(results) and {*results} <= {*calls}
    return Conversation(
        whole=_folded(messages[max(start, asked) :], state=before),
        call=loop_key(before, calls) if is_answer else None,
        previous=None if earlier is None else earlier.decision,
    )


def results_of(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ids of the calls whose results end the messages, the last first; "" for a result without one."""
    last = takewhile(lambda message: message.get("role") == "tool", reversed(messages))
    return [_text_or_empty(message.get("tool_call_id")) for message in last]


def _call_ids(message: Mapping[str, Any]) -> list[str]:
    """Ids of the calls of tools in a model's message; "" for a call without one."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return []
    return [_text_or_empty(call.get("id") if isinstance(call, Mapping) else None) for call in calls]


def _folded(messages: Sequence[Mapping[str, Any]], *, state: str) -> str:
    """The hash of a conversation with this hash, and of these messages after it."""
    for is_result, group in groupby(messages, key=lambda message: message.get("role") == "tool"):
        alike = [_comparable(message) for message in group]
        for each in sorted(alike) if is_result else alike:
            state = body_hash([state, *each]) if any(each[1:]) else state
    return state


def _comparable(message: Mapping[str, Any]) -> list[str]:
    """What counts of a message: its role, whose it is, and what it says; a message that says nothing does not count."""
    role, content = str(message.get("role")), _without_space(message.get("content"))
    if role == "assistant" and (calls := _call_ids(message)):
        return [role, *sorted(calls)]
    if role == "tool":
        return [role, _text_or_empty(message.get("tool_call_id")), content]
    return ["system" if role == "developer" else role, content and _text_or_empty(message.get("name")), content]


def _without_space(content: object) -> str:
    """The text of a content, without whitespace; of what is no text its bytes or URL, in short."""
    if isinstance(content, list):
        return "".join(map(_without_space, content))
    if not isinstance(content, Mapping):
        return "".join(content.split()) if isinstance(content, str) else ""
    for key in ("text", "refusal"):
        if isinstance(text := content.get(key), str):
            return _without_space(text)
    own = content.get(str(content.get("type")))
    if isinstance(own, Mapping):
        own = own.get("url") or [value for name, value in sorted(own.items()) if value and name != "detail"]
    return f"[{body_hash(own)}]" if own else ""


def _text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""
