"""Grids: an entry of `arms` that defines several arms, one for each combination of the listed values of params."""

import json
import math
import re
from collections.abc import Mapping
from itertools import product
from typing import Any, Final

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NAME_REMEDY: Final = "use 1 to 64 letters, digits, dots, dashes, underscores"
#: maximum number of arms of one grid: each needs outcomes of its own to be learned
MOST_ARMS: Final = 32

_KEY: Final = "grid"
#: param with the facts of an arm: properties that the configuration declares, and the arm's values of a grid
FACTS: Final = "facts"
_MOST_FACTS: Final = 16


def expand_grids(arms: Mapping[str, Any]) -> dict[str, Any]:
    """Replace every entry with a grid by the arms of the grid; other entries are unchanged.

    Raises ValueError ("field: fault"), for example if a grid is not a mapping, a value cannot be part of a name, a grid
    has more than MOST_ARMS arms, or two arms have the same name.
    """
    plain: dict[str, Any] = {}
    for name, params in arms.items():
        entries = _entries(name, params) if has_grid(params) else {name: params}
        duplicates = sorted(set(entries) & (set(plain) | (set(arms) - {name})))
        if duplicates:
            raise ValueError(f"arms.{name}.{_KEY}: there is another arm {duplicates[0]!r}; rename one of them")
        plain |= entries
    return plain


def grids_of(arms: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Entry with a grid -> names of its arms, first the arm named like the entry. Raises ValueError like
    `expand_grids`.
    """
    return {str(name): tuple(_entries(name, params)) for name, params in arms.items() if has_grid(params)}


def has_grid(params: object) -> bool:
    return isinstance(params, Mapping) and _KEY in params


def _entries(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    field, grid = f"arms.{name}.{_KEY}", params[_KEY]
    if not isinstance(grid, Mapping) or not grid:
        raise ValueError(f"{field}: must be a mapping of params to lists of values, as {{rounds: [2, 4]}}")
    axes = {str(key): _values_by_text(values, field=f"{field}.{key}") for key, values in sorted(grid.items(), key=str)}
    fixed_params = {key: value for key, value in params.items() if key != _KEY}
    check_facts(fixed_params.get(FACTS), field=f"arms.{name}.{FACTS}")
    repeated = sorted(set(axes) & set(map(str, fixed_params)))
    if repeated:
        raise ValueError(f"{field}.{repeated[0]}: is set both inside and outside the grid; remove it outside")
    count = math.prod(map(len, axes.values()))
    if count > MOST_ARMS:
        raise ValueError(f"{field}: {count} arms are too many to be learned; use values for at most {MOST_ARMS}")
    entries = {}
    for choice in product(*(axis.items() for axis in axes.values())):
        parts = [f"{key}-{text}" for key, (text, _) in zip(axes, choice, strict=True) if text]
        arm = ".".join([str(name), *parts])
        if parts and NAME.fullmatch(arm) is None:
            raise ValueError(f"{field}: the name {arm!r} is invalid; {NAME_REMEDY}")
        values = {key: value for key, (_, value) in zip(axes, choice, strict=True)}
        facts = {key: str(value) for key, value in values.items()} | dict(fixed_params.get(FACTS) or {})
        entries[arm] = fixed_params | values | {FACTS: facts}
    return entries


def check_facts(facts: object, *, field: str) -> None:
    if facts is not None and (
        not isinstance(facts, Mapping)
        or len(facts) > _MOST_FACTS
        or not all(isinstance(value, str | int | float) for value in facts.values())
    ):
        message = f"give at most {_MOST_FACTS} names, each with a text, a number or a boolean"
        raise ValueError(f"{field}: {message}, as {{model: small, k: 4}}")


def _values_by_text(values: object, *, field: str) -> dict[str, Any]:
    """Text for a value in an arm's name -> the value. The text for the first value is empty. Raises ValueError."""
    if not isinstance(values, list | tuple) or not values:
        raise ValueError(f"{field}: must be a list of values, first the value of the arm with the plain name")
    texts = [_text(value, field=field) for value in values]
    duplicate = next((text for text in texts if texts.count(text) > 1), None)
    if duplicate is not None:
        raise ValueError(f"{field}: {duplicate} is listed twice; list every value once")
    return dict(zip(["", *texts[1:]], values, strict=True))


def _text(value: object, *, field: str) -> str:
    """The text for a value of a grid in an arm's name. Raises ValueError if a name cannot contain the text."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if NAME.fullmatch(text) is None:
        raise ValueError(
            f"{field}: a value cannot be part of an arm's name; use numbers, true, false, null and texts of letters, "
            "digits, dots, dashes and underscores, or write this arm as an entry of its own"
        )
    return text
