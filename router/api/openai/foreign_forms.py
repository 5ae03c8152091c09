"""Bodies of other interfaces at the door of chat completions, as Cursor and some proxies send them."""

from typing import Any

from ragbandit.shared.additions import loaded
from ragbandit.shared.dialects.registry import DIALECTS
from ragbandit.shared.model_servers.fitting.kinds import MARK
from ragbandit.shared.reading.fields import object_in


def as_completion(body: object) -> tuple[object, list[str]]:
    """Convert a body in the form of another interface, with its tools, or with parts of another dialect. Other values
    are returned unchanged, also parts that no chat completion can express.

    Returns (the body of a chat completion, names of what it lacks). Raises as `Door.as_completion`.
    """
    if not isinstance(body, dict):
        return body, []
    for door in loaded("doors").values():
        converted: tuple[object, list[str]] | None = door.as_completion(body)
        if converted is not None:
            return converted
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


def _tool(tool: Any) -> Any:
    """A function of a response in the form of chat completions. Other tools are returned unchanged."""
    is_function = isinstance(tool, dict) and isinstance(tool.get("name"), str)
    if not is_function or tool.get("type", "function") != "function" or "function" in tool:
        return tool
    function = {name: value for name, value in tool.items() if name not in ("type", MARK)}
    return {"type": "function", "function": function, **({MARK: tool[MARK]} if MARK in tool else {})}
