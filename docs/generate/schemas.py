"""JSON schemas in words: types, ranges and defaults, as the reference pages show them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

_NAMES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}


def resolved(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """The schema that a reference stands for, or the schema itself."""
    while True:
        inner = schema.get("allOf", [None])
        reference = schema.get("$ref") or (inner[0] or {}).get("$ref")
        if reference is None:
            return schema
        schema = definitions[reference.rsplit("/", 1)[1]]


def type_of(schema: Schema, definitions: Mapping[str, Schema], *, linked: bool = False) -> str:
    """A type in words. linked: objects with a name of their own are links to their section."""
    reference = schema.get("$ref") or (schema.get("allOf") or [{}])[0].get("$ref")
    if reference:
        name = reference.rsplit("/", 1)[1]
        if "properties" in definitions[name]:
            return f"[{name}](#{name.lower()})" if linked else "section"
        return type_of(definitions[name], definitions, linked=linked)
    for choices in ("anyOf", "oneOf"):
        if choices in schema:
            kinds = dict.fromkeys(type_of(each, definitions, linked=linked) for each in schema[choices])
            if "number" in kinds:
                kinds.pop("whole number", None)
            return " or ".join(kinds)
    if "const" in schema or "enum" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return ", ".join(f"`{value}`" if isinstance(value, str) else json.dumps(value) for value in values)
    kind = schema.get("type")
    if kind == "array":
        return f"list of {type_of(schema.get('items', {}), definitions, linked=linked)}"
    if kind == "object":
        values = schema.get("additionalProperties") or {"anyOf": list(schema.get("properties", {}).values())}
        known = isinstance(values, Mapping) and values.get("anyOf", True)
        inner = type_of(values, definitions, linked=linked) if known else "anything"
        return f"map of {inner}"
    return _NAMES.get(kind or "", "anything")


#: characters of a pattern that helps a reader
READABLE = 60


def range_of(schema: Schema) -> str:
    """The values that are allowed, as far as the schema says."""
    found = list(_bounds(schema))
    for each in schema.get("anyOf", ()):
        found.extend(_bounds(each))
    return ", ".join(dict.fromkeys(found))


def _bounds(schema: Schema) -> Iterator[str]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        yield f"{low:,} to {high:,}"
    elif low is not None:
        yield f"at least {low:,}"
    elif high is not None:
        yield f"at most {high:,}"
    if "exclusiveMinimum" in schema:
        yield f"above {schema['exclusiveMinimum']:,}"
    pattern = schema.get("pattern", "")
    if len(pattern) > READABLE:  # a pattern of a text, which lists every kind of space
        yield "empty or not blank" if pattern.endswith("?$") else "not blank"
    elif pattern:
        yield f"matches `{pattern}`"
    if "maxLength" in schema:
        yield f"at most {schema['maxLength']:,} characters"
    elif schema.get("minLength"):
        yield "not empty"


def default_of(value: object) -> str:
    """A default as it stands in YAML or JSON."""
    if isinstance(value, str):
        return f'`"{value}"`' if not value else f"`{value}`"
    return f"`{json.dumps(value)}`"


def named_in(schema: object) -> Iterator[str]:
    """Names of the definitions that a schema refers to, in order."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].rsplit("/", 1)[1]
        for value in schema.values():
            yield from named_in(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from named_in(value)


def cell(text: str) -> str:
    """Text as it may stand in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell(each) for each in line) + " |" for line in lines)
