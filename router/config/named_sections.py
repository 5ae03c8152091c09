"""Generators and retrievers that other settings refer to by name."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator

from ragbandit.router.config.grids import NAME, NAME_REMEDY
from ragbandit.shared.additions import additions, section_parts
from ragbandit.shared.errors import ConfigError, NotReady
from ragbandit.shared.texts.formats import known_choices

#: name that means the section `generator` or `retriever` itself
DEFAULT: Final = "default"
#: longest name of a section in `generators` or `retrievers`, characters
MAX_NAME: Final = 32
#: settings of the core that accept a section like `generator`, or the name of a generator
BY_NAME: Final = (("judge", "generator"), ("conversation", "rewrite", "generator"))

Kind = Literal["generator", "retriever", "generator.openai"]


def section_of(kind: Kind, name: str) -> str:
    """Dotted key of the settings of this generator or retriever."""
    return kind if name == DEFAULT else f"{kind}s.{name}"


@contextmanager
def rename_errors(section: str, *, kind: Kind) -> Iterator[None]:
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


def _check_name(text: str) -> str:
    if NAME.fullmatch(text) is None:
        raise ValueError(f"the name {text!r} is invalid; {NAME_REMEDY}")
    return text


def _check_section_name(text: str) -> str:
    if text == DEFAULT or len(text) > MAX_NAME or NAME.fullmatch(text) is None:
        raise ValueError(
            f"the name {text!r} is invalid; use 1 to {MAX_NAME} letters, digits, dots, dashes, underscores, and not "
            f"{DEFAULT!r}, which is the name of the section generator or retriever itself"
        )
    return text


Name = Annotated[str, AfterValidator(_check_name)]
SectionName = Annotated[str, AfterValidator(_check_section_name)]


def settings_by_name() -> Iterator[tuple[str, ...]]:
    """Paths of the settings that accept a section like `generator`, or the name of a generator."""
    yield from BY_NAME
    for section in sorted({section for what in additions().values() for section in what.sections}):
        for part in section_parts(section):
            yield from ((*filter(None, section.split(".")), *path) for path in part.by_name)


def with_named_sections(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Replace names of generators by their sections. tree: all settings as read. Raises ValueError for other names."""
    whole = dict(tree)
    for path in settings_by_name():
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
