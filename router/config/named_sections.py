"""Short forms of settings: grids of arms, and generators and retrievers that are referred to by name."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator

from ragbandit.shared.errors import ConfigError, NotReady
from ragbandit.shared.formats import known_choices

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NAME_REMEDY: Final = "use 1 to 64 letters, digits, dots, dashes, underscores"
#: maximum number of arms of one grid; each arm is learned from its own outcomes only
MOST_ARMS: Final = 32

_KEY: Final = "grid"
#: param with the facts of an arm: properties that the configuration declares, and the arm's values in a grid
FACTS: Final = "facts"
_MOST_FACTS: Final = 16


def expanded(arms: Mapping[str, Any]) -> dict[str, Any]:
    """Replace every entry with a grid by the arms of the grid; other entries are unchanged.

    Raises ValueError ("field: fault") if a grid is not a mapping, a value cannot be part of a name, a grid has more
    than MOST_ARMS arms, or two arms have the same name.
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
    """Entry with a grid -> names of its arms, first the arm named like the entry. Raises ValueError like `expanded`."""
    return {str(name): tuple(_entries(name, params)) for name, params in arms.items() if has_grid(params)}


def has_grid(params: object) -> bool:
    return isinstance(params, Mapping) and _KEY in params


def _entries(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    field, grid = f"arms.{name}.{_KEY}", params[_KEY]
    if not isinstance(grid, Mapping) or not grid:
        raise ValueError(f"{field}: must be a mapping of params to lists of values, as {{rounds: [2, 4]}}")
    axes = {str(key): _named(values, field=f"{field}.{key}") for key, values in sorted(grid.items(), key=str)}
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
            raise ValueError(f"{field}: the name {arm!r} is invalid; {_NAME_REMEDY}")
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


def _named(values: object, *, field: str) -> dict[str, Any]:
    """Map the text that stands for a value in an arm's name to the value. The first value's text is empty."""
    if not isinstance(values, list | tuple) or not values:
        raise ValueError(f"{field}: must be a list of values, first the value of the arm with the plain name")
    texts = [_text(value, field=field) for value in values]
    duplicate = next((text for text in texts if texts.count(text) > 1), None)
    if duplicate is not None:
        raise ValueError(f"{field}: {duplicate} is listed twice; list every value once")
    return dict(zip(["", *texts[1:]], values, strict=True))


def _text(value: object, *, field: str) -> str:
    """The text that stands for a value of a grid in an arm's name. Raises ValueError if a name cannot contain it."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if NAME.fullmatch(text) is None:
        raise ValueError(
            f"{field}: a value cannot be part of an arm's name; use numbers, true, false, null and texts of letters, "
            "digits, dots, dashes and underscores, or write this arm as an entry of its own"
        )
    return text


#: name that means the section `generator` or `retriever` itself
DEFAULT: Final = "default"
#: longest name of a section in `generators` or `retrievers`, characters
MAX_NAME: Final = 32
#: settings that accept a section like `generator`, or the name of a generator
BY_NAME: Final = (("judge", "generator"), ("conversation", "rewrite", "generator"))

Kind = Literal["generator", "retriever"]


def section_of(kind: Kind, name: str) -> str:
    """Dotted key of the settings of this generator or retriever."""
    return kind if name == DEFAULT else f"{kind}s.{name}"


@contextmanager
def errors_of(section: str, *, kind: Kind) -> Iterator[None]:
    """Rewrite errors about the section `generator` or `retriever` so that they name `section`."""
    try:
        yield
    except (ConfigError, NotReady) as error:
        if section == kind:
            raise
        field, remedy = error.field, error.remedy
        if field is not None and (field == kind or field.startswith(f"{kind}.")):
            field = section + field[len(kind) :]
        remedy = remedy and remedy.replace(f"{kind}.", f"{section}.")
        raise type(error)(error.message, field=field, remedy=remedy) from error


def _name(text: str) -> str:
    if NAME.fullmatch(text) is None:
        raise ValueError(f"the name {text!r} is invalid; {_NAME_REMEDY}")
    return text


def _section_name(text: str) -> str:
    if text == DEFAULT or len(text) > MAX_NAME or NAME.fullmatch(text) is None:
        raise ValueError(
            f"the name {text!r} is invalid; use 1 to {MAX_NAME} letters, digits, dots, dashes, underscores, and not "
            f"{DEFAULT!r}, which is the name of the section generator or retriever itself"
        )
    return text


Name = Annotated[str, AfterValidator(_name)]
SectionName = Annotated[str, AfterValidator(_section_name)]


def with_named_sections(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Replace names of generators by their sections. tree: all settings as read. Raises ValueError for other names."""
    whole = dict(tree)
    for path in BY_NAME:
        name = value_at(whole, path)
        if not isinstance(name, str):
            continue
        generators = {DEFAULT: whole.get("generator", {})}
        if isinstance(whole.get("generators"), dict):
            generators.update(whole["generators"])
        if name not in generators:
            remedy = known_choices(sorted(generators), given=name)
            raise ValueError(f"{'.'.join(path)}: there is no generator {name!r}; {remedy}")
        whole = _with_value(whole, path, generators[name])
    return whole


def value_at(tree: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = tree
    for key in path:
        if isinstance(value, list):
            value = value[int(key)] if key.isdecimal() and int(key) < len(value) else None
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _with_value(tree: Mapping[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    key, *further = path
    return {**tree, key: _with_value(tree[key], tuple(further), value) if further else value}
