"""Converts the tools of a response to tools of a chat completion, and the names of their calls back to the client's.

Clients send tools in `tools` and, like Codex, in items of the input: `additional_tools`, and `tool_search_output` with
the tools that a search of the client found. Some tools have a type of their own and are run by the client; a chat model
gets them as functions, whose parameters are the fields of a call's item.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.router.serving.abilities import SHORT_NAME
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.reading.fields import object_in, objects_in
from ragbandit.shared.types import Json

#: types of items that bring tools
SEARCH_OUTPUT: Final = "tool_search_output"
TOOL_ITEMS: Final = ("additional_tools", SEARCH_OUTPUT)
#: namespace of Codex's own tools, whose names get no prefix and whose calls get no namespace
_NO_SPACE: Final = "functions"
#: keys in `Sent.others`: namespaces of the tools; name of a tool -> type of the item of its call, for tools of a
#: type of their own, or _PLAIN for a tool without a namespace whose name begins like one with a namespace
NAMESPACES: Final = "namespaces"
CALL_TYPES: Final = "call_types"
_PLAIN: Final = ""
#: fields of a function that no server of chat completions reads; `_ONLY_HERE` has all fields that only responses have.
#: A tool whose loading is deferred is offered at once
_UNREAD: Final = ("allowed_callers", "output_schema", "async")
#: value of `allowed_callers`: the model calls the tool itself, as it does here
_DIRECT: Final = ["direct"]
_ONLY_HERE: Final = frozenset({"type", "defer_loading", *_UNREAD})


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that has its own type, and that the client runs."""

    description: str
    _: KW_ONLY
    #: field of a call's item that contains the arguments, which the model writes
    place: str
    properties: Mapping[str, Any]
    required: tuple[str, ...]
    #: fields of the value in `place` if the model leaves them out, and further fields of the item
    defaults: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def function(self, name: str, sent: Mapping[str, Any]) -> dict[str, Any]:
        schema: Any = {"type": "object", "properties": dict(self.properties), "required": list(self.required)}
        if self.place == "arguments":
            schema = sent.get("parameters") or schema
        else:
            schema = {"type": "object", "properties": {self.place: schema}, "required": [self.place]}
        function = {"name": name, "description": sent.get("description") or self.description, "parameters": schema}
        return {"type": "function", "function": function}

    def item_fields(self, arguments: str) -> dict[str, Any] | None:
        """The fields of the item of a call with these arguments; None if the client cannot run them."""
        try:
            value = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return None
        if self.place == "arguments":
            return {self.place: value, **self.more} if isinstance(value, dict) else None
        inner = value.get(self.place, value) if isinstance(value, dict) else None
        if not isinstance(inner, dict) or any(inner.get(name) is None for name in self.required):
            return None
        for name in self.required:
            if self.properties[name].get("type") == "array" and isinstance(inner[name], str):
                inner[name] = [inner[name]] if name == "commands" else ["bash", "-lc", inner[name]]
        return {self.place: {**self.defaults, **inner}, **self.more}


_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_NUMBER: Final = {"type": "integer"}
#: type of a tool that the client runs, which is also its name as a function -> the tool
CLIENT_TOOLS: Final[Mapping[str, ClientTool]] = {
    "tool_search": ClientTool(
        "Searches for further tools by words. The tools that it finds can be called from then on.",
        place="arguments",
        properties={"query": _TEXT},
        required=("query",),
        more={"execution": "client"},
    ),
    "local_shell": ClientTool(
        "Runs a command on the user's machine and returns its output.",
        place="action",
        properties={
            "command": _TEXTS | {"description": "The program and its arguments"},
            "env": {"type": "object", "additionalProperties": _TEXT},
            "timeout_ms": _NUMBER,
            "working_directory": _TEXT,
        },
        required=("command",),
        defaults={"type": "exec", "env": {}},
    ),
    "shell": ClientTool(
        "Runs commands of a shell on the user's machine and returns their outputs.",
        place="action",
        properties={"commands": _TEXTS, "timeout_ms": _NUMBER, "max_output_length": _NUMBER},
        required=("commands",),
        defaults={"timeout_ms": None, "max_output_length": None},
    ),
    "apply_patch": ClientTool(
        "Creates, changes or deletes one file of the user.",
        place="operation",
        properties={
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": _TEXT,
            "diff": _TEXT | {"description": "A diff in the form V4A; not for delete_file"},
        },
        required=("type", "path"),
    ),
}


