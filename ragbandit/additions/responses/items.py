"""Items of a response: converted to messages of a chat, with the tools and the format of a chat completion."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ragbandit.router.api.openai.chats import CHAT_PARTS, OTHER_PARTS, TEXT_PARTS, message_schema
from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.shared.dialects.chat.message_parts import reasoning_in
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.model_servers.token_usage import OUTPUT_LIMIT
from ragbandit.shared.reading.fields import object_in, objects_in, words_of


def _is_text(content: object) -> bool:
    if not isinstance(content, list):
        return isinstance(content, str)
    texts = (part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text")
    return sum(isinstance(text, str) for text in texts) == len(content)


_ITEM_ROLES: Final = ("user", "assistant", "system", "developer")
CALL, _REASONING = "function_call", "reasoning"
#: type of the call of a tool that gets free text
FREE_TEXT_CALL: Final = "custom_tool_call"
ITEM: Final[dict[str, Any]] = {
    "anyOf": [
        message_schema(roles=_ITEM_ROLES, texts=("input_text", "output_text"), type={"const": "message"}),
        {"required": ["type"], "properties": {"type": {"enum": [CALL, f"{CALL}_output", _REASONING]}}},
    ]
}
#: fields of an item that belong neither to the arguments of a call nor to its result
_HEAD: Final = frozenset({"type", "id", "call_id", "status", "name", "namespace", "arguments"})


def is_reference(item: Mapping[str, Any]) -> bool:
    return item.get("type") == "item_reference" or ("id" in item and not item.keys() & {"type", "role"})


def add_item(messages: list[dict[str, Any]], item: Mapping[str, Any], *, at: str) -> str | None:
    """Append an item of a response to the messages of a chat. Calls of tools become calls of functions, except calls of
    tools of free text. Returns None, or the type of the item if it was left out because no chat model can read it.
    """
    kind, role = str(item.get("type") or "message"), item.get("role")
    call_id = item.get("call_id") or (item.get("id") if kind.endswith((CALL, "shell_call", "_output")) else None)
    if kind == "message":
        if role not in _ITEM_ROLES:
            remedy = f"use {', '.join(_ITEM_ROLES)}"
            raise InvalidInput(f"{role!r:.80} is no role of a message", field=f"{at}.role", remedy=remedy)
        content = item.get("content")
        if isinstance(content, list):
            content = [_item_part(part, at=f"{at}.content.{place}") for place, part in enumerate(content)]
            if role == "assistant" and _is_text(content):  # many model servers accept only text
                content = "".join(part["text"] for part in content)
        if role == "assistant" and messages and messages[-1].get("tool_calls") and messages[-1]["content"] is None:
            messages[-1]["content"] = content  # a tool's results must follow the message with its call
        else:
            messages.append({"role": role, "content": content, **reasoning_in(item)})
    elif kind.endswith("_call") and call_id:
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        call = {"id": call_id, **_called(item, kind=kind), **reasoning_in(item)}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind.endswith("_output") and call_id:
        output = item.get("output", {name: value for name, value in item.items() if name not in _HEAD})
        messages.append({"role": "tool", "tool_call_id": call_id, "content": _result(output, at=f"{at}.output")})
    else:
        return None if kind == _REASONING else kind
    return None


def add_items(messages: list[dict[str, Any]], items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Append the items of an input to the messages of a chat. Reasoning joins the answer or call that follows it, else
    the one before it. Returns the types of the items that were left out.
    """
    ignored, waiting = list[str](), list[dict[str, Any]]()
    for index, item in enumerate(items):
        if item.get("type") == _REASONING:
            waiting.append(_reasoning_fields(item))
            continue
        before = messages[-1:]
        kind = add_item(messages, item, at=f"input.{index}")
        if kind is not None:
            ignored.append(f"input.{kind}")
            continue
        replies = [message for message in (messages[-1], *before) if message["role"] == "assistant"]
        for fields in waiting if replies else ():
            texts = [part["reasoning_content"] for part in (replies[0], fields) if part.get("reasoning_content")]
            replies[0].update(fields)
            if texts:
                replies[0]["reasoning_content"] = "\n\n".join(dict.fromkeys(texts))
        waiting = []
    return ignored


