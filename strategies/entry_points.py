"""Classes of others: by import path, and the arms that installed packages offer by entry points of our group."""

import functools
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ragbandit.router.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "import_class", "installed", "load"]

GROUP = "ragbandit.strategies"


def import_class(path: object, *, where: str) -> Any:
    """What "package.module:Class" names.

    Raises ConfigError, with field `where`, for what is no such path, or if it cannot be imported.
    """
    module, colon, attribute = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not (module and colon and attribute):
        raise ConfigError(f"{path!r} is no import path", field=where, remedy='write it as "package.module:Class"')
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # whatever a module of others does when it is imported
        raise ConfigError(
            f"{path!r} cannot be imported: {type(error).__name__}: {error}",
            field=where,
            remedy="mend it, install it, or put it on PYTHONPATH",
        ) from error


@functools.cache
def installed() -> Mapping[str, tuple["EntryPoint", ...]]:
    """Arm name -> the entry points that claim it, one unless packages clash; looked up once per process."""
    from importlib.metadata import entry_points  # reads every installed package's metadata: not at import

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for each in sorted(entry_points(group=GROUP), key=lambda point: (point.name, _package(point))):
        found[each.name] = (*found.get(each.name, ()), each)
    return MappingProxyType(found)


def load(name: str, *, ours: bool) -> Any:
    """The class that an installed package offers under this name; None if there is none.

    ours: we have an arm of that name ourselves. Raises ConfigError with field "arms.<name>" where more than one package
    claims the name, ours being one, or where the class cannot be imported.
    """
    claims = installed().get(name, ())
    packages = [*(["ragbandit"] if ours else []), *map(_package, claims)]
    if not claims:
        return None
    if len(packages) > 1:
        raise ConfigError(
            f"{name!r} is claimed by the packages {', '.join(packages)}",
            field=f"arms.{name}",
            remedy='take one out, or say which is meant with class: "package.module:Class"',
        )
    try:
        return claims[0].load()
    except Exception as error:  # whatever a package of others does when it is imported
        raise ConfigError(
            f"{claims[0].value!r} of the package {packages[0]} cannot be imported: {type(error).__name__}: {error}",
            field=f"arms.{name}",
            remedy="mend or remove the package",
        ) from error


def _package(point: "EntryPoint") -> str:
    return "an unnamed package" if point.dist is None else point.dist.name
