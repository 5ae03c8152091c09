"""Generators and retrievers by name: which names there may be, and settings that take a name for a section."""

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

#: names of arms, and of what they name
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: most arms of one grid: each is learned from outcomes of its own
MOST_ARMS: Final = 32

_KEY: Final = "grid"
#: what an arm is made of: in a grid its values, and what is declared
FACTS: Final = "facts"
#: most facts of an arm
_MOST_FACTS: Final = 16


def expanded(arms: Mapping[str, Any]) -> dict[str, Any]:
    """The same arms with every grid in place of its entry; an arm without one is passed on as it is.

    Raises ValueError, as "field: what is wrong", for a grid that is none, a value that cannot stand in a name, more
    than MOST_ARMS arms, and a name that comes twice.
    """
    plain: dict[str, Any] = {}
    for name, params in arms.items():
        entries = _entries(name, params) if has_grid(params) else {name: params}
        if twice := sorted(set(entries) & (set(plain) | (set(arms) - {name}))):
            raise ValueError(f"arms.{name}.{_KEY}: there is another arm {twice[0]!r}; give one of them another name")
        plain |= entries
    return plain


def grids_of(arms: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Entry with a grid -> the names of its arms, the plain one first. Raises ValueError as `expanded`."""
    return {str(name): tuple(_entries(name, params)) for name, params in arms.items() if has_grid(params)}


def has_grid(params: object) -> bool:
    """Whether the params of an arm are those of several."""
    return isinstance(params, Mapping) and _KEY in params


def _entries(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    field, grid = f"arms.{name}.{_KEY}", params[_KEY]
    if not isinstance(grid, Mapping) or not grid:
        raise ValueError(f"{field}: must be a mapping of params to lists of values, as {{rounds: [2, 4]}}")
    axes = {str(key): _named(values, field=f"{field}.{key}") for key, values in sorted(grid.items(), key=str)}
    beside = {key: value for key, value in params.items() if key != _KEY}
    check_facts(beside.get(FACTS), field=f"arms.{name}.{FACTS}")
    if both := sorted(set(axes) & set(map(str, beside))):
        raise ValueError(f"{field}.{both[0]}: it stands beside the grid too; leave it out there")
    if (count := math.prod(map(len, axes.values()))) > MOST_ARMS:
        message = f"{field}: {count} arms come of it, and each must be learned; give values for {MOST_ARMS} at most"
        raise ValueError(message)
    entries = {}
    for choice in product(*(axis.items() for axis in axes.values())):
        parts = [f"{key}-{text}" for key, (text, _) in zip(axes, choice, strict=True) if text]
        own = ".".join([str(name), *parts])
        if parts and NAME.fullmatch(own) is None:
            raise ValueError(f"{field}: {own!r} is no name of 1 to 64 letters, digits, dots, dashes, underscores")
        values = {key: value for key, (_, value) in zip(axes, choice, strict=True)}
        facts = {key: str(value) for key, value in values.items()} | dict(beside.get(FACTS) or {})
        entries[own] = beside | values | {FACTS: facts}
    return entries


def check_facts(facts: object, *, field: str) -> None:
    """Raise ValueError, as "field: what is wrong", for what says nothing of an arm."""
    if facts is not None and (
        not isinstance(facts, Mapping)
        or len(facts) > _MOST_FACTS
        or not all(isinstance(one, str | int | float) for one in facts.values())
    ):
        message = f"give at most {_MOST_FACTS} names, each with a text, a number or a boolean"
        raise ValueError(f"{field}: {message}, as {{model: small, k: 4}}")


def _named(values: object, *, field: str) -> dict[str, Any]:
    """What a value is called in names -> the value; the first one is called nothing."""
    if not isinstance(values, list | tuple) or not values:
        raise ValueError(f"{field}: must be a list of values, the arm's own first")
    texts = [_text(value, field=field) for value in values]
    if twice := next((text for number, text in enumerate(texts) if text in texts[:number]), None):
        raise ValueError(f"{field}: {twice} stands twice; give every value once")
    return dict(zip(["", *texts[1:]], values, strict=True))


def _text(value: object, *, field: str) -> str:
    """How a value stands in a name."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if NAME.fullmatch(text) is None:
        raise ValueError(
            f"{field}: a value cannot stand in the name of an arm; use numbers, true, false, null and texts of "
            "letters, digits, dots, dashes and underscores, or write that arm out"
        )
    return text


#: the name of the sections `generator` and `retriever` among those that have names
DEFAULT: Final = "default"
#: characters of the name of another one
MAX_NAME: Final = 32
#: settings that take a section like `generator`, or the name of one
BY_NAME: Final = (("judge", "generator"), ("conversation", "rewrite", "generator"))

Kind = Literal["generator", "retriever"]


def section_of(kind: Kind, name: str) -> str:
    """The dotted key of the generator or retriever of this name."""
    return kind if name == DEFAULT else f"{kind}s.{name}"


@contextmanager
def errors_of(section: str, *, kind: Kind) -> Iterator[None]:
    """Errors about the section `generator` or `retriever` name this one."""
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
        raise ValueError(f"{text!r} is no name; use 1 to 64 letters, digits, dots, dashes, underscores")
    return text


def _section_name(text: str) -> str:
    if text == DEFAULT or len(text) > MAX_NAME or NAME.fullmatch(text) is None:
        raise ValueError(
            f"{text!r} is no name for it; use 1 to {MAX_NAME} letters, digits, dots, dashes, underscores, and "
            f"not {DEFAULT!r}, which is the section generator or retriever itself"
        )
    return text


#: the name of an arm, or of what users do with an answer
Name = Annotated[str, AfterValidator(_name)]
#: the name of a generator or retriever beside the default
SectionName = Annotated[str, AfterValidator(_section_name)]


def with_named_sections(tree: Mapping[str, Any]) -> dict[str, Any]:
    """All settings as they were read, with the section itself where a generator's name stands. Raises ValueError."""
    whole = dict(tree)
    for path in BY_NAME:
        name = value_at(whole, path)
        if not isinstance(name, str):
            continue
        others = whole.get("generators")
        known = {DEFAULT: whole.get("generator", {}), **(others if isinstance(others, dict) else {})}
        if name not in known:
            remedy = known_choices(sorted(known), given=name)
            raise ValueError(f"{'.'.join(path)}: there is no generator {name!r}; {remedy}")
        whole = _with_value(whole, path, known[name])
    return whole


def value_at(tree: Mapping[str, Any], path: Sequence[str]) -> Any:
    """What stands at the end of the path; None where nothing does."""
    value: Any = tree
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _with_value(tree: Mapping[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    key, *further = path
    return {**tree, key: _with_value(tree[key], tuple(further), value) if further else value}
