"""Messages of OpenAI's chat completions as they are streamed: deltas that come in pieces, and the whole that they make.

A delta here is a mapping by OpenAI's names: `tool_calls` with an index each, texts such as `refusal` and
`reasoning_content` that are continued, and `logprobs`, which a chunk has beside its delta. The content is not in it: it
goes its own way, as the text of the answer.
"""

from collections.abc import Mapping
from typing import Any, Final

#: parameters of a chat completion that a model arm passes on; of all others the service knows its own, or none
PASSED_PARAMETERS: Final = frozenset(
    {
        *("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "response_format", "logprobs"),
        *("top_logprobs", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens", "logit_bias"),
        *("max_completion_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "reasoning"),
        *("reasoning_effort", "thinking", "verbosity", "prediction", "prompt_cache_key", "chat_template_kwargs"),
    }
)
#: of a message: fields that are told apart, or come by their own way
_OWN: Final = ("role", "content")
LOGPROBS: Final = "logprobs"


def delta_of(choice: Mapping[str, Any]) -> dict[str, Any]:
    """What a choice of a chunk, or of a whole completion, has beside its content; {} for nothing."""
    part = choice.get("delta") or choice.get("message") or {}
    delta = {name: value for name, value in part.items() if name not in _OWN and value not in (None, [], {})}
    if "tool_calls" in delta:  # a whole message has them without places
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(delta["tool_calls"])]
    return {**delta, LOGPROBS: choice[LOGPROBS]} if choice.get(LOGPROBS) else delta


class MessageParts:
    """A message that grows by deltas."""

    def __init__(self) -> None:
        self._calls: dict[int, dict[str, Any]] = {}
        self._others: dict[str, Any] = {}

    def add(self, delta: Mapping[str, Any]) -> None:
        """Take in the next delta."""
        for name, value in delta.items():
            if name == "tool_calls":
                for call in value:
                    known = self._calls.setdefault(int(call.get("index", 0)), {})
                    _merge(known, {key: part for key, part in call.items() if key != "index"})
            else:
                _merge(self._others, {name: value})

    @property
    def whole(self) -> dict[str, Any]:
        """All that came, by OpenAI's names, tool calls in their order."""
        calls = [call for _, call in sorted(self._calls.items())]
        return {**self._others, **({"tool_calls": calls} if calls else {})}

    def rest(self, whole: Mapping[str, Any]) -> dict[str, Any] | None:
        """The delta that is missing to this whole, {} for none; None where what came is no beginning of it."""
        missing: dict[str, Any] = {}
        for name, value in whole.items():
            if name == "tool_calls":
                rests = [_rest(self._calls.get(place, {}), call) for place, call in enumerate(value)]
                if None in rests:
                    return None
                calls = [{"index": place, **left} for place, left in enumerate(rests) if left]
                missing |= {"tool_calls": calls} if calls else {}
            else:
                left = _rest({name: self._others[name]} if name in self._others else {}, {name: value})
                if left is None:
                    return None
                missing |= left
        return missing


def _merge(known: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Continue what is known: texts and lists grow, but names and ids, which come once."""
    for name, value in part.items():
        before = known.get(name)
        if isinstance(before, dict) and isinstance(value, Mapping):
            _merge(before, value)
        elif (isinstance(before, str) and isinstance(value, str) and name not in ("id", "type", "name")) or (
            isinstance(before, list) and isinstance(value, list)
        ):
            known[name] = before + value  # type: ignore[operator] # both are of one kind
        elif value is not None:
            known[name] = dict(value) if isinstance(value, Mapping) else value


def _rest(known: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is missing of the whole; None: what is known is no beginning of it."""
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