def _reasoning_fields(item: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a chat message for a reasoning item. The `encrypted_content` of our own items is JSON."""
    fields = reasoning_in(item)
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        opaque = json.loads(item["encrypted_content"])
        fields |= reasoning_in(opaque)
        if "reasoning_content" in opaque:  # null: see `output_of`
            return fields
    for parts in (item.get("content"), item.get("summary")):
        with suppress(RecursionError):
            text = "\n\n".join(filter(None, map(words_of, parts if isinstance(parts, list) else [parts])))
            if text:
                return {"reasoning_content": text, **fields}
    return fields


def _called(item: Mapping[str, Any], *, kind: str) -> dict[str, Any]:
    """The fields of a chat's call for an item with a call."""
    if kind == FREE_TEXT_CALL:
        name = in_namespace(str(item.get("name")), item.get("namespace"))
        return {"type": "custom", "custom": {"name": name, "input": words_of(item.get("input"))}}
    name = str(item.get("name") or kind.removesuffix("_call"))
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {name: value for name, value in item.items() if name not in _HEAD})
    function = {"name": in_namespace(name, item.get("namespace")), "arguments": arguments}
    return {"type": "function", "function": function}


def _result(output: object, *, at: str) -> object:
    """The output of a tool as the content of a message: parts if a chat can have parts of these types, else text."""
    if isinstance(output, str) or output in (None, []):
        return output or ""
    outputs = output if isinstance(output, list) else [output]
    parts = [_item_part(part, at=at) for part in outputs]
    is_readable = all(
        isinstance(part, Mapping) and str(part.get("type")) in (*TEXT_PARTS, *OTHER_PARTS) for part in parts
    )
    return parts if is_readable else json.dumps(output)


def _item_part(part: object, *, at: str) -> object:
    """Convert a part of an item to a part of a chat completion; parts of unknown types are returned unchanged."""
    if not isinstance(part, Mapping):
        return part
    kind, url, text = str(part.get("type")), part.get("image_url"), part.get("text", part.get("refusal"))
    if kind == "input_file":
        return {"type": "file", "file": {name: value for name, value in part.items() if name != "type"}}
    if kind == "input_image" and url is None:
        raise InvalidInput("the image has no URL", field=f"{at}.image_url", remedy="send its URL: no files are stored")
    if isinstance(url, str | Mapping):
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {**({"url": url} if isinstance(url, str) else url), **detail}}
    if kind in CHAT_PARTS and text is not None:
        return {"type": CHAT_PARTS[kind], CHAT_PARTS[kind]: text}
    return part


def in_namespace(name: str, space: object) -> str:
    """The name of a function with its namespace as a prefix, because chat completions have no namespaces."""
    return f"{space}__{name}" if space else name


def tools_of(tools: Sequence[Mapping[str, Any]], *, choice: Any) -> tuple[dict[str, Any], list[str]]:
    """Convert the tools of a response to functions and tools of free text. Returns (parameters of chat completions,
    types of ignored tools). Tools that OpenAI runs itself are ignored, or raise Unsupported if `choice` demands one.
    """
    functions: list[dict[str, Any]] = []
    ignored: list[str] = []
    for tool in tools:
        space = tool.get("name") if tool.get("type") == "namespace" else None
        for member in objects_in(tool.get("tools")) if space else (tool,):
            if (member.get("type") or "function") == "function":
                functions.append(_function(member, space=space))
            elif member.get("type") == "custom":
                functions.append(_free_text(member, space=space))
            else:
                ignored.append(f"tools.{member.get('type')}")
    name, mode = None, choice
    if isinstance(choice, Mapping):
        name, mode = _called_name(choice), choice.get("type")
        if mode == "allowed_tools":
            names = [_called_name(tool) for tool in objects_in(choice.get("tools"))]
            functions = [tool for tool in functions if _called_name(tool) in names]
            name, mode = None, choice.get("mode") or "auto"
    is_foreign = mode not in ("none", "auto", "required", "function", "custom", None)
    if is_foreign or (mode in ("required", "function", "custom") and ignored and not functions):
        message = f"tool_choice demands a call of a tool that is not run here ({', '.join(ignored) or mode!s:.80})"
        raise Unsupported(message, field="tool_choice", remedy="send functions of your own, or tool_choice: auto")
    if name is not None:
        kind = "custom" if mode == "custom" else "function"
        mode = {"type": kind, kind: {"name": name}}
    return {"tools": functions or None, "tool_choice": mode}, ignored


