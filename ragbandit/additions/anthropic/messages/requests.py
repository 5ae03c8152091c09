"""Requests of Anthropic's Messages as chat completions, and back. Nothing here sends or waits."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from ragbandit.additions.anthropic.messages.replies import CALL_FIELDS, call_of, content_of
from ragbandit.additions.anthropic.messages.thoughts import is_foreign
from ragbandit.shared.dialects.chat.message_parts import reasoning_in
from ragbandit.shared.dialects.thoughts import THINKING, blocks_of
from ragbandit.shared.model_servers.efforts import sent_effort
from ragbandit.shared.model_servers.fitting.kinds import MARK
from ragbandit.shared.reading.fields import flat_text, object_in, objects_in
from ragbandit.shared.types.encodings import Encoding

#: name of this dialect
DIALECT: Final = "messages"
#: id of a message = this prefix + id of its decision
MESSAGE_PREFIX: Final = "msg_"
#: need of a request with blocks or tools that only servers of this dialect read. Only arms whose model offers it are
#: drawn for the request
NEED: Final = "anthropic"
#: beginning of a text of Claude Code that is left out: it differs in every request, so it would defeat caches
_BILLING: Final = "x-anthropic-billing-header:"
_SAME: Final = ("max_tokens", "temperature", "top_p", "top_k")
#: Anthropic's parameters, which a chat completion may contain for a server of Messages
_NATIVE: Final = ("thinking", "output_config", "mcp_servers", "container", "context_management", MARK)
#: parameters that `chat_of` and `messages_of` convert
_READ: Final = {*_SAME, "messages", "system", "stop_sequences", "tools", "tool_choice", "thinking", "output_config"}
CONVERTED: Final = {"messages", "max_completion_tokens", "stop", "tools", "tool_choice", "parallel_tool_calls"} | {
    *("response_format", "reasoning_effort", "user", "safety_identifier", *_SAME, *_NATIVE)
}
_MODES: Final = {"auto": "auto", "any": "required", "none": "none"}
#: (smallest budget of thinking tokens, effort), the largest budget first
_EFFORTS: Final = ((4096, "high"), (2048, "medium"), (0, "low"))
_NO_PARAMETERS: Final = {"type": "object", "properties": {}}


def chat_of(
    body: Mapping[str, Any], encoding: Encoding | None = None, *, joined: bool = False
) -> tuple[dict[str, Any], set[str]]:
    """Convert a request for Messages. Returns (chat completion, types of blocks and tools that it cannot have).

    encoding: the body's JSON; it caches converted parts.
    joined: whether texts after the results of tools become part of the last result, so that the results end the chat.
    """
    encoding = Encoding() if encoding is None else encoding
    foreign = {"mcp_servers"} if body.get("mcp_servers") else set[str]()
    messages = list(encoding.converted(body.get("system"), _system_messages, form="chat"))
    convert, join = partial(_chat_messages, foreign=foreign), partial(_user_turn, joined=True, foreign=foreign)
    for message in body["messages"]:
        if not isinstance(message.get("content"), list):
            messages.append(message)
            continue
        parts = encoding.converted(message, convert, form="chat")
        if joined and 0 < [*map(_block_type, blocks_of(message["content"]))].count("tool_result") < len(parts):
            parts = encoding.converted(message, join, form="joined")
        messages += parts
    config, budget = object_in(body, "output_config"), object_in(body, "thinking").get("budget_tokens")
    effort, form = sent_effort(body), object_in(config, "format")
    effort = effort_of_budget(budget) if effort is None else effort
    chat = {name: body.get(name) for name in _SAME} | {"messages": messages, "stop": body.get("stop_sequences")}
    chat |= {"reasoning_effort": "high" if effort == "max" else effort}
    chat |= _chat_tools(body, encoding=encoding, foreign=foreign)
    if form.get("type") == "json_schema":
        schema = {"name": "answer", "schema": form.get("schema"), "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return {name: value for name, value in chat.items() if value is not None}, foreign


def effort_of_budget(budget: object) -> str | None:
    """The effort for a budget of thinking tokens. None if the budget is not a whole number, or negative."""
    if not isinstance(budget, int):
        return None
    return next((name for least, name in _EFFORTS if budget >= least), None)


def unread(body: Mapping[str, Any]) -> list[str]:
    """The parameters of a request for Messages that a chat completion cannot have."""
    read = {*_READ, "metadata", "reasoning_effort"}
    return [name for name in body if name not in read]


def _join_texts(parts: Sequence[Mapping[str, Any]], *, by: str) -> Any:
    """Join the texts of the parts with `by`; return the parts if some are not texts. Many servers read only texts."""
    texts = [part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str)]
    return by.join(texts) if len(texts) == len(parts) else list(parts)


def _block_type(block: Mapping[str, Any]) -> Any:
    return block.get("type")


def _system_messages(system: Any) -> list[dict[str, Any]]:
    texts = [text for part in blocks_of(system) if not (text := flat_text(part)).startswith(_BILLING)]
    return [{"role": "system", "content": "\n\n".join(texts)}] if texts else []


def _chat_messages(message: Mapping[str, Any], *, foreign: set[str]) -> list[dict[str, Any]]:
    """The messages of a chat for a message with blocks."""
    if message.get("role") == "assistant":
        return [_assistant_message(message["content"], foreign=foreign)]
    return _user_turn(message, joined=False, foreign=foreign)


def _assistant_message(content: Any, *, foreign: set[str]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    parts, thoughts, calls = list[Any](), list[str](), list[Any]()
    for block in blocks_of(content):
        if block.get("type") in THINKING:  # signed thoughts are left out, because only Anthropic's models read them
            thoughts += [flat_text(block.get("thinking"))] if is_foreign(block) else []
        elif block.get("type") == "tool_use":
            more = {} if block.keys() <= CALL_FIELDS else reasoning_in(block)
            calls.append(call_of(block, more=more, empty="{}"))
        else:
            parts.append(_chat_part(block, foreign=foreign))
    message["content"] = _join_texts(parts, by="") if parts else None
    further = {"tool_calls": calls, "reasoning_content": "\n\n".join(filter(None, thoughts))}
    return message | {name: value for name, value in further.items() if value}


def _user_turn(message: Mapping[str, Any], *, joined: bool, foreign: set[str]) -> list[dict[str, Any]]:
    """The chat's messages for a user's turn: first the results of tools, then the rest with the results' images.

    joined: whether the rest and the images become part of the last result instead.
    """
    results, rest = list[dict[str, Any]](), list[Mapping[str, Any]]()
    for block in blocks_of(message["content"]):
        if block.get("type") != "tool_result":
            rest.append(_chat_part(block, foreign=foreign))
            continue
        blocks = blocks_of(block.get("content"))
        content = _join_texts(blocks, by="\n")
        if isinstance(content, str) and not block.get("is_error"):
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content})
            continue
        parts = [_chat_part(part, foreign=foreign) for part in blocks]
        parts = [{"type": "text", "text": "Error:"}, *parts] if block.get("is_error") else parts
        if not joined:  # most servers read only texts in results of tools
            rest += [part for part in parts if part.get("type") != "text"]
            parts = [part if part.get("type") == "text" else {"type": "text", "text": "(below)"} for part in parts]
        content = _join_texts(parts, by="\n")
        results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content})
    if joined and results:
        if rest:
            results[-1]["content"] = _join_texts([*blocks_of(results[-1]["content"]), *rest], by="\n")
        return results
    return [*results, {**message, "content": _join_texts(rest, by="\n\n")}] if rest or not results else results


def _chat_part(block: Mapping[str, Any], *, foreign: set[str]) -> Mapping[str, Any]:
    """The chat's part for a block. If no part can express the block, adds its type to `foreign`; returns the block."""
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": block.get("text")}
    source, title = object_in(block, "source"), flat_text(block.get("title"))
    url, text = source.get("url"), flat_text(source.get("data") or source.get("content"))
    if source.get("type") == "base64":
        url = f"data:{source.get('media_type')};base64,{text}"
    if kind == "image" and isinstance(url, str):
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "document" and isinstance(url, str):
        field = "file_data" if url.startswith("data:") else "file_url"
        return {"type": "file", "file": {"filename": title or "document.pdf", field: url}}
    if kind == "tool_reference":  # a tool that a search for tools found
        return {"type": "text", "text": f"Tool: {flat_text(block.get('tool_name'))}"}
    if kind == "search_result":
        text = f"{flat_text(block.get('source'))}\n{flat_text(block.get('content'))}"
    elif kind != "document" or not text:
        foreign.add(str(kind))
        return block
    return {"type": "text", "text": f"{title}\n{text}".strip()}


