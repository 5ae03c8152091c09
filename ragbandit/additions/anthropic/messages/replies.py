"""Replies of Anthropic's Messages as chunks of a chat completion, and answers of chats as blocks of Messages."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from ragbandit.shared.dialects.chat.message_parts import thoughts_of
from ragbandit.shared.dialects.thoughts import THINKING
from ragbandit.shared.model_servers.event_reader import reply_counts
from ragbandit.shared.model_servers.token_usage import count_of
from ragbandit.shared.reading.fields import clean_value, flat_text, object_in, objects_in
from ragbandit.shared.reading.input_counts import InputCounts
from ragbandit.shared.types import BLOCKS

#: type of an error -> HTTP status
STATUSES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
#: finish reason of a chat completion -> stop reason of Messages
_STOPS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_REASONS: Final = {*_STOPS.values(), "stop_sequence", "pause_turn", "model_context_window_exceeded"}
#: field of a choice with the vendor's own finish reason; OpenRouter has the same name for it
NATIVE: Final = "native_finish_reason"
#: type of a block whose text is streamed -> field of a chat's answer
_SHOWN: Final = {"text": "content", "thinking": "reasoning_content"}
#: further fields of a reply, which come at its end
DETAILS: Final = ("stop_details", "container", "context_management")
#: fields of a message that are not passed on as further fields of the reply
_PARTS: Final = frozenset({"type", "id", "role", "content", "stop_reason", "stop_sequence", *DETAILS})
#: fields of every block with a call
CALL_FIELDS: Final = frozenset({"type", "id", "name", "input"})
# Shared, since `json.dumps` with options makes an encoder for every call.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)


class ChatChunks:
    """Converts the values of one reply. Values of unknown types are passed on unchanged."""

    def __init__(self, counts: InputCounts | None = None) -> None:
        self._counts = counts or reply_counts()
        #: index of an unfinished block -> (block, name of a field -> its pieces)
        self._open: dict[int | None, tuple[dict[str, Any], dict[str, list[Any]]]] = {}
        self._calls = self._text = 0

    def of(self, value: Any) -> Iterator[Any]:
        """The chunks for a value of the reply. Raises ReplyTooLarge."""
        kind = value.get("type") if isinstance(value, dict) else None
        index = count_of(value.get("index")) if kind else None
        if kind == "message":  # a whole reply
            yield from self.of({"type": "message_start", "message": value})
            blocks = objects_in(value.get("content") or [])
            self._counts.check("parts", len(blocks))
            for index, block in enumerate(blocks):
                yield from self._begin_block(index, block=block)
                yield self._end_block(*self._open.pop(index))
            yield from self.of({"type": "message_delta", "delta": value, "usage": value.get("usage")})
        elif kind == "message_start":
            message = object_in(value, "message")
            yield {name: message[name] for name in message if name not in _PARTS} | _chunk({})
        elif kind == "content_block_start":
            yield from self._begin_block(index, block=object_in(value, "content_block"))
        elif kind == "content_block_delta":
            delta = object_in(value, "delta")
            if index not in self._open:  # some servers send no content_block_start
                kind = str(delta.get("type")).removesuffix("_delta")
                yield from self._begin_block(index, block={"type": "tool_use" if kind == "input_json" else kind})
            yield self._add_delta(*self._open[index], delta=delta)
        elif kind in ("content_block_stop", "message_delta"):
            for place in list(self._open) if kind == "message_delta" else [index]:
                yield self._end_block(*self._open.pop(place, ({}, {})))
            delta = object_in(value, "delta")
            choice = {name: delta.get(name, value.get(name)) for name in ("stop_reason", "stop_sequence", *DETAILS)}
            choice |= {"index": 0, "delta": {}, "finish_reason": delta.get("stop_reason")}
            choice[NATIVE] = delta.get("stop_reason")
            yield {"choices": [choice], "usage": value.get("usage")}
        elif kind == "error" and (error := object_in(value, "error")):
            yield {"error": {**error, "code": STATUSES.get(str(error.get("type")), 500)}}
        else:
            yield {} if kind in ("ping", "message_stop") else value

    def _begin_block(self, index: int | None, *, block: Mapping[str, Any]) -> Iterator[Any]:
        kind, held = str(block.get("type")), dict(block)
        self._counts.check("parts", len(self._open))
        self._counts.add("blocks", clean_value(held)[1])
        self._open[index] = held, {}
        if kind == "tool_use":
            more = {name: block[name] for name in block if name not in CALL_FIELDS}
            # If no delta repeats the input, `_end_block` sends it.
            call = call_of({**block, "input": None}, more=more, empty="")
            held["index"], self._calls = self._calls, self._calls + 1
            yield _chunk({"tool_calls": [call | {"index": held["index"]}]})
        else:
            yield self._add_delta(held, {}, delta={name: block[name] for name in (kind,) if block.get(name)})

    def _add_delta(self, block: Mapping[str, Any], pieces: dict[str, list[Any]], *, delta: Mapping[str, Any]) -> Any:
        kind = str(block.get("type"))
        self._counts.add("blocks", clean_value(delta)[1])
        for name in delta.keys() - {"type"}:
            pieces.setdefault(name, []).append(delta[name])
        if kind == "tool_use":
            piece = {"index": block["index"], "function": {"arguments": delta.get("partial_json")}}
            return _chunk({"tool_calls": [piece]})
        self._text += len(flat_text(delta.get("text"))) if kind == "text" else 0
        return _chunk({_SHOWN[kind]: delta.get(kind)} if kind in _SHOWN else {})

    def _end_block(self, block: dict[str, Any], pieces: Mapping[str, list[Any]]) -> Any:
        kind, at = block.get("type"), {"at": self._text} if self._text else {}
        for name, values in pieces.items():
            if name == "partial_json":
                block["input"] = input_of("".join(map(flat_text, values)))
            elif name == "citation":
                block["citations"] = [*objects_in(block.get("citations") or []), *values]
            else:
                block[name] = flat_text(block.get(name)) + "".join(map(flat_text, values))
        if kind == "tool_use" and block.get("input") and "partial_json" not in pieces:
            function = {"arguments": json.dumps(block["input"], ensure_ascii=False)}
            return _chunk({"tool_calls": [{"index": block["index"], "function": function}]})
        if kind == "text" and block.get("citations"):
            return _chunk({BLOCKS: [{"type": "citations", "citations": block["citations"], **at}]})
        is_known = kind in ("text", "tool_use", None) or (kind == "thinking" and not block.get("signature"))
        return _chunk({} if is_known else {BLOCKS: [{**block, **at}]})


def _chunk(delta: Mapping[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta}]}


def call_of(block: Mapping[str, Any], *, more: Mapping[str, Any], empty: str) -> dict[str, Any]:
    """The tool call of a block. more: further fields of the call. empty: arguments of a call without input."""
    arguments = _ENCODER.encode(block["input"]) if block.get("input") else empty
    function = {"name": block.get("name"), "arguments": arguments}
    return {"id": block.get("id"), "type": "function", "function": function, **more}


def call_block(call: Mapping[str, Any]) -> dict[str, Any]:
    """The block of a tool call, with its further fields."""
    body = object_in(call, "function") or object_in(call, "custom")
    more = {name: call[name] for name in call if name not in ("index", "id", "type", "function", "custom")}
    sent = input_of(body.get("arguments") or body.get("input"))
    return {"type": "tool_use", "id": call.get("id"), "name": body.get("name"), "input": sent, **more}


def input_of(arguments: Any) -> dict[str, Any]:
    """The arguments of a call as an object; {"arguments": text} if the text is not a JSON object; {} for no text."""
    with suppress(ValueError, TypeError, RecursionError):
        value = json.loads(arguments)
        if isinstance(value, dict):
            return value
    return {"arguments": arguments} if arguments else {}


def whole_blocks(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The blocks in a message or delta, without pieces of thoughts, which have no signature (LiteLLM)."""
    blocks = objects_in(fields.get(BLOCKS) or [])
    return [block for block in blocks if block.get("type") != "thinking" or block.get("signature")]


