"""The order of calls and results: the results of a message's calls follow it at once, and each call has one."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ragbandit.shared.model_servers.fitting.contents import joined, text_of
from ragbandit.shared.model_servers.fitting.fitted import Fitted

#: result of a call without one
NO_RESULT: Final = "(no result)"


def fit_order(body: dict[str, Any], *, fitted: Fitted) -> None:
    """Bring the results of calls behind their calls, at every kind of server."""
    messages = body["messages"]
    if not any(message.get("role") == "tool" or message.get("tool_calls") for message in messages):
        return
    named = _named(messages)
    placed = named if _is_right(named) else _placed(named)
    if placed != messages:
        body["messages"] = placed
        fitted.changed.add("messages.order")


def calls_of(message: Mapping[str, Any]) -> list[Any]:
    """The calls of a message; [] if they have another form."""
    calls = message.get("tool_calls")
    is_list = isinstance(calls, list) and all(isinstance(call, dict) for call in calls)
    return list(calls) if is_list and calls and message.get("role") == "assistant" else []


def _named(messages: Sequence[Any]) -> list[Any]:
    """The messages with an id for each call and result; a result without one belongs to the next call."""
    named, waiting, number = list[Any](), list[Any](), 0
    for message in messages:
        calls = calls_of(message)
        if calls and not all(isinstance(call.get("id"), str) and call["id"] for call in calls):
            numbers = range(number, number + len(calls))
            calls = [
                call if call.get("id") else {**call, "id": f"call_{n}"} for call, n in zip(calls, numbers, strict=True)
            ]
            message = {**message, "tool_calls": calls}
        number += len(calls)
        if calls:
            waiting = [call["id"] for call in calls]
        if message.get("role") == "tool":
            key = message.get("tool_call_id")
            if not key and waiting:
                message = {**message, "tool_call_id": waiting[0]}
            waiting = [one for one in waiting if one != message.get("tool_call_id")]
        named.append(message)
    return named


def _is_right(messages: Sequence[Any]) -> bool:
    waiting = list[Any]()
    for message in messages:
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in waiting:
                return False
            waiting.remove(message.get("tool_call_id"))
        elif waiting:
            return False
        else:
            waiting = [call.get("id") for call in calls_of(message)]
    return not waiting


def _placed(messages: Sequence[Any]) -> list[Any]:
    placed, rest = list[Any](), list(messages)
    while rest:
        message = rest.pop(0)
        if message.get("role") == "tool":  # its call is gone
            placed.append({"role": "user", "content": f"Result of a tool:\n{text_of(message)}"})
            continue
        if not calls_of(message):
            placed.append(message)
            continue
        while rest and _is_part(rest[0], of=message):
            message = joined([message, rest.pop(0)])
        placed.append(message)
        placed += [_result(call.get("id"), rest=rest) for call in calls_of(message)]
    return placed


def _is_part(message: Mapping[str, Any], *, of: Mapping[str, Any]) -> bool:
    """Whether a message belongs to the answer before it: one of the assistant, with other calls."""
    known = [call.get("id") for call in calls_of(of)]
    return message.get("role") == "assistant" and all(call.get("id") not in known for call in calls_of(message))


def _result(key: Any, *, rest: list[Any]) -> Any:
    """Take the result of a call out of the messages that follow it."""
    for at, message in enumerate(rest):
        if message.get("role") == "tool" and message.get("tool_call_id") == key:
            return rest.pop(at)
        if any(call.get("id") == key for call in calls_of(message)):
            break  # the id is used again
    return {"role": "tool", "tool_call_id": key, "content": NO_RESULT}
