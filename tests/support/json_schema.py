"""A small JSON Schema validator: the keywords that our OpenAPI document uses, and an error for any other."""

import re
from collections.abc import Mapping
from typing import Any

_TYPES = {
    "string": str,
    "integer": int,
    "number": int | float,
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}
#: say nothing about what is valid
_NOTES = {"title", "description", "default", "example", "examples", "openapi_examples"}


def fits(value: Any, schema: Mapping[str, Any], *, api: Mapping[str, Any]) -> bool:
    """True if the value fits the schema of this OpenAPI document."""
    return all(_holds(value, name, said, schema, api) for name, said in schema.items() if name not in _NOTES)


def _holds(value: Any, name: str, said: Any, schema: Mapping[str, Any], api: Mapping[str, Any]) -> bool:
    for kind, keywords in ((str, _OF_TEXT), (int | float, _OF_NUMBERS), (list, _OF_LISTS), (dict, _OF_OBJECTS)):
        if name in keywords:  # a keyword holds for values of its own type alone
            other = not isinstance(value, kind) or isinstance(value, bool)
            return other or keywords[name](value, said, lambda item, part: fits(item, part, api=api), schema)
    return _OF_ALL[name](value, said, lambda item, part: fits(item, part, api=api), api)


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and not (isinstance(value, bool) and kind in ("integer", "number"))


def _others(value: dict[str, Any], said: Any, fit: Any, schema: Mapping[str, Any]) -> bool:
    others = [item for key, item in value.items() if key not in schema.get("properties", {})]
    return not others if said is False else said is True or all(fit(item, said) for item in others)


def _matches(text: str, pattern: str) -> bool:
    # In JSON Schema $ is the end of the text alone.
    return re.search(pattern.replace("$", r"\Z"), text) is not None


_OF_ALL = {
    "$ref": lambda value, said, fit, api: fit(value, api["components"]["schemas"][said.rpartition("/")[2]]),
    "type": lambda value, said, *_: _is(value, said),
    "enum": lambda value, said, *_: value in said,
    "not": lambda value, said, fit, _: not fit(value, said),
    "allOf": lambda value, said, fit, _: all(fit(value, part) for part in said),
    "anyOf": lambda value, said, fit, _: any(fit(value, part) for part in said),
    "oneOf": lambda value, said, fit, _: sum(fit(value, part) for part in said) == 1,
}
_OF_TEXT = {
    "pattern": lambda text, said, *_: _matches(text, said),
    "minLength": lambda text, least, *_: len(text) >= least,
    "maxLength": lambda text, most, *_: len(text) <= most,
}
_OF_NUMBERS = {
    "minimum": lambda number, least, *_: number >= least,
    "maximum": lambda number, most, *_: number <= most,
}
_OF_LISTS = {
    "items": lambda items, said, fit, _: all(fit(item, said) for item in items),
    "minItems": lambda items, least, *_: len(items) >= least,
    "maxItems": lambda items, most, *_: len(items) <= most,
    "uniqueItems": lambda items, *_: len({repr(item) for item in items}) == len(items),
}
_OF_OBJECTS = {
    "properties": lambda value, said, fit, _: all(fit(value[key], part) for key, part in said.items() if key in value),
    "additionalProperties": _others,
    "propertyNames": lambda value, said, fit, _: all(fit(key, said) for key in value),
    "required": lambda value, said, *_: set(said) <= set(value),
    "minProperties": lambda value, least, *_: len(value) >= least,
    "maxProperties": lambda value, most, *_: len(value) <= most,
}
