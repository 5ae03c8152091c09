"""Errors for a body of another shape: one for each fault, which names every type that is accepted."""

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import GetPydanticSchema
from pydantic_core import core_schema

from ragbandit.shared.errors import InvalidInput

#: required fields that are lists; the others are strings
_LISTS: Final = frozenset({"items", "messages"})
#: pydantic's error type of ours; the message is what is accepted
_WANTED: Final = "wanted"
#: pydantic's error type -> what is accepted
_KINDS: Final = {
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "float_parsing": "a number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "{ge:g} at least",
    "less_than": "below {lt:g}",
    "less_than_equal": "{le:g} at most",
    "string_too_short": "of {min_length} characters at least",
    "string_too_long": "of {max_length} characters at most",
    "string_pattern_mismatch": "a text that {pattern} matches",
}


def wanted(what: str) -> GetPydanticSchema:
    """One error for a value of several types, instead of one for each of them."""

    def schema(source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.custom_error_schema(handler(source), custom_error_type=_WANTED, custom_error_message=what)

    return GetPydanticSchema(schema)


def complaint(fault: Mapping[str, Any], *, skip: int = 0, content_type: str | None = None) -> InvalidInput:
    """An error of pydantic as InvalidInput.

    skip: parts at the start of its location that are no fields ("body", "query"). content_type: the request's header.
    """
    kind, sent = fault["type"], fault.get("input")
    field = ".".join(map(str, fault["loc"][skip:])) or "body"
    if kind == "extra_forbidden":
        remedy = "remove it; /docs lists the fields"
        if field == "wait_s":
            remedy = "send it to /v1/answer as a query parameter: /v1/answer?wait_s=10"
        return InvalidInput(f'"{field}" is not a field of this request', field=field, remedy=remedy)
    if isinstance(sent, bytes):  # read as JSON it would be something else
        came = "without a content type" if content_type is None else f"as {content_type:.80}"
        remedy = "send the header content-type: application/json"
        return InvalidInput(f"the body came {came}, not as JSON", field="content-type", remedy=remedy)
    if kind == "missing":
        kind = "list" if field in _LISTS else "string"
        return InvalidInput(f'"{field}" is required ({kind})', field=field, remedy=f"add it to the request as a {kind}")
    wanted = fault["msg"] if kind == _WANTED else _KINDS.get(kind)
    if kind == "literal_error":
        wanted = "{expected}"
    if wanted is None:
        return InvalidInput(fault["msg"], field=field, remedy="/docs describes what is accepted")
    if kind != _WANTED:
        wanted = wanted.format(**fault.get("ctx", {}))
    return InvalidInput(f'"{field}" must be {wanted}, not {_shown(sent)}', field=field, remedy=f"send {wanted}")


def _shown(sent: object) -> str:
    """The value that was sent, in a few words: a whole list may be deep."""
    if isinstance(sent, dict | list):
        return "this object" if isinstance(sent, dict) else "this list"
    return f"{json.dumps(sent, ensure_ascii=False):.80}"
