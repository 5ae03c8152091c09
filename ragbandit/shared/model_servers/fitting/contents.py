"""Fits the contents of messages: blank texts, images, results of tools, cache marks, arguments of calls."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ragbandit.shared.model_servers.fitting.fitted import RequestChanges
from ragbandit.shared.model_servers.fitting.kinds import MARK, ServerFeatures
from ragbandit.shared.reading.fields import flat_text, object_in, objects_in

#: text in place of a blank one that a server would refuse
BLANK: Final = "(empty)"
#: beginning of the base64 of a file -> its type
_MAGIC: Final = {
    "/9j/": "image/jpeg",
    "iVBORw0KGgo": "image/png",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
}
#: names that clients write -> the type
_ALIASES: Final = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}


def with_texts(message: Mapping[str, Any], before: Sequence[str] = (), after: Sequence[str] = ()) -> dict[str, Any]:
    """The message with further texts before and after its content."""
    content = message.get("content")
    if isinstance(content, list):
        first, last = ([{"type": "text", "text": text} for text in texts] for texts in (before, after))
        return {**message, "content": [*first, *content, *last]}
    return {**message, "content": "\n\n".join(filter(None, [*before, flat_text(content), *after]))}


def message_text(message: Mapping[str, Any]) -> str:
    """The texts of a message, joined."""
    content = message.get("content")
    return "\n\n".join(filter(None, map(flat_text, content if isinstance(content, list) else [content])))


def join_messages(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join messages into one: contents and calls of all, other fields from the first message that has them."""
    if len(messages) == 1:
        return dict(messages[0])
    whole = dict(messages[0])
    for message in messages[1:]:
        for name, value in message.items():
            whole.setdefault(name, value)
    contents = [content for content in (message.get("content") for message in messages) if content]
    if all(isinstance(content, str) for content in contents):
        whole["content"] = "\n\n".join(contents) if contents else None
    else:
        parts = [content if isinstance(content, list) else [content] for content in contents]
        whole["content"] = [
            part if isinstance(part, dict) else {"type": "text", "text": flat_text(part)}
            for one in parts
            for part in one
        ]
    calls = [call for message in messages for call in objects_in(message.get("tool_calls") or [])]
    return whole | ({"tool_calls": calls} if calls else {})


def media_type(declared: str, *, data: str) -> str:
    """The media type of an image, by the beginning of its base64 (`data`) if it is known, else as declared."""
    known = next((kind for begin, kind in _MAGIC.items() if data.startswith(begin)), None)
    plain = declared.lower().partition(";")[0].strip()
    return known or _ALIASES.get(plain, plain)


def fit_contents(body: dict[str, Any], *, server: ServerFeatures, changes: RequestChanges) -> None:
    """Fit the contents of a chat completion."""
    messages = list[Any]()
    for message in body["messages"]:
        changed = _fit_message(message, server=server, changes=changes)
        messages += [] if changed is None else [changed]
    if not server.blank_end:
        kept = without_blank_end(messages)
        changes.changed |= {"messages.content"} if kept != messages else set()
        messages = kept
    body["messages"] = _results_as_text(messages, changes=changes) if server.text_results else messages
    if not server.cache_marks:
        tools = body.get("tools")
        if isinstance(tools, list) and any(_is_marked(tool) for tool in tools):
            body["tools"] = [_unmarked(tool) for tool in tools]
            changes.changed.add(MARK)
        if body.pop(MARK, None) is not None:
            changes.changed.add(MARK)


def _fit_message(message: dict[str, Any], *, server: ServerFeatures, changes: RequestChanges) -> dict[str, Any] | None:
    """The message in a form that the server takes; None if nothing of it is left."""
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    if not server.cache_marks and (MARK in message or (parts and any(map(_is_marked, parts)))):
        message = _unmarked(message) | ({"content": list(map(_unmarked, parts))} if parts else {})
        changes.changed.add(MARK)
    if server.message_fields is not None and not message.keys() <= server.message_fields:
        left_out = [name for name in message if name not in server.message_fields]
        changes.changed |= {f"messages.{name}" for name in left_out if message[name] not in (None, [], "")}
        message = {name: value for name, value in message.items() if name in server.message_fields}
    if server.images is not None and parts:
        message = _fit_images(message, changes=changes)
    calls = message.get("tool_calls")
    if server.json_arguments and isinstance(calls, list) and calls:
        message = _with_json_calls(message, calls=calls, changes=changes)
    if content in (None, []) and (content == [] or not calls):
        empty: Any = None if calls and message.get("role") == "assistant" else ""
        message = message if content is None and message.get("function_call") else {**message, "content": empty}
    if not server.blank:
        message = _without_blanks(message, changes=changes)
        if not message.get("content") and not calls:
            if message.get("role") not in ("user", "tool"):
                return None
            message = {**message, "content": BLANK}
    return message


