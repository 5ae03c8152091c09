"""The order of calls and results: each tool call gets one result, directly after the message with the call."""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ragbandit.shared.model_servers.fitting.contents import join_messages, message_text
from ragbandit.shared.model_servers.fitting.fitted import RequestChanges
from ragbandit.shared.reading.fields import flat_text

#: text of the result that is added to a call without a result
NO_RESULT: Final = "(no result)"


def fit_order(body: dict[str, Any], *, changes: RequestChanges) -> None:
    """Move the results of calls behind their calls, for every kind of server."""
    messages = body["messages"]
    if not any(message.get("role") == "tool" or message.get("tool_calls") for message in messages):
        return
    named = _with_ids(messages)
    placed = named if _is_ordered(named) else _in_order(named)
    if placed != messages:
        body["messages"] = placed
        changes.changed.add("messages.order")


def message_calls(message: Mapping[str, Any]) -> list[Any]:
    """The calls of a message; [] if they have another form."""
    calls = message.get("tool_calls")
    if not calls or not isinstance(calls, list) or message.get("role") != "assistant":
        return []
    objects = [call for call in calls if isinstance(call, dict)]
    return objects if len(objects) == len(calls) else []


def _with_ids(messages: Sequence[Any]) -> list[Any]:
    """The messages with an id for each call and result; a result without one belongs to the next call."""
    named, waiting, number = list[Any](), dict[str, None](), 0
    for message in messages:
        calls, changed = message_calls(message) if message.get("tool_calls") else [], message
        if calls and [call for call in calls if not (isinstance(call.get("id"), str) and call["id"])]:
            calls = [{**call, "id": flat_text(call.get("id")) or f"call_{n}"} for n, call in enumerate(calls, number)]
            changed = {**message, "tool_calls": calls}
        number += len(calls)
        if calls:
            waiting = dict.fromkeys(call["id"] for call in calls)
        if message.get("role") == "tool":
            key = message.get("tool_call_id")
            if not isinstance(key, str) or not key:
                key = flat_text(key) or next(iter(waiting), "call_0")
                changed = {**message, "tool_call_id": key}
            waiting.pop(key, None)
        named.append(changed)
    return named


def _is_ordered(messages: Sequence[Any]) -> bool:
    waiting = set[Any]()
    for message in messages:
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in waiting:
                return False
            waiting.discard(message.get("tool_call_id"))
        elif waiting:
            return False
        elif message.get("tool_calls"):
            calls = message_calls(message)
            waiting = {call.get("id") for call in calls}
            if len(waiting) < len(calls):
                return False
    return not waiting


class CallPositions:
    """Positions of the messages with calls and with their results. calls, results: the ids in each message."""

    def __init__(self, *, calls: Sequence[Iterable[str]], results: Sequence[Iterable[str]]) -> None:
        #: id of a call -> positions of messages with the call; and with its results, as far as they were not taken
        self._calls, self._results = defaultdict[str, list[int]](list), defaultdict[str, deque[int]](deque)
        for at, (asked, answered) in enumerate(zip(calls, results, strict=True)):
            for key in asked:
                self._calls[key].append(at)
            for key in answered:
                self._results[key].append(at)
        #: positions that `take_result` has returned
        self.taken = set[int]()

    def take_result(self, key: str, *, after: int) -> int | None:
        """The position of the first result of a call after a position; None if another call uses the id before that
        result, or if there is no result.
        """
        places, calls = self._results[key], self._calls[key]
        while places and places[0] <= after:
            places.popleft()
        again = bisect_right(calls, after)
        if not places or (again < len(calls) and calls[again] < places[0]):
            return None
        place = places.popleft()
        self.taken.add(place)
        return place


def _in_order(messages: Sequence[Any]) -> list[Any]:
    ids = [[call["id"] for call in message_calls(message)] for message in messages]
    answered = [[message["tool_call_id"]] if message.get("role") == "tool" else [] for message in messages]
    places, placed, at = CallPositions(calls=ids, results=answered), list[Any](), 0
    while at < len(messages):
        message, at = messages[at], at + 1
        if at - 1 in places.taken:
            continue
        if message.get("role") == "tool":  # no earlier message has its call
            placed.append({"role": "user", "content": f"Result of a tool:\n{message_text(message)}"})
            continue
        if not ids[at - 1]:
            placed.append(message)
            continue
        begin, at = at - 1, _end_of_answer(messages, ids=ids, index=at, taken=places.taken)
        parts = [messages[place] for place in range(begin, at) if place not in places.taken]
        placed.append(join_messages(parts))
        for key in dict.fromkeys(key for place in range(begin, at) for key in ids[place]):
            place = places.take_result(key, after=at - 1)
            missing = {"role": "tool", "tool_call_id": key, "content": NO_RESULT}
            placed.append(missing if place is None else messages[place])
    return placed


def _end_of_answer(messages: Sequence[Any], *, ids: Sequence[Sequence[str]], index: int, taken: set[int]) -> int:
    """Index of the first message after an answer: adjacent messages of the assistant with other calls belong to it."""
    known = set(ids[index - 1])
    while index < len(messages):
        if index not in taken:
            if messages[index].get("role") != "assistant" or not known.isdisjoint(ids[index]):
                break
            known.update(ids[index])
        index += 1
    return index
