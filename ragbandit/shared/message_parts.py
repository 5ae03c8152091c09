"""Messages that grow by deltas, and the delta from such a message to a whole one."""

from collections.abc import Mapping
from typing import Any, Final

#: a call's type -> its field with the text that the model wrote
CALL_TEXTS: Final = {"function": "arguments", "custom": "input"}
LOGPROBS: Final = "logprobs"


class MessageParts:
    """A message that grows by deltas of OpenAI's schema."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}

    def add(self, delta: Mapping[str, Any]) -> None:
        """Add the next delta."""
        _merge(self._parts, _by_place(delta))

    def end(self) -> None:
        """Give calls that have no arguments empty ones: clients read them as JSON."""
        for call in (*self._parts.get("tool_calls", {}).values(), {"function": self._parts.get("function_call")}):
            function = call.get("function")
            if function is not None:
                function["arguments"] = function.get("arguments") or "{}"

    def call_text(self, place: int) -> str:
        """The arguments so far of the call at this place."""
        call = self._parts.get("tool_calls", {}).get(place, {})
        return next((call[kind].get(name) or "" for kind, name in CALL_TEXTS.items() if kind in call), "")

    @property
    def whole(self) -> dict[str, Any]:
        """All that came, by OpenAI's names, tool calls in their order."""
        calls = [call for _, call in sorted(self._parts.get("tool_calls", {}).items())]
        return {**self._parts, **({"tool_calls": calls} if calls else {})}

    def rest(self, whole: Mapping[str, Any]) -> dict[str, Any] | None:
        """The delta that this whole still needs, {} if none; None if what came is not a beginning of it."""
        missing = _rest(self._parts, _by_place(whole))
        if missing is not None and "tool_calls" in missing:
            missing["tool_calls"] = [{"index": place, **left} for place, left in missing["tool_calls"].items()]
        return missing


def _by_place(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message, or a delta of one, with its tool calls by their places."""
    parts = dict(message)
    for place, call in enumerate(parts.pop("tool_calls", ())):
        fields = dict(call)
        calls = parts.setdefault("tool_calls", {})
        _merge(calls.setdefault(int(fields.pop("index", place)), {}), fields)
    return parts


def _merge(known: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add a delta: texts and lists grow, except names and ids; a value of another type is left out."""
    for name, value in part.items():
        before = known.get(name)
        if isinstance(before, dict) and isinstance(value, Mapping):
            _merge(before, value)
        elif isinstance(before, str | list) and type(before) is type(value) and name not in ("id", "type", "name"):
            known[name] = before + value  # type: ignore[operator] # both are of one type
        elif value is not None and (before is None or type(before) is type(value)):
            known[name] = dict(value) if isinstance(value, Mapping) else value


def _rest(known: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any] | None:
    """The delta from a message to this whole; None if the message is not a beginning of it."""
    missing: dict[str, Any] = {}
    for name, value in whole.items():
        before = known.get(name)
        if before == value:
            continue
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            left = _rest(before, value)
            if left is None:
                return None
            missing |= {name: left} if left else {}
        elif before is None:
            missing[name] = value
        elif isinstance(before, str | list) and isinstance(value, str | list) and value[: len(before)] == before:
            missing[name] = value[len(before) :]
        else:
            return None
    return missing
