"""Bodies of other interfaces at the door of chat completions, as Cursor and some proxies send them."""

from collections.abc import Mapping
from typing import Any, Final

from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.router.api.openai.items import as_chat
from ragbandit.shared.dialects.messages.requests import chat_of, is_signed
from ragbandit.shared.model_servers.fitting.kinds import MARK
from ragbandit.shared.reading.fields import listed, object_in

#: blocks of Anthropic's Messages that chat completions have in another form
_BLOCKS: Final = ("tool_use", "tool_result", "image", "document", "thinking", "redacted_thinking")
#: parameters of responses that need their own endpoint
_STORED: Final = ("previous_response_id", "conversation", "prompt", "background")


def as_completion(body: object) -> tuple[object, list[str]]:
    """Convert a body in the form of a response (`input`), with tools of Responses or Messages, or blocks of Messages.
    Other values are returned unchanged, also blocks that no chat completion can express.

    Returns (the body of a chat completion, names of what it lacks). Raises Unsupported, and InvalidInput for wrong
    values of a response.
    """
    if not isinstance(body, dict):
        return body, []
    sent = body.get("input")
    if "messages" not in body and (isinstance(sent, str) or (isinstance(sent, list) and all(map(_is_object, sent)))):
        for name in _STORED:
            if body.get(name):
                message = f"{name} belongs to responses, and this endpoint has chat completions"
                raise Unsupported(message, field=name, remedy="POST /v1/responses")
        return as_chat(body)
    changed, ignored = dict[str, Any](), list[str]()
    if isinstance(body.get("tools"), list):
        tools = list(map(_tool, body["tools"]))
        changed |= {"tools": tools} if tools != body["tools"] else {}
    choice = object_in(body, "tool_choice")
    if choice.get("type") in ("function", "tool") and isinstance(choice.get("name"), str):
        changed["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    if choice.get("type") in ("auto", "any", "none"):
        changed["tool_choice"] = "required" if choice["type"] == "any" else choice["type"]
    messages = body.get("messages")
    if isinstance(messages, list) and any(map(_has_blocks, messages)):
        changed["messages"] = [part for message in messages for part in _messages(message)]
        ignored = [f"messages.{kind}" for message in messages for kind in _left_out(message)]
    return ({**body, **changed} if changed else body), ignored


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _tool(tool: Any) -> Any:
    """A function in the form of chat completions. Tools of other types are returned unchanged."""
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or "function" in tool:
        return tool
    if tool.get("type", "function") != "function" and not (tool.get("type") == "custom" and "input_schema" in tool):
        return tool
    function = {name: value for name, value in tool.items() if name not in ("type", "input_schema", MARK)}
    if "input_schema" in tool:
        function["parameters"] = tool["input_schema"]
    mark = {MARK: tool[MARK]} if MARK in tool else {}
    return {"type": "function", "function": function, **mark}


def _has_blocks(message: Any) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(str(block.get("type")) in _BLOCKS for block in listed(content))


def _messages(message: Mapping[str, Any]) -> list[Any]:
    """The messages for one that may have blocks of Messages."""
    if not _has_blocks(message):
        return [message]
    parts: list[Any] = chat_of({"messages": [message]})[0]["messages"]
    return parts


def _left_out(message: Any) -> list[str]:
    """The types of the blocks that `_messages` leaves out: thoughts that Anthropic has signed."""
    if not _has_blocks(message) or message.get("role") != "assistant":
        return []
    return [str(block.get("type")) for block in listed(message["content"]) if is_signed(block)]
