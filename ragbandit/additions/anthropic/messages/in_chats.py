"""Tools and blocks of Messages inside chat completions, as Cursor and some proxies send them."""

from collections.abc import Mapping
from typing import Any, Final

from ragbandit.additions.anthropic.messages.requests import chat_of
from ragbandit.additions.anthropic.messages.thoughts import is_signed
from ragbandit.shared.model_servers.fitting.kinds import MARK
from ragbandit.shared.reading.fields import object_in, objects_in

#: types of blocks that chat completions express in another form
_BLOCKS: Final = ("tool_use", "tool_result", "image", "document", "thinking", "redacted_thinking")


def in_chat_form(chat: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Returns (the chat with tools and blocks of Messages in the form of chat completions, names of dropped blocks).

    Thoughts that Anthropic signed are dropped. Other blocks and tools that have no such form stay unchanged.
    """
    if "messages" not in chat:
        return chat, []
    changed, ignored = dict[str, Any](), list[str]()
    if isinstance(chat.get("tools"), list):
        tools = list(map(_tool_in_chat_form, chat["tools"]))
        changed |= {"tools": tools} if tools != chat["tools"] else {}
    choice = object_in(chat, "tool_choice")
    if choice.get("type") == "tool" and isinstance(choice.get("name"), str):
        changed["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    if choice.get("type") in ("auto", "any", "none"):
        changed["tool_choice"] = "required" if choice["type"] == "any" else choice["type"]
    if isinstance(chat["messages"], list) and any(map(_has_blocks, chat["messages"])):
        changed["messages"] = [part for message in chat["messages"] for part in _chat_messages(message)]
        ignored = [f"messages.{kind}" for message in chat["messages"] for kind in _signed_thoughts(message)]
    return {**chat, **changed} if changed else chat, ignored


def _tool_in_chat_form(tool: Any) -> Any:
    """A function in the form of chat completions. Tools of other forms and types are returned unchanged."""
    is_ours = isinstance(tool, dict) and isinstance(tool.get("name"), str) and "input_schema" in tool
    if not is_ours or "function" in tool or tool.get("type", "custom") not in ("custom", "function"):
        return tool
    function = {name: value for name, value in tool.items() if name not in ("type", "input_schema", MARK)}
    mark = {MARK: tool[MARK]} if MARK in tool else {}
    return {"type": "function", "function": {**function, "parameters": tool["input_schema"]}, **mark}


def _has_blocks(message: Any) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(str(block.get("type")) in _BLOCKS for block in objects_in(content))


def _chat_messages(message: Mapping[str, Any]) -> list[Any]:
    """The messages of a chat for a message that may have blocks of Messages."""
    if not _has_blocks(message):
        return [message]
    parts: list[Any] = chat_of({"messages": [message]})[0]["messages"]
    return parts


def _signed_thoughts(message: Any) -> list[str]:
    """The types of the blocks that `_chat_messages` leaves out: thoughts that Anthropic has signed."""
    if not _has_blocks(message) or message.get("role") != "assistant":
        return []
    return [str(block.get("type")) for block in objects_in(message["content"]) if is_signed(block)]
