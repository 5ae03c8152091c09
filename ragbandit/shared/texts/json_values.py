"""Parses JSON texts of the network: by pydantic's parser, which takes a tenth of the time of Python's."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any, Final

_DECODER: Final = json.JSONDecoder(strict=False)
#: most levels of lists and objects, as in pydantic's parser. Python's parser has a limit that depends on its caller
MAX_DEPTH: Final = 201


def json_value(data: bytes, *, strict: bool = True) -> Any:
    """The value of a JSON text. Raises ValueError, also for more than MAX_DEPTH levels, and RecursionError.

    Both parsers give equal values. What pydantic's parser refuses, Python's parser reads again: half a surrogate pair,
    a byte order mark, and with strict=False also control characters in texts and broken UTF-8.
    """
    try:
        return parser()(data)
    except ValueError:
        return _checked_depth(json.loads(data) if strict else _DECODER.decode(decoded_text(data).strip()))


@cache
def parser() -> Callable[[bytes], Any]:
    """Pydantic's parser; Python's in a client's environment without pydantic. It is loaded at the first call."""
    try:
        from pydantic_core import from_json
    except ImportError:
        return json.loads
    return from_json


def _checked_depth(value: Any) -> Any:
    level, depth = [value], 0
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"it has more than {MAX_DEPTH} levels of lists and objects")
        level = [member for one in level for member in (one.values() if isinstance(one, dict) else one)]
    return value


def decoded_text(data: bytes) -> str:
    """The bytes as text. Broken UTF-8 becomes U+FFFD, unless it is half a surrogate pair."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")
