"""The grammar of the three dialects as examples, and the shapes of large texts that a walk over it gives.

An example has every field and one element of each type in its lists. A shape is a function from a number to a text, in
which one place of the example is large: many equal or numbered elements, unknown names, nested lists, long texts.
"""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[str | int, ...]
Shape = Callable[[int], Any]

_CALL = {"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": '{"a": 1}'}}
_CUSTOM = {"id": "k", "type": "custom", "index": 1, "custom": {"name": "g", "input": "x"}}
_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
_TOKEN = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": -1.0}]}
_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
_MESSAGE = {
    "role": "assistant",
    "content": [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "t"}, _IMAGE, {"type": "input_audio"}],
    "reasoning_content": "r",
    "refusal": "",
    "tool_calls": [_CALL, _CUSTOM],
    "images": [_IMAGE],
    "audio": {"id": "a", "data": "AA=="},
    "annotations": [{"type": "url_citation", "url_citation": {"url": "u", "title": "t"}}],
    "thinking_blocks": [{"type": "thinking", "thinking": "t", "signature": "s", "at": 0}],
}
#: a chunk, and a whole reply, of a chat completion
CHUNK: dict[str, Any] = {
    "id": "x",
    "model": "m",
    "choices": [
        {"index": 0, "delta": {**_MESSAGE, "content": "a"}, "finish_reason": None, "logprobs": {"content": [_TOKEN]}}
    ],
    "usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
}
COMPLETION: dict[str, Any] = {
    **CHUNK,
    "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop", "logprobs": {"content": [_TOKEN]}}],
}
_RESULT = {"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "e"}
_BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": "a", "citations": [{"type": "char_location", "cited_text": "c"}]},
    {"type": "thinking", "thinking": "t", "signature": "s"},
    {"type": "redacted_thinking", "data": "d"},
    {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
    {"type": "web_search_tool_result", "tool_use_id": "s", "content": [_RESULT]},
    {"type": "unknown"},
]
#: a whole reply of Anthropic's Messages
MESSAGE: dict[str, Any] = {
    "type": "message",
    "id": "m",
    "role": "assistant",
    "model": "c",
    "content": _BLOCKS,
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
    "container": {"id": "c"},
}
_DELTAS: list[dict[str, Any]] = [
    {"type": "text_delta", "text": "a"},
    {"type": "thinking_delta", "thinking": "t"},
    {"type": "signature_delta", "signature": "s"},
    {"type": "input_json_delta", "partial_json": "{}"},
    {"type": "citations_delta", "citation": {"type": "char_location", "cited_text": "c"}},
    {"type": "unknown_delta", "x": "y"},
]
#: requests at the three doors
CHAT: dict[str, Any] = {
    "model": "auto",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "q"}, _IMAGE, {"type": "file", "file": {"file_id": "f"}}],
        },
    ],
    "tools": [_TOOL],
    "stop": ["x"],
    "metadata": {"k": "v"},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "user": "u",
}
_SOURCE = {"type": "base64", "media_type": "image/png", "data": "AA=="}
MESSAGES: dict[str, Any] = {
    "model": "auto",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "image", "source": _SOURCE}]},
        {"role": "assistant", "content": _BLOCKS},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}]}],
        },
        {
            "role": "user",
            "content": [
                {"type": "document", "source": {"type": "text", "data": "d"}, "title": "t"},
                {"type": "search_result", "source": "u", "title": "t", "content": [{"type": "text", "text": "x"}]},
            ],
        },
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "metadata": {"user_id": "user_x_session_y"},
    "stop_sequences": ["x"],
}
RESPONSES: dict[str, Any] = {
    "model": "auto",
    "instructions": "i",
    "input": [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "q"}, {"type": "input_image", "image_url": "u"}],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "s"}],
            "encrypted_content": "e",
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "shell_call", "call_id": "s", "action": {"commands": ["ls"]}},
        {"role": "user", "content": "q"},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": {"type": "object"}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
        {"type": "web_search"},
    ],
    "metadata": {"k": "v"},
    "include": ["x"],
    "text": {"format": {"type": "text"}},
}
_NAMES = ("id", "call_id", "tool_call_id", "tool_use_id", "name")


