"""Plug-ins: finds classes of arms and policies by name, import path or entry point, and checks their params by type."""

import functools
import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from hashlib import sha256
from importlib import import_module
from pkgutil import iter_modules, resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_type_hints

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.texts.formats import did_you_mean, known_choices
from ragbandit.shared.texts.redaction import describe_value

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pydantic import TypeAdapter

_PATH = re.compile(r"[\w.]+:[\w.]+")


def import_class(path: object, *, where: str) -> Any:
    """Import a class or function by its path "package.module:Name". where: setting with it. Raises ConfigError."""
    # A URL is refused here too, since Python's own message about it could contain a password.
    if not (isinstance(path, str) and _PATH.fullmatch(path)):
        raise ConfigError(f"{path!r} is not an import path", field=where, remedy='write it as "package.module:Class"')
    module = path.partition(":")[0]
    try:
        return resolve_name(path)
    except Exception as error:  # a foreign module may raise anything when it is imported
        missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        remedy = (
            "put the module next to the configuration file, install its package, or add its folder to PYTHONPATH"
            if missing
            else f"correct the module {module}"
        )
        message = f"{path!r} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(message, field=where, remedy=remedy) from error


@functools.cache
def declared_classes(package: str, *, attribute: str) -> Mapping[str, type[Any]]:
    """Name -> class, for the classes in the modules of a package that declare a name: `arm: ClassVar = "flare"`.

    attribute: the class attribute with the name; subclasses do not inherit it. Imports all modules of the package.
    """
    modules = [module.name for module in iter_modules(import_module(package).__path__, f"{package}.")]
    classes: dict[str, type[Any]] = {}
    for value in (value for module in modules for value in vars(import_module(module)).values()):
        name = vars(value).get(attribute) if isinstance(value, type) else None
        if isinstance(name, str):
            classes[name] = value
    return MappingProxyType(dict(sorted(classes.items())))


@functools.cache
def installed_entry_points(group: str) -> Mapping[str, tuple["EntryPoint", ...]]:
    """Name -> its entry points in a group. A name has several if packages clash."""
    from importlib.metadata import entry_points  # imported late: it reads the metadata of every installed package

    entries: dict[str, tuple[EntryPoint, ...]] = {}
    for point in sorted(entry_points(group=group), key=lambda point: (point.name, _distribution_name(point))):
        entries[point.name] = (*entries.get(point.name, ()), point)
    return MappingProxyType(entries)


def load_class(name: str, *, group: str, core: Mapping[str, type[Any]], where: str, option: str) -> Any:
    """The class with a name, of an installed package or of RagBandit; None if the name is unknown.

    Raises ConfigError if several packages (RagBandit counts as one) provide the name, or if the import fails.

    group: group of entry points
    core: name -> class of RagBandit
    option: another way to choose a class, for the remedy
    """
    points = installed_entry_points(group).get(name, ())
    if not points:
        return core.get(name)
    packages = [*map(_distribution_name, points)]
    if name in core:
        packages.insert(0, "ragbandit")
    if len(packages) > 1:
        remedy = f"remove one of them, or choose one with {option}"
        raise ConfigError(f"{name!r} is claimed by the packages {', '.join(packages)}", field=where, remedy=remedy)
    try:
        return points[0].load()
    except Exception as error:  # a foreign package may raise anything when it is imported
        reason = f"{type(error).__name__}: {error}"
        message = f"{points[0].value!r} of the package {packages[0]} cannot be imported: {reason}"
        raise ConfigError(message, field=where, remedy="update or remove the package") from error


def _distribution_name(point: "EntryPoint") -> str:
    return "an unnamed package" if point.dist is None else point.dist.name


def distribution_of(point: "EntryPoint") -> str:
    """Name and version of the installed package that has an entry point."""
    return _distribution_name(point) if point.dist is None else f"{point.dist.name} {point.dist.version}"


def check_values(kind: type[Any], *, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check the names and types of values for the fields of a dataclass. Raises ConfigError.

    Types are strict: neither "3" nor True is a number. An int for a float is converted.

    where: section with the values, for error messages
    """
    from pydantic import ValidationError  # imported here, since many callers of this module need no pydantic

    adapters = _adapters(kind)  # type: ignore[arg-type] # classes are hashable
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if name not in adapters:
            # The message does not contain the value, which may be a secret in the wrong place.
            raise ConfigError("unknown parameter", field=f"{where}.{name}", remedy=known_choices(adapters, given=name))
        try:
            checked[name] = adapters[name].validate_python(value, strict=True)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            inside = "".join(f".{part}" for part in problem["loc"]) if isinstance(value, Mapping | list | tuple) else ""
            names = re.findall(r"'([^']*)'", str(problem.get("ctx", {}).get("expected")))
            meant = did_you_mean(problem["input"], names)
            shown = repr(problem["input"]) if meant else describe_value(problem["input"])
            remedy = f"{meant}{problem['msg']}"
            raise ConfigError(f"{shown} cannot be used", field=f"{where}.{name}{inside}", remedy=remedy) from error
    return checked


@functools.cache
def _adapters(kind: type[Any]) -> Mapping[str, "TypeAdapter[Any]"]:
    from pydantic import TypeAdapter

    hints = get_type_hints(kind, include_extras=True)
    names = sorted(field.name for field in fields(kind))
    return MappingProxyType({name: TypeAdapter(hints[name]) for name in names})


def function_identity(function: object) -> str:
    """Name of a function, with a hash of its source code if available, so that a changed function has another name."""
    kind: Any = function if hasattr(function, "__qualname__") else type(function)
    name = f"{kind.__module__}:{kind.__qualname__}"
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # a built-in function, or one defined at run time
        return name
    return f"{name} {sha256(source.encode()).hexdigest()[:12]}"
