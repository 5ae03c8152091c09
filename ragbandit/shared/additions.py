"""Finds additions: the folders of ragbandit/additions, and installed packages with an entry point.

The core imports no addition. It asks this module for the classes that additions offer for a hook (a field of
`Addition`), and imports a class when it needs the class.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import chain
from pkgutil import iter_modules, resolve_name
from types import MappingProxyType
from typing import Any, Final

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.plugins import distribution_of, installed_entry_points

#: the package whose folders are additions
PACKAGE: Final = "ragbandit.additions"
#: group of the entry points by which installed packages add additions: name = "package"
GROUP: Final = "ragbandit.additions"
#: name of an addition -> why the addition, or a part that it offers, is left out. Everything else works
_FAULTS: Final = dict[str, list[str]]()


@dataclass(frozen=True, kw_only=True, slots=True)
class Addition:
    """The parts that an addition offers. The `__init__` of its package defines ADDITION, and imports nothing else.

    Each hook maps the name under which something is offered to its place in the package, as "module:Class".
    """

    #: name of an arm -> a class that follows `ragbandit.hooks.Arm`
    arms: Mapping[str, str] = field(default_factory=dict)
    #: name of an arm that asks other arms (`CompositeArm`) -> params of this arm that contain the other arms' names
    arm_parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: name of a policy -> a class that follows `ragbandit.hooks.Policy`
    policies: Mapping[str, str] = field(default_factory=dict)
    #: name -> a subclass of `ragbandit.hooks.Step`, a step of deciding
    steps: Mapping[str, str] = field(default_factory=dict)
    #: `generator.name` -> a subclass of `ragbandit.hooks.GeneratorKind`
    generators: Mapping[str, str] = field(default_factory=dict)
    #: `retriever.name` -> a function from the settings to a `ragbandit.hooks.RetrieverKind`
    retrievers: Mapping[str, str] = field(default_factory=dict)
    #: ending of a file, as ".docx" -> a function that reads the file, see `ragbandit.hooks.ReadDocument`
    documents: Mapping[str, str] = field(default_factory=dict)
    #: name of a dialect of conversations -> an object `ragbandit.shared.dialects.dialect.Dialect`. Every process needs
    #: it, so its module may import only `ragbandit.shared`, and modules of its own folder under the same rule
    dialects: Mapping[str, str] = field(default_factory=dict)
    #: name of an interface over HTTP -> an object `ragbandit.router.api.door.Door`
    doors: Mapping[str, str] = field(default_factory=dict)
    #: name of an interface for questions, as in the setting `when.door` of rules -> path to which coding agents send
    #: questions; "" if they send none. A name with a path is also valid in `conversation.units`
    surfaces: Mapping[str, str] = field(default_factory=dict)
    #: name -> a subclass of `ragbandit.hooks.Chore`
    chores: Mapping[str, str] = field(default_factory=dict)
    #: name of a tool -> how its log is read, see `ragbandit.hooks.LogForm`; the addition other_tools reads logs
    logs: Mapping[str, str] = field(default_factory=dict)
    #: verb of the command -> its function: "index counts" joins a group of verbs, "Run: mcp" stands under a heading
    verbs: Mapping[str, str] = field(default_factory=dict)
    #: dotted key of a section of the settings, "" for the top level -> a class that follows `ragbandit.hooks.Section`.
    #: Its keys are set in that section, and code reads them there: `settings.retriever.of(Class)`
    sections: Mapping[str, str] = field(default_factory=dict)
    #: names of the other additions that the addition imports
    needs: frozenset[str] = frozenset()
    #: the files in docs/ that are deleted with the addition; they document its arms and policies if no other page does
    pages: tuple[str, ...] = ()


@cache
def additions() -> Mapping[str, Addition]:
    """Name of each folder of ragbandit/additions, and of each entry point -> its ADDITION, in the order of the names.

    An addition that cannot be read, or lacks an addition that it needs, is left out and listed in `faults`.
    """
    names = sorted({*_folders(), *installed_entry_points(GROUP)})
    read = {name: what for name in names if (what := _read(name)) is not None}
    while lacking := {name: needed for name, what in read.items() if (needed := what.needs - read.keys())}:
        for name, needed in lacking.items():
            add_fault(name, f"it needs the addition {', '.join(sorted(needed))}")
            del read[name]
    return MappingProxyType(read)


@cache
def _folders() -> frozenset[str]:
    return frozenset(module.name for module in iter_modules(import_module(PACKAGE).__path__) if module.ispkg)


def package_of(name: str) -> str:
    """The package of an addition. A folder of ragbandit/additions precedes an entry point with the same name."""
    is_installed = name in installed_entry_points(GROUP) and name not in _folders()
    return installed_entry_points(GROUP)[name][0].value if is_installed else f"{PACKAGE}.{name}"


def distributions() -> Mapping[str, str]:
    """Name of each addition of an installed package -> the package's name and version."""
    points = {name: points[0] for name, points in installed_entry_points(GROUP).items() if name not in _folders()}
    return {name: distribution_of(point) for name, point in points.items()}


