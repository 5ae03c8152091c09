"""Items of a response: converted to messages of a chat, with the tools and the format of a chat completion."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ragbandit.additions.responses.tools import (
    CLIENT_TOOLS,
    SEARCH_OUTPUT,
    brings_only_tools,
    in_namespace,
    offered_names,
    sent_tools,
    tools_of,
)
from ragbandit.router.api.openai.chats import CHAT_PARTS, OTHER_PARTS, TEXT_PARTS, message_schema
from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.shared.dialects.chat.message_parts import reasoning_in
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.model_servers.token_usage import OUTPUT_LIMIT
from ragbandit.shared.reading.fields import flat_text, object_in, objects_in


def _is_only_text(content: object) -> bool:
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
#: types of items with a summary that replaces the turns of a conversation; this service writes the first type
COMPACTIONS: Final = ("compaction", "compaction_summary", "context_compaction")
#: type of the item that ends an input and asks for such a summary
_TRIGGER: Final = "compaction_trigger"
_SUMMARIZE: Final = (
    "Write a summary of this conversation for a model that goes on with it and sees nothing else. Say what the user "
    "wants, what was decided and done, what is left to do, and all names, paths, values and errors that are needed for "
    "it. Reply with the summary only."
)
#: beginning of `encrypted_content` if this service has written the summary
SUMMARY: Final = "ragbandit.summary.v1:"
#: beginning of `encrypted_content` that only OpenAI can read; other providers get text from Codex
_CIPHERTEXT: Final = "gAAAAA"
#: types of results of tools that OpenAI has run itself
_RUN_ELSEWHERE: Final = ("program_output",)
#: fields of an item that belong neither to the arguments of a call nor to its result
_COMMON_FIELDS: Final = frozenset({"type", "id", "call_id", "status", "name", "namespace", "arguments"})


def asks_for_summary(sent: object) -> bool:
    """Whether an input asks for a summary of the conversation, to be brought back in place of its turns."""
    return isinstance(sent, list) and bool(sent) and sent[-1].get("type") == _TRIGGER


def is_reference(item: Mapping[str, Any]) -> bool:
    return item.get("type") == "item_reference" or ("id" in item and not item.keys() & {"type", "role"})


def add_item(messages: list[dict[str, Any]], item: Mapping[str, Any], *, at: str) -> str | None:
    """Append an item of a response to the messages of a chat. Calls of tools become calls of functions, except calls of
    tools of free text. Returns None, or the type of the item if it was left out because no chat model can read it.
    """
    kind = str(item.get("type") or "message")
    call_id = item.get("call_id") or (item.get("id") if kind.endswith((CALL, "shell_call", "_output")) else None)
    if kind == "message":
        _add_message(messages, item, at=at)
    elif kind == "agent_message":
        return _add_agent_message(messages, item, at=at)
    elif kind in COMPACTIONS:
        messages.append({"role": "user", "content": _summary_in(item, at=at)})
    elif kind in _RUN_ELSEWHERE:
        return kind
    elif kind.endswith("_call") and call_id:
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        call = {"id": call_id, **_call_fields(item, kind=kind), **reasoning_in(item)}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind.endswith("_output") and call_id:
        content = _result_content(_tool_output(item, kind=kind), at=f"{at}.output")
        result = {"role": "tool", "tool_call_id": call_id, "content": content}
        messages.insert(_index_for_result(messages, call_id), result)
    else:
        return None if kind == _REASONING else kind
    return None


def _add_message(messages: list[dict[str, Any]], item: Mapping[str, Any], *, at: str) -> None:
    role = item.get("role")
    if role not in _ITEM_ROLES:
        remedy = f"use {', '.join(_ITEM_ROLES)}"
        raise InvalidInput(f"{role!r:.80} is not a role of a message", field=f"{at}.role", remedy=remedy)
    content = item.get("content")
    if isinstance(content, list):
        content = [_chat_part(part, at=f"{at}.content.{place}") for place, part in enumerate(content)]
        if role == "assistant" and _is_only_text(content):  # many model servers accept only text
            content = "".join(part["text"] for part in content)
    if role == "assistant" and messages and messages[-1].get("tool_calls") and messages[-1]["content"] is None:
        messages[-1]["content"] = content  # a tool's results must follow the message with its call
    else:
        messages.append({"role": role, "content": content, **reasoning_in(item)})


def _add_agent_message(messages: list[dict[str, Any]], item: Mapping[str, Any], *, at: str) -> str | None:
    """Append what one agent says to another as a user's message. Returns the name of an unreadable part, or None."""
    sent = item.get("content")
    sent = sent if isinstance(sent, list) else [sent] if sent else []
    converted = [_chat_part(part, at=f"{at}.content.{place}") for place, part in enumerate(sent)]
    texts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in converted]
    parts = [part for part in texts if isinstance(part, Mapping) and part.get("type") != "encrypted_content"]
    if parts:
        messages.append({"role": "user", "content": parts})
    return None if len(parts) == len(sent) and parts else "agent_message.encrypted_content"