def content_of(message: Mapping[str, Any], *, text: str) -> list[dict[str, Any]]:
    """Convert an answer in the form of a chat to blocks. message: fields of the answer except its text."""
    content, shown = list[dict[str, Any]](), 0
    thoughts, blocks = thoughts_of(message), whole_blocks(message)
    if thoughts and not any(block.get("type") in THINKING for block in blocks):
        content.append({"type": "thinking", "thinking": thoughts, "signature": ""})
    for block in blocks:
        at = count_of(block.get("at")) or 0
        if text[shown:at]:
            content.append({"type": "text", "text": text[shown:at]})
        shown = max(shown, at)
        if block.get("type") != "citations":
            content.append({name: value for name, value in block.items() if name not in ("at", "index")})
        elif content:
            content[-1]["citations"] = block.get("citations")
    rest = text[shown:] + flat_text(message.get("refusal"))
    content += [{"type": "text", "text": rest}] if rest else []
    return content + list(map(call_block, objects_in(message.get("tool_calls") or [])))


def stop_of(choice: Mapping[str, Any], *, finish: str) -> tuple[str, str | None]:
    """Returns (stop reason, stop sequence). choice: further fields of the server's choice. finish: finish reason."""
    matched = next((name for name in map(choice.get, ("stop_reason", "matched_stop")) if isinstance(name, str)), None)
    if matched == "end_turn" and finish == "tool_calls":  # imitations of Messages report this reason after a call
        return "tool_use", None
    if matched in _REASONS or (matched is not None and matched == choice.get(NATIVE)):
        return matched, choice.get("stop_sequence")
    return ("stop_sequence", matched) if finish == "stop" and matched else (_STOPS.get(finish, "end_turn"), None)
