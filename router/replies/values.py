"""Converts values to replies, and replies to JSON."""

import builtins
import json
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic_core import to_json, to_jsonable_python
from typing_extensions import is_typeddict

_Reply = TypeVar("_Reply")


def build_reply(kind: type[_Reply], value: object, **fields: object) -> _Reply:
    """Make a reply of this type. A field comes from `fields`, or else from the attribute of `value` with its name."""
    reply: Any = {}
    hinted: Any = kind
    for name, convert in _converters(hinted).items():
        if name in fields:
            reply[name] = fields[name]
        else:
            attribute = getattr(value, name)
            reply[name] = attribute if convert is None else convert(attribute)
    return reply  # type: ignore[no-any-return] # of the type `kind`


@cache
def _converters(kind: Any) -> dict[str, Callable[[Any], Any] | None]:
    """Field of a reply -> function that converts the attribute with the field's name; None for a plain value."""
    return {name: _converter(hint) for name, hint in get_type_hints(kind).items()}


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    parts = get_args(hint)
    if is_typeddict(hint):
        return lambda value: value and (dict(value) if isinstance(value, Mapping) else build_reply(hint, value))
    match get_origin(hint):
        case builtins.list:
            item = _converter(parts[0]) or _unchanged
            return lambda value: None if value is None else list(map(item, value))
        case builtins.dict:
            entry = _converter(parts[1]) or _unchanged
            return lambda value: None if value is None else {str(key): entry(one) for key, one in value.items()}
        case types.UnionType:
            return _converter(parts[0])
    return None


def _unchanged(value: Any) -> Any:
    return value


def json_ready(reply: Any) -> Any:
    """The reply as JSON values: dataclasses become dicts, and numbers that are not finite become None."""
    return to_jsonable_python(reply, inf_nan_mode="null", fallback=dict)


def json_of(reply: Any) -> bytes:
    """The reply as JSON text. Lone surrogates are escaped, because UTF-8 cannot encode them."""
    try:
        return to_json(reply, inf_nan_mode="null", fallback=dict)
    except ValueError:
        return json.dumps(reply, default=dict).encode()
