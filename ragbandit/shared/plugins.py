"""Plug-ins: classes by import path, classes of installed packages by entry point, and their params checked by type.

Arms (`ragbandit.strategies`) and policies (`ragbandit.policies`) come in by the same rules, which stand here once.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import fields
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_type_hints

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.formats import did_you_mean, known_choices
from ragbandit.shared.redaction import described

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pydantic import TypeAdapter

_PATH = re.compile(r"[\w.]+:[\w.]+")


def import_class(path: object, *, where: str) -> Any:
    """The class that "package.module:Class" names.

    Raises ConfigError, with field `where`, for what is no such path, or if it cannot be imported.
    """
    # A URL is none: what Python says of one repeats half of it.
    if not (isinstance(path, str) and _PATH.fullmatch(path)):
        raise ConfigError(f"{path!r} is no import path", field=where, remedy='write it as "package.module:Class"')
    module = path.partition(":")[0]
    try:
        return resolve_name(path)
    except Exception as error:  # whatever a module of others does when it is imported
        missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        remedy = (
            "put the module beside the configuration file, install its package, or add its folder to PYTHONPATH"
            if missing
            else f"correct the module {module}"
        )
        message = f"{path!r} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(message, field=where, remedy=remedy) from error


@functools.cache
def installed(group: str) -> Mapping[str, tuple["EntryPoint", ...]]:
    """Name -> the entry points of a group that claim it, one unless packages clash; looked up once per process."""
    from importlib.metadata import entry_points  # reads every installed package's metadata: not at import

    entries: dict[str, tuple[EntryPoint, ...]] = {}
    for each in sorted(entry_points(group=group), key=lambda point: (point.name, _package(point))):
        entries[each.name] = (*entries.get(each.name, ()), each)
    return MappingProxyType(entries)


def load(name: str, *, group: str, ours: Mapping[str, str], where: str, instead: str) -> Any:
    """The class of this name: one that an installed package offers in this group, or ours; None if there is none.

    ours: name -> path. instead: how to say which class is meant, for the remedy. Raises ConfigError, with field
    `where`, where more than one package claims the name, ours being one, or if the import fails.
    """
    claims = installed(group).get(name, ())
    packages = [*(["ragbandit"] if name in ours else []), *map(_package, claims)]
    if not claims:
        return import_class(ours[name], where=where) if name in ours else None
    if len(packages) > 1:
        remedy = f"take one out, or say which is meant with {instead}"
        raise ConfigError(f"{name!r} is claimed by the packages {', '.join(packages)}", field=where, remedy=remedy)
    try:
        return claims[0].load()
    except Exception as error:  # whatever a package of others does when it is imported
        raise ConfigError(
            f"{claims[0].value!r} of the package {packages[0]} cannot be imported: {type(error).__name__}: {error}",
            field=where,
            remedy="update or remove the package",
        ) from error


def _package(point: "EntryPoint") -> str:
    return "an unnamed package" if point.dist is None else point.dist.name


def check_values(kind: type[Any], *, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values given for fields of a dataclass, checked by the fields' types; an int for a float becomes one.

    Types are taken literally: neither "3" nor True is a number. Raises ConfigError, with field "<where>.<name>", for an
    unknown name and a value that its type does not take.
    """
    from pydantic import ValidationError  # a list of names is no reason to load it

    known = _adapters(kind)  # type: ignore[arg-type] # classes are hashable
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            # The message does not contain the value, which may be a misplaced key.
            raise ConfigError("unknown parameter", field=f"{where}.{name}", remedy=known_choices(known, given=name))
        try:
            checked[name] = known[name].validate_python(value, strict=True)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            inside = "".join(f".{part}" for part in problem["loc"]) if isinstance(value, Mapping | list | tuple) else ""
            names = re.findall(r"'([^']*)'", str(problem.get("ctx", {}).get("expected")))
            meant = did_you_mean(problem["input"], names)
            shown = repr(problem["input"]) if meant else described(problem["input"])
            remedy = f"{meant}{problem['msg']}"
            raise ConfigError(f"{shown} cannot be used", field=f"{where}.{name}{inside}", remedy=remedy) from error
    return checked


@functools.cache
def _adapters(kind: type[Any]) -> Mapping[str, "TypeAdapter[Any]"]:
    from pydantic import TypeAdapter

    hints = get_type_hints(kind, include_extras=True)
    return MappingProxyType({name: TypeAdapter(hints[name]) for name in sorted(each.name for each in fields(kind))})
