"""Removes the fields from a request that a refusal names by their paths.

Servers write "tools.0.custom.strict: Extra inputs are not permitted", "tools[0].strict", "/tools/0/strict", "Unknown
name "strict" at 'tools[0]'", or a list of places. A path may also name the kind of an object ("custom").
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

#: a place in a request: keys from the outside in, without indexes of lists, so it is the same for all objects of a list
Place = tuple[str, ...]

#: a key that is a single part of a path
_PLAIN: Final = re.compile(r"[A-Za-z_$][\w$-]{0,63}")
#: a path with at least two parts
_FIELD_PATH: Final = re.compile(r"/?[A-Za-z_$][\w$-]{0,63}(?:(?:\.|/|\[['\"]?)[\w$-]{1,64}(?:['\"]?\])?){1,15}")
#: Gemini's form: the name of a field, and the path to its object
_NAME_AT: Final = re.compile(r"[Uu]nknown name \\?[\"']?([\w$-]{1,64})\\?[\"']? at \\?['\"]?([\w$.\[\]/-]{1,200})")
#: words of advice: a path after them is what the server accepts instead
_ADVICE: Final = re.compile(
    r"\b(?:use|instead|please|try|consult|see|supported (?:fields|parameters))\b", re.IGNORECASE
)
_MOST: Final = 20
#: fields on which the answer depends
_DEMANDED: Final = frozenset(
    {"role", "content", "text", "type", "name", "description", "id", "input", "parameters", "function"}
    | {"arguments", "tool_calls", "tool_call_id", "tool_use_id", "source", "data", "url", "image_url", "media_type"}
    | {"input_audio", "file", "file_data", "budget_tokens", "properties", "required", "items", "enum", "schema"}
    | {"json_schema", "format"}
)
#: objects with data of the user, whose keys are no fields of the request
_DATA: Final = frozenset({"input", "parameters", "arguments", "metadata"})
#: kind of tools without a `type`
_DEFAULT_KIND: Final = "custom"
#: end of the names of fields with a JSON schema, which also has keys of the user
_SCHEMA: Final = "schema"


def paths_in(text: str, *, places: Iterable[Sequence[object]] = ()) -> list[tuple[str, ...]]:
    """The paths that a refusal names, at most 20. places: paths as lists, in FastAPI's form."""
    text = _ADVICE.split(text, maxsplit=1)[0]
    paths = [(*_path_parts(path.rstrip(".")), name) for name, path in _NAME_AT.findall(text)]
    paths += [tuple(str(part) for part in place if part != "body") for place in places]
    paths += [_path_parts(match) for match in _FIELD_PATH.findall(text)]
    return [*dict.fromkeys(path for path in paths if len(path) > 1)][:_MOST]


def without_paths(
    body: Mapping[str, Any], paths: Iterable[tuple[str, ...]]
) -> tuple[dict[str, Any], list[Place], list[Place]]:
    """Returns (the request without the fields at these paths, places of these fields, places whose path is certain).

    A field is removed from all objects of the same kind, for example from all tools. Fields on which the answer depends
    stay.
    """
    left, places, certain = dict(body), list[Place](), list[Place]()
    for path in paths:
        found = _place_at(body, path)
        if found is None or len(found) < 2 or found[-1] in _DEMANDED or (found[-1] or "").endswith(_SCHEMA):
            continue
        place = tuple(filter(None, found))
        if place not in places:
            places.append(place)
            left = _without_everywhere(_without_place(left, found), owner=found[-2], field=place[-1])
        if place not in certain and _place_at(body, path, is_exact=True) == found:
            certain.append(place)
    return left, places, certain


def without_places(body: Mapping[str, Any], places: Iterable[Place]) -> tuple[dict[str, Any], list[Place]]:
    """Returns (the request without the fields at these places, the places that it had)."""
    left, present = dict(body), list[Place]()
    for place in places:
        fewer = _without_place(left, place)
        if len(place) > 1:
            fewer = _without_everywhere(fewer, owner=place[-2], field=place[-1])
        if fewer != left:
            left, present = fewer, [*present, place]
    return left, present


def has_plain_keys(value: Mapping[str, Any]) -> bool:
    """Whether every key of an object is a single part of a path, so that each path leads to a single field."""
    return all(_PLAIN.fullmatch(key) for key in value)


def _is_data(key: str) -> bool:
    return key in _DATA or key.endswith(_SCHEMA)


def _path_parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[./\[\]'\"]+", path) if part)


def _place_at(value: Any, path: Sequence[str], *, is_exact: bool = False) -> tuple[str | None, ...] | None:
    """The keys along a path, with None for each index of a list. Returns None if the path leads to no key of an object.

    is_exact: whether the objects on the path may have only plain keys, and each part of the path must be a key or the
        object's kind
    """
    if not path:
        return None
    first, rest = path[0], path[1:]
    if isinstance(value, list) and first.isdecimal() and len(first) < 7 and int(first) < len(value):
        further = _place_at(value[int(first)], rest, is_exact=is_exact)
        return None if further is None else (None, *further)
    if not isinstance(value, Mapping) or (is_exact and not has_plain_keys(value)):
        return None
    if first in value:
        if not rest:
            return (first,)
        further = _place_at(value[first], rest, is_exact=is_exact)
        if further is not None:
            return (first, *further)
    if is_exact and first != value.get("type", _DEFAULT_KIND):
        return None
    return _place_at(value, rest, is_exact=is_exact)  # `first` names the kind of the object


def _without_place(value: Any, place: Sequence[str | None]) -> Any:
    first, rest = place[0], place[1:]
    if isinstance(value, list):
        rest = rest if first is None else place
        return [_without_place(one, rest) for one in value]
    if not isinstance(value, Mapping) or first not in value:
        return value
    if not rest:
        return {key: one for key, one in value.items() if key != first}
    return {**value, first: _without_place(value[first], rest)}


def _without_everywhere(value: Any, *, owner: str | None, field: str) -> Any:
    """The value without this field in all objects under the key `owner`; unchanged if `owner` is None."""
    if owner is None or _is_data(owner):
        return value
    if isinstance(value, list):
        return [_without_everywhere(one, owner=owner, field=field) for one in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: {name: part for name, part in one.items() if name != field}
        if key == owner and isinstance(one, Mapping)
        else one
        if _is_data(key)
        else _without_everywhere(one, owner=owner, field=field)
        for key, one in value.items()
    }