def _called_name(tool: Mapping[str, Any]) -> str | None:
    function = tool.get("function") or tool.get("custom")
    name = function.get("name") if isinstance(function, Mapping) else tool.get("name")
    return None if name is None else in_namespace(str(name), tool.get("namespace"))


def _function(tool: Mapping[str, Any], *, space: object) -> dict[str, Any]:
    if isinstance(tool.get("function"), Mapping):  # `tool` has the form of chat completions already
        return dict(tool)
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function | {"name": in_namespace(tool.get("name", ""), space)}}


def _free_text(tool: Mapping[str, Any], *, space: object) -> dict[str, Any]:
    if isinstance(tool.get("custom"), Mapping):
        return dict(tool)
    custom = {name: value for name, value in tool.items() if name != "type" and value is not None}
    form = custom.get("format")
    if isinstance(form, Mapping) and form.get("type") == "grammar" and "grammar" not in form:
        grammar = {name: value for name, value in form.items() if name != "type"}
        custom["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": custom | {"name": in_namespace(tool.get("name", ""), space)}}


def format_of(form: object) -> dict[str, Any] | None:
    """The `response_format` of a chat completion for this `text.format` of a response; None for plain text."""
    if not isinstance(form, Mapping) or form.get("type", "text") == "text":
        return None
    schema = {name: value for name, value in form.items() if name != "type" and value is not None}
    more = {"json_schema": schema.get("json_schema", schema)} if form.get("type") == "json_schema" else {}
    return {"type": form["type"], **more}


#: parameters of a response that chat completions do not have, or have under another name
_ONLY_HERE: Final = frozenset(
    {"input", "instructions", "text", "max_output_tokens", "reasoning", "store", "previous_response_id", "conversation"}
    | {"background", "prompt", "include", "truncation", "max_tool_calls", "client_metadata", "context_management"}
)
#: parameters of responses without an effect here
_IGNORED: Final = ("truncation", "max_tool_calls", "client_metadata", "context_management")
#: fields of `reasoning` that are accepted: those that chat completions have too, and those that change no answer
_EFFORT: Final = frozenset({"effort", "summary", "generate_summary"})

#: parameter with a list -> (type of its values, how an error calls them)
_LISTS: Final = {"tools": (dict, "objects"), "include": (str, "texts")}


def _check_lists(body: Mapping[str, Any]) -> None:
    for name, (kind, words) in _LISTS.items():
        values = body.get(name)
        if values is not None and not (isinstance(values, list) and all(isinstance(value, kind) for value in values)):
            raise InvalidInput(
                f'"{name}" must be a list of {words}', field=name, remedy=f"send a list, or leave {name} out"
            )


def chat_of_items(
    body: Mapping[str, Any], *, before: Sequence[dict[str, Any]] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Convert the body of a response to a chat completion. before: messages that come before the input.

    Returns (messages and parameters of that chat completion, names of ignored tools, items and parameters). Raises
    InvalidInput.
    """
    _check_lists(body)
    messages, sent = list(before), body["input"]
    if body.get("instructions"):
        messages.insert(0, {"role": "system", "content": body["instructions"]})
    unread = add_items(messages, [{"role": "user", "content": sent}] if isinstance(sent, str) else sent)
    tools, ignored = tools_of(body.get("tools") or (), choice=body.get("tool_choice"))
    text, reasoning = object_in(body, "text"), object_in(body, "reasoning")
    is_known = reasoning.keys() <= _EFFORT  # otherwise it is the server's own object, as OpenRouter's
    wants_logprobs = body.get("top_logprobs") or "message.output_text.logprobs" in (body.get("include") or ())
    converted = {
        **tools,
        "response_format": format_of(text.get("format")),
        "reasoning_effort": reasoning.get("effort") if is_known else None,
        "reasoning": None if is_known else reasoning,
        OUTPUT_LIMIT: body.get("max_output_tokens"),
        "verbosity": text.get("verbosity"),
        "logprobs": True if wants_logprobs else None,
    }
    converted = {name: value for name, value in converted.items() if value is not None}
    passed = {name: value for name, value in body.items() if name not in {*_ONLY_HERE, *tools}}
    ignored += unread + [name for name in _IGNORED if body.get(name) is not None]
    return {**passed, **converted, "messages": messages}, ignored
