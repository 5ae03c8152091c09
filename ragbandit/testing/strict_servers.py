"""Strict model servers: a request that a vendor refuses gets status 400.

    with ScriptedServer(strict("mistral", "Paris")) as server:
        ...  # a chat that Mistral would refuse gets its status 400

`refusal` reads a body and needs no server. The checks follow the vendors' replies, and share no code with the
product.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal

from ragbandit.testing.openai_server import Reply

#: openai, mistral, deepseek: the vendors' own services. gemini, bedrock: Google's and Amazon's form of chat
#: completions. qwen, gemma: chat templates, as vLLM and llama.cpp fill them
Vendor = Literal["openai", "mistral", "deepseek", "gemini", "bedrock", "qwen", "gemma"]
Faults = Iterator[str]
Body = Mapping[str, Any]

_CHAT_PARTS: Final = ("text", "image_url", "input_audio", "file", "refusal")
_IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_ONLY_OPENAIS: Final = ("prompt_cache_key", "safety_identifier", "store", "verbosity")


def refusal(vendor: Vendor, body: Body) -> str | None:
    """The message of the 400 with which this vendor's server refuses a request; None if it accepts the request."""
    return next(_FAULTS[vendor](body), None)


def strict(vendor: Vendor, reply: Reply | str) -> Callable[[Body], Reply | str]:
    """Replies for a ScriptedServer: status 400 to requests that this vendor refuses, else `reply`."""

    def answer(body: Body) -> Reply | str:
        fault = refusal(vendor, body)
        return reply if fault is None else Reply(status=400, text=fault, code="invalid_request_error")

    return answer


def _order_faults(messages: Sequence[Any]) -> Faults:
    waiting = set[Any]()
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                yield "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            waiting.discard(message.get("tool_call_id"))
            continue
        if waiting:
            yield f"tool_call_ids did not have response messages: {sorted(map(str, waiting))}"
        waiting = {call.get("id") for call in message.get("tool_calls") or []}
    if waiting:
        yield f"tool_call_ids did not have response messages: {sorted(map(str, waiting))}"


def _role_faults(messages: Sequence[Any], known: Sequence[str]) -> Faults:
    for message in messages:
        if message["role"] not in known:
            yield f"unknown variant `{message['role']}`, expected one of {', '.join(known)}"


