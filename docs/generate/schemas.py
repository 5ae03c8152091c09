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


def type_of(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    """A type in words."""
    reference = schema.get("$ref") or (schema.get("allOf") or [{}])[0].get("$ref")
    if reference:
        name = reference.rsplit("/", 1)[1]
        return "section" if "properties" in definitions[name] else type_of(definitions[name], definitions)
    for choices in ("anyOf", "oneOf"):
        if choices in schema:
            kinds = dict.fromkeys(type_of(each, definitions) for each in schema[choices])
            if "number" in kinds:
                kinds.pop("whole number", None)
            return " or ".join(kinds)
    if "const" in schema or "enum" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return ", ".join(f"`{value}`" if isinstance(value, str) else json.dumps(value) for value in values)
    kind = schema.get("type")
    if kind == "array":
        return f"list of {type_of(schema.get('items', {}), definitions)}"
    if kind == "object":
        values = schema.get("additionalProperties") or {"anyOf": list(schema.get("properties", {}).values())}
        known = isinstance(values, Mapping) and values.get("anyOf", True)
        inner = type_of(values, definitions) if known else "anything"
        return f"map of {inner}"
    return _NAMES.get(kind or "", "anything")


#: characters of a pattern that helps a reader
READABLE = 60


def range_of(schema: Schema) -> str:
    """The values that are allowed, as far as the schema says."""
    limits = list(_bounds(schema))
    for each in schema.get("anyOf", ()):
        limits.extend(_bounds(each))
    return ", ".join(dict.fromkeys(limits))


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


def cell(text: str) -> str:
    """Text as it may stand in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell(each) for each in line) + " |" for line in lines)
