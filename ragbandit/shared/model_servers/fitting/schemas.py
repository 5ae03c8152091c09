"""JSON Schemas of tools and answers: what servers refuse is completed, left out, or said in the description."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from ragbandit.shared.model_servers.fitting.fitted import Fitted
from ragbandit.shared.model_servers.fitting.kinds import Takes
from ragbandit.shared.reading.fields import object_in, objects_in, words_of

#: keywords whose value is a schema, a list of schemas, or an object of schemas
_ONE: Final = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_OBJECTS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
#: keywords that may be null
_VALUES: Final = ("default", "const", "example")
_CHOICES: Final = ("anyOf", "oneOf", "allOf")
#: maximum number of levels that are read
_DEEPEST: Final = 50


def fit_schemas(body: dict[str, Any], *, takes: Takes, fitted: Fitted) -> None:
    """Fit the schemas of a chat completion's tools, and of its answer."""
    if isinstance(body.get("tools"), list):
        fit = partial(_tool, takes=takes, fitted=fitted)
        body["tools"] = [fitted.same.fitted(tool, fit) for tool in body["tools"]]
    if isinstance(body.get("functions"), list):  # the older form of tools
        tools = [_tool({"function": function}, takes=takes, fitted=fitted) for function in body["functions"]]
        body["functions"] = [tool["function"] for tool in tools]
    form = object_in(object_in(body, "response_format"), "json_schema")
    if takes.closed_words and object_in(form, "schema"):
        schema = closed(form["schema"], words=takes.closed_words)
        if schema != form["schema"]:
            body["response_format"] = body["response_format"] | {"json_schema": {**form, "schema": schema}}
            fitted.changed.add("response_format")


def _tool(tool: Any, *, takes: Takes, fitted: Fitted) -> Any:
    function = object_in(tool, "function") if isinstance(tool, dict) else {}
    if not function or takes.schemas == "any" or "parameters" not in function:
        return tool
    schema = fitted_schema(function["parameters"], takes=takes, is_strict=function.get("strict") is True)
    changed = {**function, "parameters": schema}
    if takes.schemas == "nonempty" and not schema.get("properties"):
        del changed["parameters"]
    if changed == function:
        return tool
    fitted.changed.add("tools.parameters")
    return {**tool, "function": changed}


def fitted_schema(schema: Any, *, takes: Takes, is_strict: bool) -> dict[str, Any]:
    """The schema of a function's parameters as this server takes it; an object at the top."""
    sent = schema if isinstance(schema, dict) else {}
    whole = _completed(_one_object(sent), is_whole=takes.schemas != "valid")
    fitted: dict[str, Any] = closed(whole, words=takes.closed_words) if is_strict and takes.closed_words else whole
    return fitted


def _one_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without a choice at the top: an object with the properties of all alternatives."""
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
    return _described(whole, choices) if choices else whole


def _described(schema: dict[str, Any], words: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with these keywords in its description."""
    said = ", ".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in words.items())
    before = words_of(schema.get("description"))
    return {**schema, "description": f"{before}\n\n{{{said}}}" if before else f"{{{said}}}"}


def _completed(schema: Any, *, is_whole: bool, depth: int = 0) -> Any:
    """The schema without null values. is_whole: objects get `properties`, and lists `items`."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return schema
    kept = {name: value for name, value in schema.items() if value is not None or name in _VALUES}
    if not isinstance(kept.get("required", []), list):
        del kept["required"]
    kept = _within(kept, partial(_completed, is_whole=is_whole, depth=depth + 1))
    kind = kept.get("type")
    kinds: list[Any] = kind if isinstance(kind, list) else [kind]
    if is_whole and "object" in kinds and not isinstance(kept.get("properties"), dict):
        kept["properties"] = {}
    if is_whole and "array" in kinds and not kept.keys() & {"items", "prefixItems"}:
        kept["items"] = {}
    return kept


def closed(schema: Any, *, words: frozenset[str], depth: int = 0) -> Any:
    """The schema with these keywords in the descriptions, and with objects that have no further properties."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return schema
    moved = {name: value for name, value in schema.items() if name in words and not _is_taken(name, value)}
    kept = {name: value for name, value in schema.items() if name not in moved}
    kept = _within(kept, partial(closed, words=words, depth=depth + 1))
    if kept.get("type") == "object" and kept.get("additionalProperties") is not False:
        kept["additionalProperties"] = False
    return _described(kept, moved) if moved else kept


def _is_taken(name: str, value: Any) -> bool:
    return name == "minItems" and value in (0, 1)


def _within(schema: Mapping[str, Any], change: Any) -> dict[str, Any]:
    """The schema with its parts changed."""
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