def _read(name: str) -> Addition | None:
    points = installed_entry_points(GROUP).get(name, ())
    for point in points if name in _folders() else points[1:]:
        add_fault(f"{name} of the package {distribution_of(point)}", "another addition has its name")
    try:
        what = getattr(import_module(package_of(name)), "ADDITION", None)
        fault = "its __init__ defines no ADDITION"
    except Exception as error:  # a module may raise anything when it is imported
        what, fault = None, f"{type(error).__name__}: {error}"
    if isinstance(what, Addition):
        return what
    add_fault(name, fault)
    return None


def add_fault(addition: str, reason: str) -> None:
    """Remember why an addition, or a part of it, is left out. addition: its name, or a place in its package."""
    name = _owner(addition)
    brought = distributions().get(name)
    reason = f"{reason} (package {brought})" if brought else reason
    if reason not in _FAULTS.setdefault(name, []):
        _FAULTS[name].append(reason)


def _owner(place: str) -> str:
    """Name of the addition with this place. A place without a package of an addition is returned unchanged."""
    for name in distributions():
        if f"{place.partition(':')[0]}.".startswith(f"{package_of(name)}."):
            return name
    inside = place.removeprefix(f"{PACKAGE}.")
    return place if inside == place else inside.partition(".")[0]


def faults() -> Mapping[str, str]:
    """Name of an addition -> its faults as one text. A clash of names is found when the names of its hook are read."""
    additions()
    return MappingProxyType({name: "; ".join(whats) for name, whats in sorted(_FAULTS.items())})


def with_faults(remedy: str) -> str:
    """The remedy of an unknown name, with the faults of additions, since a faulty addition may offer the name."""
    return "; ".join([remedy, *(f"the addition {name} cannot be used: {what}" for name, what in faults().items())])


@cache
def offered_places(hook: str) -> Mapping[str, str]:
    """Name -> "package.module:Class", for all parts that additions offer for a hook. Imports none of them.

    If two additions offer the same name, the second one has a fault, and its name is left out.
    """
    places, taken = dict[str, str](), dict[str, str]()
    for addition, what in additions().items():
        for name, place in getattr(what, hook).items():
            words = _without_heading(name)
            if words in taken:
                add_fault(addition, f"{words!r} in {hook} is a name of {taken[words]} too")
                continue
            places[name] = taken[words] = f"{package_of(addition)}.{place}"
    return MappingProxyType(dict(sorted(places.items())))


def offered_places_except(core: Collection[str], *, hook: str) -> Mapping[str, str]:
    """`offered_places` without the names of the core (`core`). An addition that offers such a name gets a fault."""
    for name, place in offered_places(hook).items():
        if _without_heading(name) in core:
            add_fault(place, f"{_without_heading(name)!r} in {hook} is a name of the core")
    return {name: place for name, place in offered_places(hook).items() if _without_heading(name) not in core}


def _without_heading(name: str) -> str:
    """The name without its heading: "mcp" for the verb "Run: mcp". Only names of verbs have headings."""
    return name.rpartition(": ")[2]


@cache
def load_offered(hook: str) -> Mapping[str, Any]:
    """Name -> class or function, for all parts that additions offer for a hook. Imports their modules.

    Raises ConfigError with the place of a part that cannot be imported.
    """
    return MappingProxyType({name: _imported(name, place=place) for name, place in offered_places(hook).items()})


def arm_parts() -> Mapping[str, tuple[str, ...]]:
    """Name of an arm -> its params that contain names of other arms. Imports no arm."""
    return {arm: params for what in additions().values() for arm, params in what.arm_parts.items()}


@cache
def surfaces() -> Mapping[str, str]:
    """`Addition.surfaces` of all additions, in the order of the names. Imports no door."""
    paths = (what.surfaces.items() for what in additions().values())
    return MappingProxyType(dict(sorted(chain.from_iterable(paths))))


def section_parts(section: str) -> tuple[type[Any], ...]:
    """The classes with settings that additions declare for a section of the settings, in the order of the additions.

    Raises ConfigError with the place of a class that cannot be imported.
    """
    places = [(name, what.sections.get(section)) for name, what in additions().items()]
    return tuple(_imported(name, place=f"{package_of(name)}.{place}") for name, place in places if place)


def with_additions(core: Mapping[str, Any], *, hook: str) -> Mapping[str, Any]:
    """The core's own classes and those that additions offer for a hook, in the order of their names."""
    names = offered_places_except(core, hook=hook)
    added = {name: _imported(name, place=place) for name, place in names.items()}
    return MappingProxyType(dict(sorted({**core, **added}.items())))


def _imported(name: str, *, place: str) -> Any:
    try:
        return resolve_name(place)
    except Exception as error:  # a module may raise anything when it is imported
        brought = distributions().get(owner := _owner(place))
        message = f"{name!r} of the addition {owner} cannot be imported from {place}: {type(error).__name__}: {error}"
        remedy = (
            f"update or remove the package {brought}" if brought else "install RagBandit again, or delete the folder"
        )
        raise ConfigError(message, remedy=remedy) from error
