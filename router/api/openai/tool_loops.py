"""Tool loops: hashes of conversations, by which the results of tools find the decision that called the tools.

Clients send the whole conversation again with every request, and in varying form: other whitespace, missing or empty
content, text as a string or as parts, results in another order. All forms of a conversation have the same hash. It
contains the ids of tool calls, the id and content of a result, and role, name and content of any other message except
reminders: system messages that follow other messages, which clients add, move and leave out again.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, takewhile
from typing import Any, Final

from ragbandit.router.storage.decisions.continuing import calls_key
from ragbandit.router.storage.rows.conversion import body_hash
from ragbandit.shared.types.encodings import DigestCache, Encoding

_SYSTEM: Final = ("system", "developer")
#: maximum number of messages of the assistant that may be parts of one answer
_MOST_PARTS: Final = 16
#: (hash of a conversation, digests of the messages that follow) -> hash of the conversation with these messages
_KNOWN_HASHES: Final = DigestCache[str](most=10_000)
#: maximum number of results in one step; the hash of a step with more results is not cached
_MOST_RESULTS: Final = 16


def hash_conversation(
    messages: Sequence[Any], *, earlier_hash: str, encoding: Encoding, start: int = 0
) -> tuple[str, tuple[str, ...], str | None]:
    """Hash a conversation. Returns (hash, keys of the tool calls that it may continue, key of its last answer).

    The calls are those of `continued_answers`. The key of the last answer is the hash up to it (`answer_key`), or its
    `calls_key` if it has calls; None if there is no answer, or if results of tools end the messages.
    earlier_hash: hash of the messages before the index `start`. encoding: JSON of the messages; caches hashes.
    """
    hash_with = partial(_hash_with, encoding=encoding)
    answers = [(at, calls) for at, calls in continued_answers(messages) if at >= start]
    kept, has_turn = list[Any](), False
    for message in messages:
        is_turn = message.get("role") not in _SYSTEM
        kept.append({} if has_turn and not is_turn else message)
        has_turn = has_turn or is_turn
    keys, state, at = list[str | None](), earlier_hash, start
    for caller, calls in reversed(answers):
        state, at = hash_with(kept[at:caller], state=state), caller
        keys.append(calls_key(state, calls))
    answered = None
    if not answers:
        places = [place for place, message in enumerate(kept) if message.get("role") == "assistant" and place >= at]
        if places:
            before = hash_with(kept[at : places[-1]], state=state)
            at, calls = places[-1] + 1, _call_ids(kept[places[-1]])
            state = hash_with(kept[places[-1] : at], state=before)
            answered = calls_key(before, calls) if calls else state
    return hash_with(kept[at:], state=state), tuple([key for key in keys if key is not None]), answered


def continued_answers(messages: Sequence[Any]) -> Iterator[tuple[int, list[str]]]:
    """The answers that may contain the calls whose results end the messages, shortest answer first.

    Yields (index of the answer's first message, ids of its calls). A client may send one answer as several messages,
    with or without results between them, so each of the last messages of the assistant may have begun it. Reminders may
    stand everywhere. Yields nothing if the messages do not end with results, or if a result belongs to no call.
    """
    if not results_of(messages):
        return
    calls, results = list[str](), list[str]()
    parts = 0
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if message.get("role") == "tool":
            results.append(_text(message.get("tool_call_id")))
        elif message.get("role") == "assistant" and parts < _MOST_PARTS:
            parts += 1
            calls = [*_call_ids(message), *calls]
            if len(set(results)) == len(results) and set(results) <= set(calls):
                yield at, calls
        elif message.get("role") not in _SYSTEM:
            return


def results_of(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ids of the calls whose results end the messages, last one first; "" for a result without an id. Reminders may
    follow the results.
    """
    if not messages or messages[-1].get("role") not in ("tool", *_SYSTEM):
        return []
    last = takewhile(lambda message: message.get("role") in ("tool", *_SYSTEM), reversed(messages))
    return [_text(message.get("tool_call_id")) for message in last if message.get("role") == "tool"]


def _call_ids(message: Mapping[str, Any]) -> list[str]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return []
    return [_text(call.get("id")) if isinstance(call, dict) else "" for call in calls]


def _hash_with(messages: Sequence[Mapping[str, Any]], *, state: str, encoding: Encoding) -> str:
    """The hash of a conversation. state: hash of its first messages. messages: the others; {} is skipped."""
    for is_result, group in groupby(filter(None, messages), key=lambda message: message.get("role") == "tool"):
        for step in [list(group)] if is_result else zip(group):
            digests = [encoding.digest(message) for message in step]
            key = None if None in digests or len(digests) > _MOST_RESULTS else (state, *digests)
            known = None if key is None else _KNOWN_HASHES.get(key)
            state = _hash_with_step(step, state=state) if known is None else known
            if known is None and key is not None:
                _KNOWN_HASHES.put(key, state)
    return state


def _hash_with_step(step: Sequence[Mapping[str, Any]], *, state: str) -> str:
    """The hash of a conversation with one more message, or with more results, whose order does not count."""
    for row in sorted(map(_hashed_values, step)):
        state = body_hash([state, *row]) if any(row[1:]) else state
    return state


def _hashed_values(message: Mapping[str, Any]) -> list[str]:
    role, content = str(message.get("role")), message.get("content")
    text = "".join(content.split()) if isinstance(content, str) else _without_space(content)
    if role == "tool":
        return [role, _text(message.get("tool_call_id")), text]
    calls = _call_ids(message) if role == "assistant" and message.get("tool_calls") else []
    if calls:
        return [role, *sorted(calls)]
    name = message.get("name") if text else ""
    return ["system" if role == "developer" else role, name if isinstance(name, str) else "", text]


def _without_space(content: object) -> str:
    """The text of a content without whitespace; images, audio and files are replaced by the hash of their data."""
    if isinstance(content, str):
        return "".join(content.split())
    if isinstance(content, list):
        return "".join(map(_without_space, content))
    if not isinstance(content, dict):
        return ""
    texts = [content[key] for key in ("text", "refusal") if isinstance(content.get(key), str)]
    data = content.get(_text(content.get("type")))
    if isinstance(data, dict):
        data = data.get("url") or [value for name, value in sorted(data.items()) if value and name != "detail"]
    return _without_space(texts) if texts or not data else f"[{body_hash(data)}]"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
