"""Renames ids of calls and names of tools that a server would refuse, and changes both back in the answer."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from ragbandit.shared.model_servers.fitting.fitted import RequestChanges
from ragbandit.shared.model_servers.fitting.kinds import ServerFeatures
from ragbandit.shared.reading.fields import flat_text, object_in

Rename = Callable[[str], str]
#: roles of messages with results of calls
_RESULTS: Final = ("tool", "function")


class CallIdForms:
    """Ids of calls in a form that the server takes. They depend only on the conversation, so that caches stay valid."""

    def __init__(self, *, server: ServerFeatures, changes: RequestChanges) -> None:
        self._form, self._is_unique, self._fitted = server.call_id, server.unique_ids, changes
        self._count = dict[str, int]()
        #: a client's id -> the newest id for the server
        self._newest = dict[str, str]()

    def id_for_call(self, key: str) -> str:
        """The id for the next call with the client's id `key`."""
        count = self._count.get(key, 0)
        self._count[key] = count + 1
        is_right = self._form.fits(key) and not (self._is_unique and count)
        if is_right or (count and not self._is_unique):
            self._newest.setdefault(key, key)
            return self._newest[key]
        new = self._newest[key] = self._form.text_in_form(key, number=count)
        self._fitted.ids[new] = key
        self._fitted.changed.add("tool_calls.id")
        return new

    def id_for_result(self, key: str) -> str:
        """The id for the result of the last call with the client's id `key`."""
        return self._newest[key] if key in self._newest else self.id_for_call(key)


def tool_name(name: str, *, server: ServerFeatures, changes: RequestChanges) -> str:
    """The name of a tool for the server."""
    if server.tool_name.fits(name):
        return name
    new = server.tool_name.text_in_form(name)
    changes.names[new] = name
    changes.changed.add("tools.name")
    if name in changes.free_text:
        changes.free_text.add(new)
    return new


def fit_names(body: dict[str, Any], *, server: ServerFeatures, changes: RequestChanges) -> None:
    """Fit the ids and names of a chat completion."""

    def renamed(name: str) -> str:
        return tool_name(name, server=server, changes=changes)

    tools = body.get("tools")
    if isinstance(tools, list) and tools:
        body["tools"] = [_with_name(tool, renamed) for tool in tools]
        if server.unique_tools:
            drop_repeated_tools(body, changes=changes)
    if isinstance(body.get("functions"), list):  # the older form of tools
        body["functions"] = [rename_text(function, "name", renamed) for function in body["functions"]]
    for name, fit in (("tool_choice", _with_name), ("function_call", _with_own_name)):
        if isinstance(body.get(name), dict):
            body[name] = fit(body[name], renamed)
    ids = CallIdForms(server=server, changes=changes)
    body["messages"] = [
        _message(message, ids=ids, renamed=renamed)
        if message.get("tool_calls") or message.get("function_call") or message.get("role") in _RESULTS
        else message
        for message in body["messages"]
    ]


def _message(message: Mapping[str, Any], *, ids: CallIdForms, renamed: Rename) -> Any:
    calls, changed = message.get("tool_calls"), dict[str, Any]()
    if isinstance(calls, list) and calls:
        changed["tool_calls"] = [_with_name(rename_text(call, "id", ids.id_for_call), renamed) for call in calls]
    if isinstance(message.get("function_call"), dict):
        changed["function_call"] = _with_own_name(message["function_call"], renamed)
    if message.get("role") == "function":
        changed["name"] = _with_own_name(message, renamed).get("name")
    if message.get("role") == "tool":
        for name, rename in (("tool_call_id", ids.id_for_result), ("name", renamed)):
            if isinstance(message.get(name), str):
                changed[name] = rename(message[name])
    for name, value in changed.items():
        if message.get(name) != value:
            return {**message, **changed}
    return message


def drop_repeated_tools(body: dict[str, Any], *, changes: RequestChanges) -> None:
    """Keep the first of several tools with the same name."""
    kept, known = list[Any](), set[str]()
    for tool in body["tools"]:
        fields = tool if isinstance(tool, dict) else {}
        name = flat_text(object_in(fields, "function").get("name") or fields.get("name"))
        if not name or name not in known:
            kept.append(tool)
        known.add(name)
    if len(kept) < len(body["tools"]):
        body["tools"] = kept
        changes.changed.add("tools.name")


def _with_own_name(fields: Any, renamed: Rename) -> Any:
    return rename_text(fields, "name", renamed)


def _with_name(tool: Any, renamed: Rename) -> Any:
    """A tool, a choice of a tool or a call with the fitted name of its function."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    fitted = rename_text(function, "name", renamed)
    return tool if fitted is function else {**tool, "function": fitted}


def rename_text(fields: Any, name: str, rename: Rename) -> Any:
    """The fields with the text under `name` renamed; the same object if the text stays."""
    text = fields.get(name) if isinstance(fields, dict) else None
    new = rename(text) if isinstance(text, str) and text else text
    return fields if new == text else {**fields, name: new}