def _summary_in(item: Mapping[str, Any], *, at: str) -> str:
    """The summary in an item that stands for earlier turns. Raises Unsupported if another service has written it."""
    text = item.get("encrypted_content")
    if not (isinstance(text, str) and text.startswith(SUMMARY)):
        message = "this summary of earlier turns was written by another service, and only that one can read it"
        remedy = "send the turns themselves, or begin a new conversation"
        raise Unsupported(message, field=f"{at}.encrypted_content", remedy=remedy)
    return f"Summary of the conversation so far:\n\n{text.removeprefix(SUMMARY)}"


def _index_for_result(messages: Sequence[Mapping[str, Any]], call_id: object) -> int:
    """Index for the result of a call: directly after the call, even if agents' messages came between the two."""
    place = len(messages)
    while place and messages[place - 1]["role"] == "user":
        place -= 1
    calls = [message for message in messages[:place] if message["role"] == "assistant"][-1:]
    ids = [call.get("id") for message in calls for call in objects_in(message.get("tool_calls"))]
    return place if call_id in ids else len(messages)


def _tool_output(item: Mapping[str, Any], *, kind: str) -> object:
    """The result of a tool, as the model gets it."""
    output = item.get("output", {name: value for name, value in item.items() if name not in _COMMON_FIELDS})
    if kind == SEARCH_OUTPUT:
        names = ", ".join(offered_names(objects_in(item.get("tools"))))
        return f"Tools that can be called now: {names}" if names else "No tool was found."
    if kind == "apply_patch_call_output":  # its output may be empty, and its status says whether it failed
        return "\n".join(filter(None, [str(item.get("status") or ""), flat_text(item.get("output"))]))
    return output


def add_items(messages: list[dict[str, Any]], items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Append the items of an input to the messages of a chat. Reasoning joins the answer or call that follows it, or
    else the answer or call before it. Returns the types of the items that were left out.
    """
    ignored, pending = list[str](), list[dict[str, Any]]()
    for index, item in enumerate(items):
        if item.get("type") == _REASONING:
            pending.append(_reasoning_fields(item))
            if item.get("encrypted_content") and not pending[-1]:
                ignored.append(f"input.{_REASONING}")
            continue
        if brings_only_tools(item):
            continue
        before = messages[-1:]
        kind = add_item(messages, item, at=f"input.{index}")
        if kind is not None:
            ignored.append(f"input.{kind}")
            continue
        replies = [message for message in (messages[-1], *before) if message["role"] == "assistant"]
        for fields in pending if replies else ():
            texts = [part["reasoning_content"] for part in (replies[0], fields) if part.get("reasoning_content")]
            replies[0].update(fields)
            if texts:
                replies[0]["reasoning_content"] = "\n\n".join(dict.fromkeys(texts))
        pending = []
    return ignored


def _reasoning_fields(item: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a chat message for a reasoning item. This service writes JSON into `encrypted_content`."""
    fields = reasoning_in(item)
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        opaque = json.loads(item["encrypted_content"])
        fields |= reasoning_in(opaque)
        if "reasoning_content" in opaque:  # then the text of the item repeats these fields, see `output_of`
            return fields
    for parts in (item.get("content"), item.get("summary")):
        with suppress(RecursionError):
            text = "\n\n".join(filter(None, map(flat_text, parts if isinstance(parts, list) else [parts])))
            if text:
                return {"reasoning_content": text, **fields}
    return fields


def _call_fields(item: Mapping[str, Any], *, kind: str) -> dict[str, Any]:
    """The fields of a chat's call for an item with a call."""
    if kind == FREE_TEXT_CALL:
        name = in_namespace(str(item.get("name")), item.get("namespace"))
        return {"type": "custom", "custom": {"name": name, "input": flat_text(item.get("input"))}}
    name = str(item.get("name") or kind.removesuffix("_call"))
    arguments, tool = item.get("arguments"), CLIENT_TOOLS.get(kind.removesuffix("_call"))
    if tool is not None and item.get(tool.place) is not None:
        arguments = json.dumps(item[tool.place] if tool.place == "arguments" else {tool.place: item[tool.place]})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {name: value for name, value in item.items() if name not in _COMMON_FIELDS})
    function = {"name": in_namespace(name, item.get("namespace")), "arguments": arguments}
    return {"type": "function", "function": function}