def _chat_tools(body: Mapping[str, Any], *, encoding: Encoding, foreign: set[str]) -> dict[str, Any]:
    tools, choice = list[dict[str, Any]](), object_in(body, "tool_choice")
    convert = partial(_chat_function, foreign=foreign)
    for tool in objects_in(body.get("tools") or []):
        tools += encoding.converted(tool, convert, form="chat")
    mode: Any = _MODES.get(str(choice.get("type")))
    if choice.get("type") == "tool":
        mode = {"type": "function", "function": {"name": choice.get("name")}}
    is_single = choice.get("disable_parallel_tool_use") is True
    return {"tools": tools or None, "tool_choice": mode, "parallel_tool_calls": False if is_single else None}


def _chat_function(tool: Mapping[str, Any], *, foreign: set[str]) -> list[dict[str, Any]]:
    """A list of the function for a tool; [] for a tool that Anthropic's servers run: its type is added to `foreign`."""
    if tool.get("type") not in (None, "custom"):
        foreign.add(f"tools.{tool.get('type')}")
        return []
    function = {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}
    function["parameters"] = tool.get("input_schema") or _NO_PARAMETERS
    return [{"type": "function", "function": function}]


def messages_of(chat: Mapping[str, Any], *, max_tokens: int) -> dict[str, Any]:
    """Convert a chat completion to a request for Messages, with the parameters in CONVERTED. max_tokens: limit if the
    chat has none, since servers require one.
    """
    system, messages = list[dict[str, Any]](), list[dict[str, Any]]()
    for message in chat["messages"]:
        role = message.get("role")
        if role in ("system", "developer"):
            system += _with_cache_mark(_message_blocks(message), mark=message.get(MARK))
            continue
        content = _message_blocks(message)
        if role in ("tool", "function"):
            content = [{"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": content}]
        content = _with_cache_mark(content, mark=message.get(MARK))
        role = "assistant" if role == "assistant" else "user"
        if content and messages and messages[-1]["role"] == role:
            messages[-1]["content"] += content  # the results of parallel calls must be in one message
        elif content:
            messages.append({"role": role, "content": content})
    limits = [chat[name] for name in ("max_tokens", "max_completion_tokens") if isinstance(chat.get(name), int)]
    body = {name: value for name in (*_SAME, *_NATIVE) if (value := chat.get(name)) is not None}
    body |= {"messages": messages, "max_tokens": min(limits, default=max_tokens), **_native_tools(chat)}
    stop, user, config = chat.get("stop"), chat.get("safety_identifier") or chat.get("user"), dict[str, Any]()
    stops = [text for text in (stop if isinstance(stop, list) else [stop]) if isinstance(text, str) and text.strip()]
    form, effort = object_in(chat, "response_format"), chat.get("reasoning_effort")
    if form.get("type") == "json_schema":
        config["format"] = {"type": "json_schema", "schema": object_in(form, "json_schema").get("schema")}
    if isinstance(effort, str) and effort not in ("none", "minimal"):
        config["effort"], body["thinking"] = effort, body.get("thinking") or {"type": "adaptive"}
    if object_in(body, "thinking").get("type") in ("enabled", "adaptive"):
        body.pop("temperature", None)  # servers refuse a temperature together with thinking
    elif isinstance(body.get("temperature"), int | float):
        body["temperature"] = min(1.0, body["temperature"])
    more = {"system": system, "stop_sequences": stops, "output_config": config | object_in(body, "output_config")}
    body |= {name: value for name, value in more.items() if value}
    body |= {"metadata": {"user_id": user}} if isinstance(user, str) and user else {}
    return body


