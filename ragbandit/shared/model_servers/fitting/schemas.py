"""Fits the JSON Schemas of tools and answers: keywords that servers refuse are left out or moved to the description."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from ragbandit.shared.model_servers.fitting.fitted import RequestChanges
from ragbandit.shared.model_servers.fitting.kinds import ServerFeatures
from ragbandit.shared.reading.fields import flat_text, object_in, objects_in

#: keywords whose value is a schema (_ONE), a list of schemas, or an object of schemas
_ONE: Final = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_OBJECTS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
#: keywords that may be null
_VALUES: Final = ("default", "const", "example")
_CHOICES: Final = ("anyOf", "oneOf", "allOf")
#: maximum number of levels that are read
_DEEPEST: Final = 50


def fit_schemas(body: dict[str, Any], *, server: ServerFeatures, changes: RequestChanges) -> None:
    """Fit the schemas of a chat completion's tools, and of its answer."""
    if isinstance(body.get("tools"), list):
        fit = partial(_fit_tool, server=server, changes=changes)
        body["tools"] = [changes.same.fit(tool, fit) for tool in body["tools"]]
    if isinstance(body.get("functions"), list):  # the older form of tools
        tools = [_fit_tool({"function": function}, server=server, changes=changes) for function in body["functions"]]
        body["functions"] = [tool["function"] for tool in tools]
    form = object_in(object_in(body, "response_format"), "json_schema")
    if server.closed_words and object_in(form, "schema"):
        schema = close_schema(form["schema"], words=server.closed_words)
        if schema != form["schema"]:
            body["response_format"] = body["response_format"] | {"json_schema": {**form, "schema": schema}}
            changes.changed.add("response_format")


def _fit_tool(tool: Any, *, server: ServerFeatures, changes: RequestChanges) -> Any:
    function = object_in(tool, "function") if isinstance(tool, dict) else {}
    if not function or server.schemas == "any" or "parameters" not in function:
        return tool
    schema = fit_schema(function["parameters"], server=server, is_strict=function.get("strict") is True)
    changed = {**function, "parameters": schema}
    if server.schemas == "nonempty" and not schema.get("properties"):
        del changed["parameters"]
    if changed == function:
        return tool
    changes.changed.add("tools.parameters")
    return {**tool, "function": changed}


def fit_schema(schema: Any, *, server: ServerFeatures, is_strict: bool) -> dict[str, Any]:
    """The schema of a function's parameters in a form that this server takes, with an object at the top."""
    sent = schema if isinstance(schema, dict) else {}
    whole = _complete_schema(_one_object(sent), is_whole=server.schemas != "valid")
    fitted: dict[str, Any] = (
        close_schema(whole, words=server.closed_words) if is_strict and server.closed_words else whole
    )
    return fitted


def _one_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with an object at the top, which has the properties of all alternatives in place of a choice."""
    whole = {name: value for name, value in schema.items() if name not in _CHOICES}
    parts = [part for name in _CHOICES for part in objects_in(schema.get(name) or [])]
    kind = whole.get("type")
    if kind != "object":
        whole["type"] = "object"
    if not parts:
        return whole
    properties = dict[str, Any]()
    for part in parts:
        properties |= object_in(part, "properties")
    whole["properties"] = properties | object_in(schema, "properties")
    required = list[Any](schema.get("required") or []) if isinstance(schema.get("required"), list) else []
    for part in objects_in(schema.get("allOf") or []):
        required += part["required"] if isinstance(part.get("required"), list) else []
    if required:
        whole["required"] = list(dict.fromkeys(map(str, required)))
    choices = {name: schema[name] for name in ("anyOf", "oneOf") if schema.get(name)}
    return _move_to_description(whole, choices) if choices else whole


def _move_to_description(schema: dict[str, Any], words: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with these keywords and their values in the description."""
    said = ", ".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in words.items())
    before = flat_text(schema.get("description"))
    return {**schema, "description": f"{before}\n\n{{{said}}}" if before else f"{{{said}}}"}


def _complete_schema(schema: Any, *, is_whole: bool, depth: int = 0) -> Any:
    """The schema without null values. is_whole: objects get `properties`, and lists `items`."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return schema
    kept = {name: value for name, value in schema.items() if value is not None or name in _VALUES}
    if not isinstance(kept.get("required", []), list):
        del kept["required"]
    kept = _map_parts(kept, partial(_complete_schema, is_whole=is_whole, depth=depth + 1))
    kind = kept.get("type")
    kinds: list[Any] = kind if isinstance(kind, list) else [kind]
    if is_whole and "object" in kinds and not isinstance(kept.get("properties"), dict):
        kept["properties"] = {}
    if is_whole and "array" in kinds and not kept.keys() & {"items", "prefixItems"}:
        kept["items"] = {}
    return kept


def close_schema(schema: Any, *, words: frozenset[str], depth: int = 0) -> Any:
    """The schema with the keywords in `words` moved to descriptions, and without further properties of objects."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return schema
    moving = words - {"minItems"} if schema.get("minItems") in (0, 1) else words
    moved = {name: value for name, value in schema.items() if name in moving}
    kept = {name: value for name, value in schema.items() if name not in moved}
    kept = _map_parts(kept, partial(close_schema, words=words, depth=depth + 1))
    if kept.get("type") == "object" and kept.get("additionalProperties") is not False:
        kept["additionalProperties"] = False
    return _move_to_description(kept, moved) if moved else kept


def _map_parts(schema: Mapping[str, Any], change: Any) -> dict[str, Any]:
    """The schema with `change` applied to the schemas directly inside."""
    whole = dict(schema)
    for name, value in schema.items():
        if not isinstance(value, dict | list):
            continue
        if name in _ONE:
            whole[name] = change(value)
        elif name in _LISTS and isinstance(value, list):
            whole[name] = list(map(change, value))
        elif name in _OBJECTS and isinstance(value, dict):
            whole[name] = {key: change(part) for key, part in value.items()}
    return whole
