"""A strict server of Anthropic's Messages, for tests: see `ragbandit.testing.strict_servers`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ragbandit.testing.strict_servers import Body, Faults

_IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_NO_LIMITS: Final = ("minimum", "maximum", "minLength", "maxLength", "maxItems", "multipleOf", "uniqueItems")
_PLAIN: Final = "[a-zA-Z0-9_-]+"


def messages_refusal(body: Body) -> str | None:
    """The message of Anthropic's 400 for a request for Messages; None if Anthropic accepts the request."""
    return next(_faults(body), None)


def _faults(body: Body) -> Faults:
    messages = body["messages"]
    if not messages:
        yield "messages: at least one message is required"
        return
    if messages[0]["role"] != "user":
        yield 'messages: first message must use the "user" role'
    yield from _turn_faults(messages)
    for number, message in enumerate(messages):
        yield from _block_faults(_blocks_of(message), where=f"messages.{number}")
    last = messages[-1]
    if last["role"] == "assistant":
        end = _blocks_of(last)[-1]
        if end.get("type") == "tool_use" or end.get("text", "") != end.get("text", "").rstrip():
            yield "messages: final assistant content cannot end with trailing whitespace, nor with a call"
    if not isinstance(body.get("system", ""), str) and any(not part["text"].strip() for part in body["system"]):
        yield "system: text content blocks must be non-empty"
    yield from _option_faults(body)


def _blocks_of(message: Mapping[str, Any]) -> list[Any]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _turn_faults(messages: Sequence[Any]) -> Faults:
    """Yield the faults of turns. Results directly follow calls and begin the user's turn; ids are unique."""
    uses, seen = list[str](), set[str]()
    for number, message in enumerate(messages):
        blocks, where = _blocks_of(message), f"messages.{number}"
        results = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
        if message["role"] == "user":
            if sorted(map(str, results)) != sorted(map(str, uses)):
                yield f"{where}: `tool_use` ids were found without `tool_result` blocks immediately after"
            if any(block.get("type") != "tool_result" for block in blocks[: len(results)]):
                yield f"{where}: tool_result blocks must come first"
            uses = []
        elif message["role"] == "assistant":
            new = [block["id"] for block in blocks if block.get("type") == "tool_use"]
            if not blocks or len(new) != len(set(new)) or seen & set(new):
                yield f"{where}: content is empty, or `tool_use` ids are not unique"
            uses, seen = uses + new, seen | set(new)


def _block_faults(blocks: Sequence[Any], *, where: str) -> Faults:
    for block in blocks:
        if block.get("type") == "text" and not block["text"].strip():
            yield f"{where}: text content blocks must contain non-whitespace text"
        for name in ("id", "tool_use_id"):
            if name in block and not re.fullmatch(_PLAIN, str(block[name])):
                yield f"{where}: {name} must match ^{_PLAIN}$"
        source = block.get("source") or {}
        if block.get("type") == "image" and source.get("type") == "base64" and source.get("media_type") not in _IMAGES:
            yield f"{where}: media_type must be one of {', '.join(_IMAGES)}"
        if isinstance(block.get("content"), list) and block.get("type") == "tool_result":
            yield from _block_faults(block["content"], where=where)


def _option_faults(body: Body) -> Faults:
    names = [tool.get("name") for tool in body.get("tools") or []]
    if len(names) > len(set(names)):
        yield "tools: Tool names must be unique."
    if body.get("thinking") and (body.get("temperature") not in (None, 1) or body.get("top_k")):
        yield "`temperature` may only be set to 1, and `top_k` not at all, when thinking is enabled"
    if "4-5" in str(body.get("model")) and {"temperature", "top_p"} <= body.keys():
        yield "`temperature` and `top_p` cannot both be specified for this model"
    for tool in body.get("tools") or []:
        if tool.get("type") not in (None, "custom"):
            continue
        schema = tool.get("input_schema")
        if not re.fullmatch("[a-zA-Z0-9_-]{1,128}", tool["name"]):
            yield "tools: name must match ^[a-zA-Z0-9_-]{1,128}$"
        if not isinstance(schema, dict) or schema.get("type") != "object":
            yield "tools: input_schema.type must be object"
        elif schema.keys() & {"anyOf", "oneOf", "allOf"} or not isinstance(schema.get("required", []), list):
            yield "tools: input_schema is invalid"
    form = (body.get("output_config") or {}).get("format") or {}
    yield from _schema_faults(form.get("schema"))


def _schema_faults(schema: Any) -> Faults:
    if not isinstance(schema, dict):
        return
    for name in schema.keys() & set(_NO_LIMITS):
        yield f"output_config.format: the keyword {name} is not supported"
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        yield "output_config.format: additionalProperties must be false"
    for part in [*(schema.get("properties") or {}).values(), schema.get("items"), *(schema.get("anyOf") or [])]:
        yield from _schema_faults(part)