def _tool_calls(messages: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for message in messages:
        yield from message.get("tool_calls") or []


def _id_faults(messages: Sequence[Any], form: str) -> Faults:
    ids = [call.get("id") for call in _tool_calls(messages)]
    ids += [message.get("tool_call_id") for message in messages if message["role"] == "tool"]
    for one in ids:
        if not isinstance(one, str) or not re.fullmatch(form, one):
            yield f"the id of a tool call is {one!r}, but must match {form}"


def _tool_faults(body: Body, *, form: str) -> Faults:
    names = set[str]()
    for tool in body.get("tools") or []:
        if tool.get("type") != "function":
            yield f"tools of the type {tool.get('type')} are not supported"
            continue
        names.add(tool["function"]["name"])
    for name in [*names, *(call["function"]["name"] for call in _tool_calls(body["messages"]) if "function" in call)]:
        if not re.fullmatch(form, name):
            yield f"the name {name!r} of a function does not match {form}"
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("function", {}).get("name") not in names:
        yield "tool_choice names no function"


def _schema_faults(body: Body) -> Faults:
    for tool in body.get("tools") or []:
        schema = tool.get("function", {}).get("parameters")
        if schema is None:
            continue
        if schema.get("type") != "object" or schema.keys() & {"anyOf", "oneOf", "allOf"}:
            yield "invalid schema: it must have type 'object', and no 'oneOf', 'anyOf' or 'allOf' at the top level"
        yield from _subschema_faults(schema)


def _subschema_faults(schema: Any) -> Faults:
    if not isinstance(schema, dict):
        return
    if not isinstance(schema.get("required", []), list):
        yield "invalid schema: required is no list"
    kind = schema.get("type")
    if kind == "object" and not isinstance(schema.get("properties"), dict):
        yield "invalid schema: object schema missing properties"
    if kind == "array" and "items" not in schema:
        yield "invalid schema: array schema missing items"
    for part in [*(schema.get("properties") or {}).values(), schema.get("items"), *(schema.get("anyOf") or [])]:
        yield from _subschema_faults(part)


def _unknown_parameters(body: Body, names: Sequence[str]) -> Faults:
    for name in names:
        if body.get(name) is not None:
            yield f"Unknown parameter: {name}"


def _cache_mark_faults(body: Body) -> Faults:
    contents = [message.get("content") for message in body["messages"]]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    for part in [*parts, *body["messages"], *(body.get("tools") or [])]:
        if "cache_control" in part:
            yield "Unknown parameter: cache_control"


def _texts_of(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return [part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str)]


def _blank_text_faults(messages: Sequence[Any]) -> Faults:
    for message in messages:
        texts = _texts_of(message)
        if not (message.get("content") or message.get("tool_calls")) or any(not text.strip() for text in texts):
            yield "The text field in the ContentBlock object is blank"


def _image_faults(messages: Sequence[Any], kinds: Sequence[str]) -> Faults:
    for message in messages:
        for part in message["content"] if isinstance(message.get("content"), list) else []:
            url = part.get("image_url", {}).get("url", "") if part.get("type") == "image_url" else ""
            kind = url.removeprefix("data:").partition(";")[0]
            if url.startswith("data:") and kind not in kinds:
                yield f"images of the type {kind} are not supported"


def _argument_faults(messages: Sequence[Any]) -> Faults:
    for call in _tool_calls(messages):
        try:
            is_object = isinstance(json.loads(call["function"]["arguments"]), dict)
        except (ValueError, TypeError):
            is_object = False
        if not is_object:
            yield "the arguments of a call are no JSON object"


def _system_order_faults(messages: Sequence[Any]) -> Faults:
    if any(message["role"] == "system" for message in messages[1:]):
        yield "System message must be at the beginning."


def _first_role_faults(messages: Sequence[Any]) -> Faults:
    spoken = [message["role"] for message in messages if message["role"] != "system"]
    if not spoken or spoken[0] != "user":
        yield "the first message must be from the user"


def _alternation_faults(messages: Sequence[Any]) -> Faults:
    spoken = [message for message in messages if message["role"] != "system" and not message.get("tool_calls")]
    for before, message in pairwise(spoken):
        if message["role"] == before["role"] != "tool":
            yield "Conversation roles must alternate user/assistant/user/assistant/..."


def _openai_faults(body: Body) -> Faults:
    messages = body["messages"]
    yield from _order_faults(messages)
    yield from _id_faults(messages, ".{1,40}")
    yield from _unknown_parameters(body, ("top_k", "min_p", "repetition_penalty"))
    if isinstance(body.get("stop"), list) and len(body["stop"]) > 4:
        yield "Invalid 'stop': array too long. Expected an array with maximum length 4"
    for message in messages:
        if message.get("content") == [] or (message.get("content") is None and not message.get("tool_calls")):
            yield "Invalid type for 'messages.content': expected a string or an array of objects"
    is_new = bool(re.match("gpt-5", str(body.get("model"))))
    functions = [tool for tool in body.get("tools") or [] if not (is_new and tool.get("type") == "custom")]
    yield from _tool_faults(
        {**body, "tools": functions} if functions else {"messages": messages}, form="[a-zA-Z0-9_-]{1,64}"
    )
    yield from _schema_faults(body)
    yield from _cache_mark_faults(body)
    for message in messages:
        for part in message["content"] if isinstance(message.get("content"), list) else []:
            if part.get("type") not in _CHAT_PARTS:
                yield f"Invalid value: '{part.get('type')}'"
            if message["role"] == "tool" and part.get("type") != "text":
                yield "Image URLs are only allowed for messages with role 'user'"
    if re.match(r"o\d|gpt-5$", str(body.get("model"))):
        yield from _unknown_parameters(body, ("temperature", "top_p", "logprobs", "max_tokens"))


def _mistral_faults(body: Body) -> Faults:
    messages = body["messages"]
    yield from _role_faults(messages, ("system", "user", "assistant", "tool"))
    yield from _order_faults(messages)
    yield from _id_faults(messages, "[a-zA-Z0-9]{9}")
    yield from _tool_faults(body, form="[a-zA-Z0-9_-]{1,64}")
    yield from _argument_faults(messages)
    yield from _first_role_faults(messages)
    yield from _unknown_parameters(body, (*_ONLY_OPENAIS, "user", "seed", "max_completion_tokens", "logit_bias"))
    known = {"role", "content", "name", "tool_calls", "tool_call_id", "prefix"}
    before = None
    for message in messages:
        if not message.keys() <= known:
            yield f"Extra inputs are not permitted: {sorted(message.keys() - known)}"
        if before == "tool" and message["role"] in ("user", "system"):
            yield f"Unexpected role '{message['role']}' after role 'tool'"
        if before == "assistant" and message["role"] == "system":
            yield "Unexpected role 'system' after role 'assistant'"
        before = message["role"]
    if before == "assistant" and messages[-1].get("prefix") is not True:
        yield "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"


def _deepseek_faults(body: Body) -> Faults:
    messages = body["messages"]
    yield from _role_faults(messages, ("system", "user", "assistant", "tool"))
    yield from _order_faults(messages)
    yield from _tool_faults(body, form="[a-zA-Z0-9_-]{1,64}")
    if (body.get("response_format") or {}).get("type") == "json_schema":
        yield "This response_format type is unavailable now"


def _gemini_faults(body: Body) -> Faults:
    messages = body["messages"]
    yield from _role_faults(messages, ("system", "user", "assistant", "tool"))
    yield from _order_faults(messages)
    yield from _tool_faults(body, form="[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
    yield from _schema_faults(body)
    yield from _blank_text_faults(messages)
    yield from _first_role_faults(messages)
    yield from _argument_faults(messages)
    yield from _image_faults(messages, ("image/jpeg", "image/png", "image/webp"))
    yield from _unknown_parameters(body, (*_ONLY_OPENAIS, "user", "metadata", "logit_bias", "service_tier"))
    for tool in body.get("tools") or []:
        if tool.get("function", {}).get("parameters", {"properties": 1}).get("properties") == {}:
            yield "properties: should be non-empty for OBJECT type"


def _bedrock_faults(body: Body) -> Faults:
    messages = body["messages"]
    yield from _role_faults(messages, ("system", "user", "assistant", "tool"))
    yield from _order_faults(messages)
    yield from _id_faults(messages, "[a-zA-Z0-9_-]{1,64}")
    yield from _tool_faults(body, form="[a-zA-Z0-9_-]{1,64}")
    yield from _schema_faults(body)
    yield from _blank_text_faults(messages)
    yield from _first_role_faults(messages)
    yield from _image_faults(messages, _IMAGES)
    yield from _unknown_parameters(body, (*_ONLY_OPENAIS, "user", "metadata", "logit_bias"))
    if messages[-1]["role"] == "assistant" and any(text != text.rstrip() for text in _texts_of(messages[-1])[-1:]):
        yield "final assistant content cannot end with trailing whitespace"
    if any(True for _ in _tool_calls(messages)) and not body.get("tools"):
        yield "The toolConfig field must be defined when using toolUse and toolResult content blocks."


def _qwen_faults(body: Body) -> Faults:
    messages = body["messages"]
    yield from _role_faults(messages, ("system", "user", "assistant", "tool"))
    yield from _order_faults(messages)
    yield from _system_order_faults(messages)
    yield from _argument_faults(messages)
    if all(message["role"] != "user" for message in messages):
        yield "No user query found in messages."


def _gemma_faults(body: Body) -> Faults:
    messages = body["messages"]
    yield from _role_faults(messages, ("user", "assistant", "tool"))
    yield from _first_role_faults(messages)
    yield from _alternation_faults(messages)


_FAULTS: Final[Mapping[str, Callable[[Body], Faults]]] = {
    "openai": _openai_faults,
    "mistral": _mistral_faults,
    "deepseek": _deepseek_faults,
    "gemini": _gemini_faults,
    "bedrock": _bedrock_faults,
    "qwen": _qwen_faults,
    "gemma": _gemma_faults,
}