def _message_blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a message, without empty texts and unsigned thoughts, which servers refuse."""
    content, kept = message.get("content"), list[dict[str, Any]]()
    if message.get("role") == "assistant":
        is_text = isinstance(content, str) or content is None
        kept = content_of(message, text=content or "" if is_text else "")
        content = None if is_text else content
        kept = [block for block in kept if not is_foreign(block)]
    parts = [_native_block(part) for part in blocks_of(content)]
    calls = [block for block in kept if block.get("type") == "tool_use"]
    others = [block for block in kept if block.get("type") != "tool_use"]
    return others + [part for part in parts if part.get("text") != ""] + calls


def _native_block(part: dict[str, Any]) -> dict[str, Any]:
    kind, image, file = part.get("type"), part.get("image_url"), object_in(part, "file")
    url = flat_text(image.get("url") if isinstance(image, dict) else image)
    url = url or flat_text(file.get("file_data") or file.get("file_url"))
    head, comma, data = url.partition(";base64,")
    media = head.removeprefix("data:").partition(";")[0]
    source = {"type": "base64", "media_type": media, "data": data} if comma else {"type": "url", "url": url}
    block: dict[str, Any] = {"type": "text", "text": flat_text(part.get("text") or part.get("refusal"))}
    if kind in ("image_url", "file"):
        block = {"type": "image" if kind == "image_url" else "document", "source": source}
        block |= {"title": file["filename"]} if file.get("filename") else {}
    elif kind not in ("text", "refusal", None):
        return part
    return block | ({MARK: part[MARK]} if part.get(MARK) else {})


def _with_cache_mark(blocks: list[dict[str, Any]], *, mark: Any) -> list[dict[str, Any]]:
    """Put the cache mark of a message, if it has one, on its last block that is not a thought."""
    at = next((at for at in range(len(blocks) - 1, -1, -1) if blocks[at].get("type") not in THINKING), None)
    if not mark or at is None:
        return blocks
    return [*blocks[:at], {MARK: mark, **blocks[at]}, *blocks[at + 1 :]]


def _native_tools(chat: Mapping[str, Any]) -> dict[str, Any]:
    tools, choice, mode = list[Mapping[str, Any]](), chat.get("tool_choice"), dict[str, Any]()
    for tool in objects_in(chat.get("tools") or []):
        function = object_in(tool, "function")
        fields = {name: function[name] for name in ("name", "description", "strict") if function.get(name) is not None}
        schema = function.get("parameters") or _NO_PARAMETERS
        mark = tool.get(MARK) or function.get(MARK)
        fields |= {"input_schema": schema, **({MARK: mark} if mark else {})}
        tools.append(fields if function else tool)  # a tool without a function is run by the server
    if isinstance(choice, dict):
        mode = {"type": "tool", "name": object_in(choice, "function").get("name")}
    elif choice in _MODES.values():
        mode = {"type": next(name for name, known in _MODES.items() if known == choice)}
    if chat.get("parallel_tool_calls") is False:
        mode = (mode or {"type": "auto"}) | {"disable_parallel_tool_use": True}
    return {"tools": tools, **({"tool_choice": mode} if mode else {})} if tools else {}