def _without_blanks(message: dict[str, Any], *, changes: RequestChanges) -> dict[str, Any]:
    content = message.get("content")
    kept: Any = [part for part in content if not is_blank_part(part)] if isinstance(content, list) else content
    kept = None if is_blank_part(content) else kept
    if kept == content:
        return message
    changes.changed.add("messages.content")
    return {**message, "content": kept}


def is_blank_part(part: Any) -> bool:
    """Whether a part or block is a text without words."""
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
    return isinstance(text, str) and not text.strip()


def without_blank_end(messages: list[Any]) -> list[Any]:
    """The messages without white space at the end of a last text of the assistant, and without such empty messages."""
    while messages and messages[-1].get("role") == "assistant" and not messages[-1].get("tool_calls"):
        content = messages[-1].get("content")
        kept = _without_blank_end(content)
        if kept == content and kept not in ("", []):
            break
        messages = messages[:-1] if kept in ("", []) else [*messages[:-1], {**messages[-1], "content": kept}]
    return messages


def _without_blank_end(content: Any) -> Any:
    if isinstance(content, str):
        return content.rstrip()
    size = len(content) if isinstance(content, list) else 0
    while size and is_blank_part(content[size - 1]):
        size -= 1
    last = content[size - 1] if size else None
    if not isinstance(last, dict) or last.get("type") != "text" or not isinstance(last.get("text"), str):
        return content[:size] if isinstance(content, list) else content
    text = last["text"].rstrip()
    return [*content[: size - 1], last if text == last["text"] else {**last, "text": text}]


def _fit_images(message: dict[str, Any], *, changes: RequestChanges) -> dict[str, Any]:
    parts = [_fit_image(part) for part in message["content"]]
    if parts == message["content"]:
        return message
    changes.changed.add("messages.content")
    return {**message, "content": parts}


def _fit_image(part: Any) -> Any:
    image = part.get("image_url") if isinstance(part, dict) and part.get("type") == "image_url" else None
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str) or not url.startswith("data:") or ";base64," not in url:
        return part
    head, _, data = url.partition(";base64,")
    kind = media_type(head.removeprefix("data:"), data=data)
    right = f"data:{kind};base64,{data}"
    if right == url:
        return part
    return {**part, "image_url": {**image, "url": right} if isinstance(image, dict) else right}


def _with_json_calls(message: dict[str, Any], *, calls: list[Any], changes: RequestChanges) -> dict[str, Any]:
    """The message with a JSON object as arguments of each call."""
    right = [_with_json_arguments(call) for call in calls]
    if right == calls:
        return message
    changes.changed.add("tool_calls.arguments")
    return {**message, "tool_calls": right}


def _with_json_arguments(call: Any) -> Any:
    function = object_in(call, "function") if isinstance(call, dict) else {}
    arguments = function.get("arguments")
    if not function or (isinstance(arguments, str) and _is_object(arguments)):
        return call
    if isinstance(arguments, dict):
        text = json.dumps(arguments, ensure_ascii=False)
    else:
        text = json.dumps({"arguments": arguments} if arguments else {}, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _results_as_text(messages: Sequence[Any], *, changes: RequestChanges) -> list[Any]:
    """The messages with results of tools as texts. A user's message after them has their images and files."""
    placed, media = list[Any](), list[Any]()
    for message in messages:
        content = message.get("content")
        if message.get("role") == "tool" and isinstance(content, list):
            others = list(filter(_is_media, content))
            texts = [{"type": "text", "text": "(below)"} if _is_media(part) else part for part in content]
            placed.append({**message, "content": texts} if others else message)
            media += others
            continue
        if media and message.get("role") != "tool":
            placed.append({"role": "user", "content": media})
            media = []
            changes.changed.add("messages.content")
        placed.append(message)
    if media:
        placed.append({"role": "user", "content": media})
        changes.changed.add("messages.content")
    return placed


def _is_media(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") not in ("text", None)


def _is_marked(part: Any) -> bool:
    return isinstance(part, dict) and (MARK in part or MARK in object_in(part, "function"))


def _unmarked(part: Any) -> Any:
    if not _is_marked(part):
        return part
    kept = {name: value for name, value in part.items() if name != MARK}
    function = object_in(kept, "function")
    if MARK in function:
        kept["function"] = {name: value for name, value in function.items() if name != MARK}
    return kept
