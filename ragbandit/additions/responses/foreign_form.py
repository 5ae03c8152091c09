"""The body of a response, or tools in its form, at the door of chat completions, as Cursor and some proxies send it."""

from collections.abc import Mapping
from typing import Any, Final

from ragbandit.additions.responses.items import asks_for_summary, chat_of_items
from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.shared.model_servers.fitting.kinds import MARK
from ragbandit.shared.reading.fields import object_in

#: parameters that only the endpoint of responses can fulfil
_STORED: Final = ("previous_response_id", "conversation", "prompt", "background")


def completion_of_response(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Returns (the body of a chat completion, names of the fields that it lacks).

    Raises Unsupported, and InvalidInput for wrong values of a response.
    """
    sent = body.get("input")
    if "messages" in body or not (isinstance(sent, str) or (isinstance(sent, list) and all(map(_is_object, sent)))):
        return _with_functions(body), []
    for name in _STORED:
        if body.get(name):
            message = f"{name} belongs to responses, and this endpoint has chat completions"
            raise Unsupported(message, field=name, remedy="POST /v1/responses")
    if asks_for_summary(sent):
        message = "an item compaction cannot be the answer of a chat completion"
        raise Unsupported(message, field="input", remedy="POST /v1/responses")
    return chat_of_items(body)


def _with_functions(chat: Mapping[str, Any]) -> Mapping[str, Any]:
    """A chat completion whose functions, and the choice of one, may have the form of responses."""
    changed, choice = dict[str, Any](), object_in(chat, "tool_choice")
    if isinstance(chat.get("tools"), list):
        tools = list(map(_function_in_chat_form, chat["tools"]))
        changed = {"tools": tools} if tools != chat["tools"] else {}
    if choice.get("type") == "function" and isinstance(choice.get("name"), str):
        changed["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    return {**chat, **changed} if changed else chat


def _function_in_chat_form(tool: Any) -> Any:
    """A function in the form of chat completions. Other tools, and functions of Messages, are returned unchanged."""
    is_function = isinstance(tool, dict) and isinstance(tool.get("name"), str)
    if not is_function or tool.get("type", "function") != "function" or {"function", "input_schema"} & tool.keys():
        return tool
    function = {name: value for name, value in tool.items() if name not in ("type", MARK)}
    return {"type": "function", "function": function, **({MARK: tool[MARK]} if MARK in tool else {})}


def _is_object(value: object) -> bool:
    return isinstance(value, dict)
