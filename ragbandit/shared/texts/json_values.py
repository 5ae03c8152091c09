"""Reads and writes JSON texts of the network by pydantic: reading takes a tenth of Python's time, writing a fifth."""

import json
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

_DECODER: Final = json.JSONDecoder(strict=False)
# Shared, since `json.dumps` with options makes an encoder for every call.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
#: most levels of lists and objects, as in pydantic's parser. Python's parser has a limit that depends on its caller
MAX_DEPTH: Final = 201
#: types whose values both encoders write alike; the type of names; the range of numbers without an exponent
_ALIKE: Final = frozenset({str, bool, type(None)})
_NAMES: Final = frozenset({str})
_LEAST: Final = 1e-4
_MOST: Final = 1e15


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
    """Pydantic's parser, loaded at the first call; Python's parser in a client's environment without pydantic."""
    try:
        from pydantic_core import from_json
    except ImportError:
        return json.loads
    return from_json


def json_bytes(value: object) -> bytes:
    """The JSON text of a value, without spaces, in UTF-8: the bytes that Python's encoder writes. Raises ValueError for
    numbers that are not finite, UnicodeEncodeError for half a surrogate pair, TypeError, RecursionError.
    """
    data = fast_json_bytes(value) if is_plain(value) else None
    return _ENCODER.encode(value).encode() if data is None else data


def fast_json_bytes(value: object) -> bytes | None:
    """The JSON of pydantic's encoder, equal to Python's if the value `is_plain`. None if the encoder refuses the value:
    for half a surrogate pair, and for too many levels.
    """
    try:
        return encoder()(value)
    except ValueError:
        return None


def sorted_json_bytes(value: object) -> bytes | None:
    """`json_bytes` with sorted names; None for a value that pydantic's encoder does not write as Python's does."""
    try:
        return encoder()(_sorted(value))
    except (ValueError, TypeError, RecursionError):
        return None


@cache
def encoder() -> Callable[[object], bytes]:
    """Pydantic's encoder. In a client's environment without pydantic, an encoder that refuses every value."""
    try:
        from pydantic_core import to_json
    except ImportError:
        return _refuse
    return to_json


def _refuse(_value: object) -> bytes:
    raise ValueError("pydantic is not installed")


def _sorted(value: object) -> object:
    """The value with sorted names. Raises TypeError if it is not plain."""
    if type(value) is dict:
        names = sorted(value)
        if names and type(names[0]) is not str:  # names that can be sorted are all texts, or none is
            raise TypeError
        return {name: one if type(one := value[name]) in _ALIKE else _sorted(one) for name in names}
    if type(value) is list:
        return [one if type(one) in _ALIKE else _sorted(one) for one in value]
    if not is_plain(value):
        raise TypeError
    return value


def is_plain(value: object) -> bool:
    """Whether both encoders write the same bytes: values as a parser makes them, and numbers without an exponent."""
    waiting = list[Iterable[Any]]([[value]])
    while waiting:
        for one in waiting.pop():
            kind = type(one)
            if kind in _ALIKE:
                continue
            if kind is list:
                waiting.append(one)
            elif kind is dict:
                if not _NAMES.issuperset(map(type, one)):
                    return False
                waiting.append(one.values())
            elif kind is int or kind is float:
                if one and not _LEAST <= abs(one) < _MOST:
                    return False
            else:
                return False
    return True


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