def _is_run_by_client(tool: Mapping[str, Any]) -> bool:
    kind = _type_of(tool)
    if kind == "tool_search":
        return tool.get("execution") == "client"
    return kind in CLIENT_TOOLS and object_in(tool, "environment").get("type", "local") == "local"


def _type_of(tool: Mapping[str, Any]) -> str:
    return str(tool.get("type") or "function")


def in_namespace(name: str, space: object) -> str:
    """The name of a function with its namespace as a prefix, because chat completions have no namespaces."""
    return f"{space}__{name}" if space and space != _NO_SPACE else name


def sent_tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools of a request and of the items in its input. Raises InvalidInput."""
    return [*(body.get("tools") or ()), *item_tools(body.get("input"))]


def item_tools(items: object) -> list[dict[str, Any]]:
    """The tools of the items in an input. Raises InvalidInput."""
    tools = list[dict[str, Any]]()
    for place, item in enumerate(items if isinstance(items, list) else ()):
        if item.get("type") in TOOL_ITEMS:
            sent = item.get("tools")
            if not (isinstance(sent, list) and all(isinstance(tool, dict) for tool in sent)):
                at = f"input.{place}.tools"
                raise InvalidInput(f'"{at}" must be a list of objects', field=at, remedy="send the tools as a list")
            tools += sent
    return tools


def brings_only_tools(item: Mapping[str, Any]) -> bool:
    """Whether an item brings tools and is not the result of a call."""
    return item.get("type") in TOOL_ITEMS and not (item["type"] == SEARCH_OUTPUT and item.get("call_id"))


def offered_names(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names that these tools have in a chat."""
    return [*_convert(tools)[0]]


def _in_namespaces(
    tools: Sequence[Mapping[str, Any]], *, space: object = None
) -> Iterator[tuple[Mapping[str, Any], object]]:
    """Yield (tool, its namespace or None) of each tool, including tools inside namespaces."""
    for tool in tools:
        if tool.get("type") == "namespace":
            yield from _in_namespaces(objects_in(tool.get("tools")), space=tool.get("name") or space)
        else:
            yield tool, space


