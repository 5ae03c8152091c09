"""Generators and retrievers by name: which names there may be, and settings that take a name for a section."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal

from ragbandit.router.config.grids import NAME
from ragbandit.shared.errors import ConfigError, NotReady
from ragbandit.shared.formats import known_choices

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
        raise type(error)(
            error.message, field=field, remedy=remedy and remedy.replace(f"{kind}.", f"{section}.")
        ) from error


def check_names(names: Iterable[str]) -> None:
    """Refuse a name that no generator or retriever beside the default may have. Raises ValueError."""
    for name in names:
        if name == DEFAULT or len(name) > MAX_NAME or NAME.fullmatch(name) is None:
            raise ValueError(
                f"{name!r} is no name for it; use 1 to {MAX_NAME} letters, digits, dots, dashes, underscores, and "
                f"not {DEFAULT!r}, which is the section generator or retriever itself"
            )


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


def value_at(tree: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """What stands at the end of the path; None where nothing does."""
    value: Any = tree
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _with_value(tree: Mapping[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    key, *further = path
    return {**tree, key: _with_value(tree[key], tuple(further), value) if further else value}
