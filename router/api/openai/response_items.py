"""Items of Open Responses as the messages of a chat completion, and its tools and forms by their names."""

from collections.abc import Mapping
from typing import Any, Final

from ragbandit.router.api.openai.chats import message_schema
from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.shared.errors import InvalidInput

_ROLES: Final = ("user", "assistant", "system", "developer")
#: types of parts of messages -> those of chat completions
_PARTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "input_image": "image_url",
    "input_file": "file",
}
#: items of a conversation with tools
CALL, _RESULT, _REASONING = "function_call", "function_call_output", "reasoning"
_STRING: Final[dict[str, Any]] = {"type": "string"}
_TEXTS: Final = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
_FILES: Final[dict[str, dict[str, Any]]] = {"input_image": {"image_url": _STRING}, "input_file": {}}
ITEM: Final[dict[str, Any]] = {
    "anyOf": [
        message_schema(roles=_ROLES, texts=_TEXTS, others=_FILES, type={"const": "message"}),
        {
            "required": ["type", "call_id", "name", "arguments"],
            "properties": {"type": {"const": CALL}, "call_id": _STRING, "name": _STRING, "arguments": _STRING},
        },
        {
            "required": ["type", "call_id", "output"],
            "properties": {"type": {"const": _RESULT}, "call_id": _STRING, "output": _STRING},
        },
        {"required": ["type"], "properties": {"type": {"const": _REASONING}}},
    ]
}


def add_item(messages: list[dict[str, Any]], item: Mapping[str, Any], *, at: str) -> None:
    """Add an item of a conversation to the messages of a chat."""
    kind, role = item.get("type") or "message", item.get("role")
    if kind == _REASONING:
        return
    if kind == CALL:
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(call)
        return
    if kind == _RESULT:
        output = item.get("output")
        text = output if isinstance(output, str) else _content(output, at=f"{at}.output")
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
        return
    if kind != "message":
        message = f"items are messages and calls of functions, not {kind!s:.40}"
        raise Unsupported(message, field=f"{at}.type", remedy="send items of the type message")
    if role not in _ROLES:
        remedy = f"use {', '.join(_ROLES)}"
        raise InvalidInput(f"{role!r:.80} is no role of a message", field=f"{at}.role", remedy=remedy)
    messages.append({"role": role, "content": _content(item.get("content"), at=f"{at}.content")})


def _content(content: object, *, at: str) -> object:
    """The content of a message, its parts as those of a chat completion."""
    if not isinstance(content, list):
        return content
    return [_part(part, at=f"{at}.{index}") for index, part in enumerate(content)]


def _part(part: object, *, at: str) -> object:
    if not isinstance(part, Mapping) or part.get("type") not in _PARTS:
        kind = part.get("type") if isinstance(part, Mapping) else part
        message = f"parts of messages are {', '.join(_PARTS)}, not {kind!s:.40}"
        raise Unsupported(message, field=f"{at}.type", remedy="send the text of it, as a part of the type input_text")
    kind, rest = _PARTS[part["type"]], {name: value for name, value in part.items() if name != "type"}
    if kind == "image_url":
        image = {"url": part.get("image_url"), **({"detail": part["detail"]} if part.get("detail") else {})}
        return {"type": kind, kind: image}
    if kind == "file":
        return {"type": kind, kind: rest}
    return {"type": kind, kind: part.get("text", part.get("refusal"))}


def tool_of(tool: Mapping[str, Any], *, at: str) -> dict[str, Any]:
    """A function as chat completions have it. Raises Unsupported for a tool that OpenAI runs itself."""
    if tool.get("type") != "function":
        message = f"tools are functions of the caller, not {tool.get('type')!s:.40}"
        raise Unsupported(message, field=f"{at}.type", remedy="send tools of the type function")
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function}


def choice_of_tool(choice: str | Mapping[str, Any] | None) -> Any:
    """The choice of a tool as chat completions have it."""
    if isinstance(choice, Mapping) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def format_of(form: object) -> dict[str, Any] | None:
    """The form of the answer as chat completions have it; None: text."""
    if not isinstance(form, Mapping) or form.get("type", "text") == "text":
        return None
    schema = {name: value for name, value in form.items() if name != "type" and value is not None}
    return {"type": form["type"], **({"json_schema": schema} if form.get("type") == "json_schema" else {})}