def _convert(tools: Sequence[Mapping[str, Any]]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Returns (name -> tool of a chat completion, ignored types of tools and ignored fields of other tools).

    Servers refuse two tools of one name, so the last one counts.
    """
    offered, ignored = dict[str, dict[str, Any]](), list[str]()
    for tool, space in _in_namespaces(tools):
        kind = _type_of(tool)
        if kind == "function":
            converted = _convert_function(tool, space=space)
        elif kind == "custom":
            converted = _convert_free_text(tool, space=space)
        elif _is_run_by_client(tool):
            converted = CLIENT_TOOLS[kind].function(kind, tool)
        else:
            ignored.append(f"tools.{kind}")
            continue
        ignored += [f"tools.{kind}.{name}" for name in _UNREAD if tool.get(name) not in (None, False, _DIRECT)]
        offered[str(_called_name(converted))] = converted
    return offered, [*dict.fromkeys(ignored)]


def tools_of(tools: Sequence[Mapping[str, Any]], *, choice: Any) -> tuple[dict[str, Any], list[str]]:
    """Convert the tools of a response to functions and tools of free text. Returns (parameters of chat completions,
    types of ignored tools). Tools that OpenAI runs itself are ignored, or raise Unsupported if `choice` demands one.
    """
    offered, ignored = _convert(tools)
    name, mode = None, choice
    if isinstance(choice, Mapping):
        name, mode = _called_name(choice), choice.get("type")
        if str(mode) in CLIENT_TOOLS and name in offered:
            mode = "function"
        if mode == "allowed_tools":
            names = [_called_name(tool) for tool in objects_in(choice.get("tools"))]
            offered = {key: tool for key, tool in offered.items() if key in names}
            name, mode = None, choice.get("mode") or "auto"
    is_foreign = mode not in ("none", "auto", "required", "function", "custom", None)
    if is_foreign or (mode in ("required", "function", "custom") and ignored and not offered):
        message = f"tool_choice demands a call of a tool that is not run here ({', '.join(ignored) or mode!s:.80})"
        raise Unsupported(message, field="tool_choice", remedy="send functions of your own, or tool_choice: auto")
    if name is not None:
        kind = "custom" if mode == "custom" else "function"
        mode = {"type": kind, kind: {"name": name}}
    return {"tools": [*offered.values()] or None, "tool_choice": mode}, ignored


def call_facts(tools: Sequence[Mapping[str, Any]]) -> dict[str, Json]:
    """Facts for `Sent.others`, in which `client_name_of` looks up the client's name of a called tool."""
    members = list(_in_namespaces(tools))
    spaces = list(dict.fromkeys(str(space) for _, space in members if space and space != _NO_SPACE))
    spaces = [space for space in spaces if SHORT_NAME.fullmatch(space)]
    types = dict[str, Json]()
    for tool, space in members:
        kind, name = _type_of(tool), _called_name(tool) or ""
        if _is_run_by_client(tool):
            types[kind] = f"{kind}_call"
        elif kind in ("function", "custom"):
            types.pop(in_namespace(name, space), None)
            if in_namespace("", space) == "" and _space_of(name, spaces) and SHORT_NAME.fullmatch(name):
                types[name] = _PLAIN
    return {NAMESPACES: list[Json](spaces), CALL_TYPES: types}


def client_name_of(notes: Mapping[str, Any], name: str) -> tuple[str | None, dict[str, Any]]:
    """The client's name of a called tool.

    Returns (type of a client's tool, or None for functions and free text; name and namespace of the tool).
    """
    types, spaces = notes.get(CALL_TYPES), notes.get(NAMESPACES)
    kind = types.get(name) if isinstance(types, dict) else None
    if kind is not None:
        return str(kind).removesuffix("_call") or None, {"name": name}
    space = _space_of(name, list(map(str, spaces)) if isinstance(spaces, list) else [])
    if space is None:
        return None, {"name": name}
    return None, {"name": name.removeprefix(in_namespace("", space)), "namespace": space}


def _space_of(name: str, spaces: Sequence[str]) -> str | None:
    """The namespace of a tool with this name, the longest if several fit; None without a namespace."""
    return max((space for space in spaces if name.startswith(in_namespace("", space))), key=len, default=None)


def _called_name(tool: Mapping[str, Any]) -> str | None:
    function = tool.get("function") or tool.get("custom")
    name = function.get("name") if isinstance(function, Mapping) else tool.get("name")
    if name is None and _type_of(tool) in CLIENT_TOOLS:
        name = tool["type"]
    return None if name is None else in_namespace(str(name), tool.get("namespace"))


def _convert_function(tool: Mapping[str, Any], *, space: object) -> dict[str, Any]:
    if isinstance(tool.get("function"), Mapping):  # `tool` has the form of chat completions already
        return dict(tool)
    function = {name: value for name, value in tool.items() if name not in _ONLY_HERE and value is not None}
    return {"type": "function", "function": function | {"name": in_namespace(tool.get("name", ""), space)}}


def _convert_free_text(tool: Mapping[str, Any], *, space: object) -> dict[str, Any]:
    if isinstance(tool.get("custom"), Mapping):
        return dict(tool)
    custom = {name: value for name, value in tool.items() if name not in _ONLY_HERE and value is not None}
    form = custom.get("format")
    if isinstance(form, Mapping) and form.get("type") == "grammar" and "grammar" not in form:
        grammar = {name: value for name, value in form.items() if name != "type"}
        custom["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": custom | {"name": in_namespace(tool.get("name", ""), space)}}