def places(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All places of an example, the outer ones first, with their values."""
    yield path, value
    for key, member in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from places(member, (*path, key))


def with_value(document: Any, path: Path, value: Any) -> Any:
    """A copy with another value at a place."""
    if not path:
        return value
    changed = copy.copy(document)
    changed[path[0]] = with_value(document[path[0]], path[1:], value)
    return changed


def numbered(value: Any, number: int) -> Any:
    """A copy whose ids, names and indexes have this number."""
    if isinstance(value, list):
        return [numbered(one, number) for one in value]
    if not isinstance(value, dict):
        return value
    changed = {name: numbered(member, number) for name, member in value.items()}
    changed |= {name: f"{value[name]}{number}" for name in _NAMES if isinstance(value.get(name), str)}
    return changed | ({"index": number} if "index" in value else {})


def _nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def _forms(value: Any) -> Iterator[tuple[str, Shape]]:
    """The large forms of a value, by name."""
    if isinstance(value, dict):
        yield "names", lambda n: {**value, **{f"x{number}": number for number in range(n)}}
        yield "lists", lambda n: {**value, "x": [[]] * n}
        yield "nested", lambda n: {**value, "x": [_nested(25)] * (n // 25)}
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield f"equal {number}", lambda n, one=one: [one] * n
            yield f"numbered {number}", lambda n, one=one: [numbered(one, place) for place in range(n)]
    elif isinstance(value, str):
        yield "long", lambda n: "a{" * 10 * n
        yield "halves", lambda n: "\ud83d" * n
        yield "parts", lambda n: [{"type": "text", "text": "a"}] * n
        yield "object", lambda n: {f"x{number}": "a" for number in range(n)}


def documents(example: Any) -> Iterator[tuple[str, Shape]]:
    """(name, function from a number to the example with one large place)."""
    for path, value in places(example):
        where = ".".join(map(str, path)) or "whole"
        for name, form in _forms(value):
            yield f"{where} {name}", lambda n, path=path, form=form: with_value(example, path, form(n))


def _branch(document: Any, path: Path) -> Any:
    """The example with only this place, and what says which element it is in."""
    if not path:
        return document
    head, rest = path[0], path[1:]
    if isinstance(document, list):
        return [_branch(document[head], rest)]  # type: ignore[call-overload]
    kept = {name: document[name] for name in ("type", "index") if name in document}
    return {**kept, head: _branch(document[head], rest)}  # type: ignore[index]


def chunks() -> Iterator[tuple[str, Shape]]:
    """(name, function from a number to the chunks of a stream): each place of a chunk in many pieces."""
    begin = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
    for path, value in places(CHUNK):
        if isinstance(value, dict | list) and value:
            continue
        one, where = _branch(CHUNK, path), ".".join(map(str, path))
        yield f"{where} equal", lambda n, one=one: [begin, *[one] * n]
        yield f"{where} numbered", lambda n, one=one: [begin, *(numbered(one, place) for place in range(n))]
        if isinstance(value, str):
            place = tuple(0 if isinstance(key, int) else key for key in path)
            for text in ("{}", "\ud83d", "a"):
                piece = with_value(one, place, text)
                yield (
                    f"{where} {text!r} after a long one",
                    lambda n, one=one, place=place, piece=piece: [
                        with_value(one, place, "[" + "1," * 50 * n),
                        *[piece] * n,
                    ],
                )


def events() -> Iterator[tuple[str, Shape]]:
    """(name, function from a number to the events of a stream of Messages): many blocks, and many pieces of one."""
    start = {"type": "message_start", "message": {**MESSAGE, "content": []}}
    end = [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}, {"type": "message_stop"}]
    for block in _BLOCKS:
        begun = {"type": "content_block_start", "index": 0, "content_block": block}
        stop = {"type": "content_block_stop", "index": 0}
        yield (
            f"{block['type']} blocks",
            lambda n, b=begun, s=stop: [
                start,
                *(one for at in range(n) for one in (numbered(b, at), numbered(s, at))),
                *end,
            ],
        )
        yield f"{block['type']} open", lambda n, b=begun: [start, *(numbered(b, at) for at in range(n)), *end]
        for delta in _DELTAS:
            piece = {"type": "content_block_delta", "index": 0, "delta": delta}
            yield (
                f"{delta['type']} in {block['type']}",
                lambda n, b=begun, p=piece, s=stop: [start, b, *[p] * n, s, *end],
            )
    for delta in _DELTAS:
        piece = {"type": "content_block_delta", "index": 0, "delta": delta}
        yield f"{delta['type']} alone", lambda n, p=piece: [start, *(numbered(p, at) for at in range(n)), *end]
    for one in ({"type": "ping"}, start, *end):
        yield f"{one['type']} repeated", lambda n, one=one: [start, *[one] * n, *end]


def body_of(value: Any) -> bytes:
    """A document as JSON."""
    return json.dumps(value).encode()


def stream_of(values: list[Any], *, named: bool = False) -> bytes:
    """Values as server-sent events. named: with their type as name, as Anthropic sends them; else with OpenAI's end."""
    head = "event: {}\n" if named else ""
    events = [f"{head.format(value.get('type'))}data: {json.dumps(value)}\n\n" for value in values]
    return "".join([*events, *([] if named else ["data: [DONE]\n\n"])]).encode()
