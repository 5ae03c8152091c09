"""Bodies of other interfaces at the door of chat completions, as Cursor and some proxies send them."""

from typing import Any, Final

from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.router.api.openai.items import chat_of_items
from ragbandit.shared.dialects.registry import DIALECTS
from ragbandit.shared.model_servers.fitting.kinds import MARK
from ragbandit.shared.reading.fields import object_in

#: parameters of responses that need their own endpoint
_STORED: Final = ("previous_response_id", "conversation", "prompt", "background")


def as_completion(body: object) -> tuple[object, list[str]]:
    """Convert a body in the form of a response (`input`), with tools of responses, or with parts of another dialect.
    Other values are returned unchanged, also parts that no chat completion can express.

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
        return chat_of_items(body)
    changed, ignored = dict[str, Any](), list[str]()
    for dialect in DIALECTS.values():
        fields, lacking = dialect.in_chat_form({**body, **changed})
        changed |= fields
        ignored += lacking
    known = {**body, **changed}
    if isinstance(known.get("tools"), list):
        tools = list(map(_tool, known["tools"]))
        changed |= {"tools": tools} if tools != known["tools"] else {}
    choice = object_in(known, "tool_choice")
    if choice.get("type") == "function" and isinstance(choice.get("name"), str):
        changed["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    return ({**body, **changed} if changed else body), ignored


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _tool(tool: Any) -> Any:
    """A function of a response in the form of chat completions. Other tools are returned unchanged."""
    is_function = isinstance(tool, dict) and isinstance(tool.get("name"), str)
    if not is_function or tool.get("type", "function") != "function" or "function" in tool:
        return tool
    function = {name: value for name, value in tool.items() if name not in ("type", MARK)}
    return {"type": "function", "function": function, **({MARK: tool[MARK]} if MARK in tool else {})}
