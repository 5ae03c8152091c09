"""Converts tools of free text (`custom`, such as Codex's apply_patch) to functions with one text parameter, for models
without such tools.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from ragbandit.shared.model_servers.fitting.fitted import RequestChanges
from ragbandit.shared.model_servers.fitting.kinds import ServerFeatures
from ragbandit.shared.reading.fields import flat_text, object_in, objects_in

#: name of the function's parameter
INPUT: Final = "input"


def fit_free_text(body: dict[str, Any], *, server: ServerFeatures, changes: RequestChanges) -> None:
    """Convert tools of free text, and their calls, to functions if the model has only functions."""
    if server.free_text is not None:
        return
    if any(tool.get("type") == "custom" for tool in objects_in(body.get("tools"))):
        body["tools"] = [_as_function(tool, changes=changes) for tool in body["tools"]]
        changes.changed.add("tools.custom")
    choice = object_in(body, "tool_choice")
    if choice.get("type") == "custom":
        body["tool_choice"] = {"type": "function", "function": {"name": object_in(choice, "custom").get("name")}}
    messages = list(body["messages"])
    places = [at for at, message in enumerate(messages) if message.get("tool_calls") and _has_custom(message)]
    for at in places:
        messages[at] = {**messages[at], "tool_calls": list(map(_as_function_call, messages[at]["tool_calls"]))}
    body["messages"] = messages if places else body["messages"]


def _has_custom(message: Mapping[str, Any]) -> bool:
    calls = message["tool_calls"]
    return isinstance(calls, list) and "custom" in [call.get("type") for call in calls if isinstance(call, dict)]


def _as_function(tool: Any, *, changes: RequestChanges) -> Any:
    custom = object_in(tool, "custom") if isinstance(tool, dict) else {}
    if not custom or tool.get("type") != "custom":
        return tool
    form = object_in(custom, "format")
    grammar = object_in(form, "grammar") or form
    description = flat_text(custom.get("description"))
    if grammar.get("definition"):
        description += f"\n\n{INPUT} follows this {grammar.get('syntax')} grammar:\n{grammar['definition']}"
    changes.free_text.add(str(custom.get("name")))
    schema = {
        "type": "object",
        "properties": {INPUT: {"type": "string", "description": "The whole input of the tool, as plain text"}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    function = {"name": custom.get("name"), "description": description.strip(), "parameters": schema}
    more = {name: value for name, value in tool.items() if name not in ("type", "custom")}
    return {"type": "function", "function": function, **more}


def _as_function_call(call: Any) -> Any:
    custom = object_in(call, "custom") if isinstance(call, dict) else {}
    if not custom:
        return call
    arguments = json.dumps({INPUT: flat_text(custom.get("input"))}, ensure_ascii=False)
    more = {name: value for name, value in call.items() if name != "custom"}
    return {**more, "type": "function", "function": {"name": custom.get("name"), "arguments": arguments}}
