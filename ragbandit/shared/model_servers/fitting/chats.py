"""Fits chat completions to a kind of server."""

from collections.abc import Mapping
from typing import Any, Final

from ragbandit.shared.model_servers.fitting.call_order import fit_order
from ragbandit.shared.model_servers.fitting.contents import fit_contents
from ragbandit.shared.model_servers.fitting.fitted import RequestChanges, UnchangedTools
from ragbandit.shared.model_servers.fitting.free_text import fit_free_text
from ragbandit.shared.model_servers.fitting.kinds import ServerFeatures
from ragbandit.shared.model_servers.fitting.naming import fit_names
from ragbandit.shared.model_servers.fitting.parameters import fit_parameters
from ragbandit.shared.model_servers.fitting.roles import fit_roles
from ragbandit.shared.model_servers.fitting.schemas import fit_schemas
from ragbandit.shared.reading.fields import flat_text, object_in, objects_in

#: roles of messages, and parameters, that come with tools
_OF_TOOLS: Final = ("tool", "function")
_TOOLS: Final = ("tools", "tool_choice", "functions", "function_call")
#: estimated work, in bytes to parse: bytes that one value counts, and characters of text that count one byte. Most
#: texts are passed on unchanged, but the arguments of calls may be parsed
_VALUE: Final = 8
_TEXT: Final = 8
#: number of values of a body that are counted one by one
_MOST_VALUES: Final = 8_000


def fit_chat(
    body: Mapping[str, Any], *, server: ServerFeatures, same: UnchangedTools | None = None
) -> tuple[dict[str, Any], RequestChanges]:
    """Returns (the body of a chat completion in a form that this server takes, the changes). The given body is not
    changed, and unchanged messages are the same objects. same: tools that need no change for this server.
    """
    whole, fitted = dict(body), RequestChanges(same=same or UnchangedTools())
    marks = [
        message.get("tool_calls") or message.get("function_call") or message.get("role") in _OF_TOOLS
        for message in body["messages"]
    ]
    has_tools = any(marks) or not body.keys().isdisjoint(_TOOLS)
    if has_tools:
        fit_free_text(whole, server=server, changes=fitted)
        if server.declared_tools:
            _declare_tools(whole, changes=fitted)
        fit_order(whole, changes=fitted)
    fit_contents(whole, server=server, changes=fitted)
    fit_roles(whole, server=server, changes=fitted)
    if has_tools:
        fit_names(whole, server=server, changes=fitted)
    if has_tools or server.closed_words:
        fit_schemas(whole, server=server, changes=fitted)
    fit_parameters(whole, server=server, changes=fitted)
    return whole, fitted


def fitting_size(body: Mapping[str, Any]) -> int:
    """The work of fitting a body, as the number of bytes that take as long to parse. Values are counted up to the first
    list or object with which they exceed _MOST_VALUES.
    """
    count = characters = 0
    waiting: list[Any] = [dict(body)]
    while waiting and count <= _MOST_VALUES:
        parts = waiting.pop()
        count += len(parts)
        for value in (parts.values() if isinstance(parts, dict) else parts) if count <= _MOST_VALUES else ():
            if isinstance(value, str):
                characters += len(value)
            elif isinstance(value, dict | list):
                waiting.append(value)
    return _VALUE * (count + len(waiting)) + characters // _TEXT


def _declare_tools(body: dict[str, Any], *, changes: RequestChanges) -> None:
    """Declare the tools of earlier calls if the request declares none."""
    calls = [call for message in body["messages"] for call in objects_in(message.get("tool_calls") or [])]
    names = dict.fromkeys(filter(None, (flat_text(object_in(call, "function").get("name")) for call in calls)))
    if names and not body.get("tools"):
        schema = {"type": "object", "properties": dict[str, Any]()}
        body["tools"] = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in names]
        changes.changed.add("tools")