def _result_content(output: object, *, at: str) -> object:
    """The output of a tool as the content of a message: parts if a chat can have parts of these types, else text."""
    if isinstance(output, str) or output in (None, []):
        return output or ""
    outputs = output if isinstance(output, list) else [output]
    parts = [_chat_part(part, at=at) for part in outputs]
    is_readable = all(
        isinstance(part, Mapping) and str(part.get("type")) in (*TEXT_PARTS, *OTHER_PARTS) for part in parts
    )
    return parts if is_readable else json.dumps(output)


def _chat_part(part: object, *, at: str) -> object:
    """Convert a part of an item to a part of a chat completion; parts of unknown types are returned unchanged."""
    if not isinstance(part, Mapping):
        return part
    kind, url, text = str(part.get("type")), part.get("image_url"), part.get("text", part.get("refusal"))
    sealed = part.get("encrypted_content")
    if kind == "encrypted_content" and isinstance(sealed, str) and not sealed.startswith(_CIPHERTEXT):
        return {"type": "text", "text": sealed}
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
_EFFORT: Final = frozenset({"effort", "summary", "generate_summary", "context", "mode"})
#: fields of `reasoning` without an effect here
_REASONING_IGNORED: Final = ("context", "mode")

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
    body: Mapping[str, Any], *, before: Sequence[dict[str, Any]] = (), known: Sequence[Mapping[str, Any]] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Convert the body of a response to a chat completion. before: messages before the input. known: tools of items
    before the input.

    Returns (messages and parameters of that chat completion, names of ignored tools, items and parameters). Raises
    InvalidInput.
    """
    _check_lists(body)
    messages, sent = list(before), body["input"]
    if body.get("instructions"):
        messages.insert(0, {"role": "system", "content": body["instructions"]})
    compacts = asks_for_summary(sent)
    if compacts:
        sent = [*sent[:-1], {"role": "user", "content": _SUMMARIZE}]
    unread = add_items(messages, [{"role": "user", "content": sent}] if isinstance(sent, str) else sent)
    tools, ignored = tools_of([*known, *sent_tools(body)], choice="none" if compacts else body.get("tool_choice"))
    text, reasoning = object_in(body, "text"), object_in(body, "reasoning")
    is_known = reasoning.keys() <= _EFFORT  # otherwise `reasoning` is in a server's own form, such as OpenRouter's
    wants_logprobs = body.get("top_logprobs") or "message.output_text.logprobs" in (body.get("include") or ())
    converted = {
        **tools,
        "response_format": None if compacts else format_of(text.get("format")),
        "reasoning_effort": reasoning.get("effort") if is_known else None,
        "reasoning": None if is_known else reasoning,
        OUTPUT_LIMIT: body.get("max_output_tokens"),
        "verbosity": text.get("verbosity"),
        "logprobs": True if wants_logprobs else None,
    }
    converted = {name: value for name, value in converted.items() if value is not None}
    passed = {name: value for name, value in body.items() if name not in {*_ONLY_HERE, *tools}}
    ignored += unread + [name for name in _IGNORED if body.get(name) is not None]
    ignored += [f"reasoning.{name}" for name in _REASONING_IGNORED if is_known and reasoning.get(name) is not None]
    return {**passed, **converted, "messages": messages}, ignored
