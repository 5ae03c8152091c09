"""Joins the deltas of a message, and computes the delta that completes it to a whole message."""

import math
from collections.abc import Mapping
from typing import Any, Final

from ragbandit.shared.reading.fields import flat_text
from ragbandit.shared.texts.growing_text import GrowingText
from ragbandit.shared.types import MEDIA

#: type of a tool call -> field of the call with the text that the model wrote
CALL_TEXTS: Final = {"function": "arguments", "custom": "input"}
LOGPROBS: Final = "logprobs"
#: fields of a message with thoughts: DeepSeek and vLLM, Groq and OpenRouter, Copilot, OpenRouter's list of details
_THOUGHTS: Final = ("reasoning_content", "reasoning", "reasoning_text", "reasoning_details")


def is_token(entry: Any) -> bool:
    """Whether an entry has a token and its log-probability."""
    token, logprob = map(entry.get, ("token", "logprob")) if isinstance(entry, dict) else (None, None)
    is_number = isinstance(logprob, int | float) and not isinstance(logprob, bool) and math.isfinite(logprob)
    return isinstance(token, str) and is_number


def has_media(reply: Mapping[str, Any]) -> bool:
    """Whether the message of a model's reply has images, audio or video."""
    return any(field in MEDIA for field in reply.get("message") or ())


class MessageParts:
    """A message that is joined from deltas of OpenAI's schema."""

    def __init__(self) -> None:
        #: fields; texts that more than one delta brought are GrowingTexts
        self._parts: dict[str, Any] = {}

    @property
    def has_fields(self) -> bool:
        """Whether a delta brought a field."""
        return bool(self._parts)

    def add(self, delta: Mapping[str, Any]) -> None:
        """Add the next delta."""
        _merge(self._parts, _by_index(delta))

    def end(self) -> None:
        """Add the arguments "{}" to calls without arguments, since clients parse them as JSON."""
        for call in (*self._parts.get("tool_calls", {}).values(), {"function": self._parts.get("function_call")}):
            function = call.get("function")
            if function is not None:
                function["arguments"] = str(function.get("arguments") or "") or "{}"

    def call_text(self, index: int) -> str:
        """The arguments of the tool call with this index, as far as they are known."""
        return str(self._call_text(index))

    def call_size(self, index: int) -> int:
        """The number of characters of `call_text`."""
        text = self._call_text(index)
        return text.size if isinstance(text, GrowingText) else len(text)

    def _call_text(self, index: int) -> str | GrowingText:
        call = self._parts.get("tool_calls", {}).get(index, {})
        return next((call[kind].get(name) or "" for kind, name in CALL_TEXTS.items() if kind in call), "")

    def count(self, name: str) -> int | None:
        """The number of objects in a list of the message; None if the field is no list."""
        value = self._parts.get(name)
        return len(value) if isinstance(value, list) else None

    @property
    def whole(self) -> dict[str, Any]:
        """The message so far, in OpenAI's schema."""
        parts: dict[str, Any] = _join_texts(self._parts)
        calls = [call for _, call in sorted(parts.get("tool_calls", {}).items())]
        return {**parts, **({"tool_calls": calls} if calls else {})}

    def rest(self, whole: Mapping[str, Any]) -> dict[str, Any] | None:
        """The delta from the message so far to `whole`; {} if both are equal, None if `whole` begins differently."""
        missing = _missing_part(_join_texts(self._parts), _by_index(whole))
        if missing is not None and "tool_calls" in missing:
            missing["tool_calls"] = [{"index": index, **call} for index, call in missing["tool_calls"].items()]
        return missing


def split_thoughts(delta: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a delta. Returns (fields that come before the text, fields after it)."""
    thoughts = {name: value for name, value in delta.items() if name.startswith(("reasoning", "thinking"))}
    return thoughts, {name: value for name, value in delta.items() if name not in thoughts}


def thoughts_of(fields: Mapping[str, Any]) -> str:
    """The model's thoughts in a message or a delta, as text: the first field of _THOUGHTS that has words."""
    return next(filter(None, (flat_text(fields.get(name)) for name in _THOUGHTS)), "")


def reasoning_in(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message, call or item with reasoning or its signatures. Servers want them back in later turns."""
    names = ("reasoning", "thinking", "extra_content")
    return {name: value for name, value in fields.items() if value and name.startswith(names)}


def _by_index(message: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a message or delta. In the copy, `tool_calls` is a mapping by index."""
    parts = dict(message)
    for position, call in enumerate(parts.pop("tool_calls", ())):
        fields = dict(call)
        calls = parts.setdefault("tool_calls", {})
        _merge(calls.setdefault(int(fields.pop("index", position)), {}), fields)
    return parts


def _merge(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a delta in place: texts and lists are joined; names, types and ids are replaced. Values of another type than
    before are ignored.
    """
    for name, value in delta.items():
        before = message.get(name)
        if isinstance(before, dict) and isinstance(value, Mapping):
            _merge(before, value)
        elif isinstance(before, str | GrowingText) and isinstance(value, str):
            if name in ("id", "type", "name"):
                message[name] = value
            else:
                text = message[name] = before if isinstance(before, GrowingText) else GrowingText(before)
                text.add(value)
        elif isinstance(before, list) and isinstance(value, list):
            before += value
        elif value is not None and (before is None or type(before) is type(value)):
            message[name] = _copy_containers(value)


def _copy_containers(value: Any) -> Any:
    """A copy whose objects and lists may grow. Objects in lists are not copied, since they do not grow."""
    if isinstance(value, Mapping):
        return {name: _copy_containers(item) for name, item in value.items()}
    return list(value) if isinstance(value, list) else value


def _join_texts(value: Any) -> Any:
    """The value with texts in place of GrowingTexts."""
    if isinstance(value, dict):
        return {name: _join_texts(item) for name, item in value.items()}
    return str(value) if isinstance(value, GrowingText) else value


def _missing_part(message: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any] | None:
    missing: dict[str, Any] = {}
    for name, value in whole.items():
        before = message.get(name)
        if before == value:
            continue
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            part = _missing_part(before, value)
            if part is None:
                return None
            if part:
                missing[name] = part
        elif before is None:
            missing[name] = value
        elif isinstance(before, str | list) and isinstance(value, str | list) and value[: len(before)] == before:
            missing[name] = value[len(before) :]
        else:
            return None
    return missing
