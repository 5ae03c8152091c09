"""Sources: for every setting that was given, by dotted key, "file <path>" or "environment <variable>"."""

from collections.abc import Iterator, Mapping
from typing import Any

from ragbandit.router.config.grids import grids_of
from ragbandit.router.config.named_sections import BY_NAME, section_of, value_at

Sources = Mapping[str, str]


def leaves_of(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key -> value of every leaf."""
    return {".".join(path): value for path, value in paths_of(tree)}


def paths_of(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every leaf with the names of its sections and its own."""
    rows: list[tuple[tuple[str, ...], Any]] = []
    for key, value in tree.items():
        path = (*above, str(key))
        rows += paths_of(value, path) if isinstance(value, dict) and value else [(path, value)]
    return rows


def source_of(key: str, sources: Sources) -> str | None:
    """The source of a leaf: its own, or that of the mapping above it that was given as a whole."""
    while key and key not in sources:
        key = key.rpartition(".")[0]
    return sources.get(key)


def source_at(key: str, sources: Sources) -> str | None:
    """The source of a leaf, or of a section: then that of something in it."""
    return source_of(key, sources) or next((source for _, source in _below(key, sources)), None)


def without(sources: Sources, key: str) -> dict[str, str]:
    """The sources without those of this key and of all below it."""
    return {each: source for each, source in sources.items() if each != key and not each.startswith(f"{key}.")}


def with_short_forms(tree: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    """The sources, and those of what short forms stand for: arms of grids, and sections that were given by name."""
    whole = dict(sources)
    for entry, names in grids_of(tree.get("arms") or {}).items():
        origin = source_at(f"arms.{entry}.grid", sources)
        whole |= {f"arms.{name}": f"{origin}, grid of arms.{entry}" for name in names}
    for path in BY_NAME:
        if isinstance(name := value_at(tree, path), str):
            origin, section = whole.pop(key := ".".join(path)), section_of("generator", name)
            whole |= {f"{key}.{each}": f"{origin}, {section}" for each, _ in _below(section, sources)}
    return whole


def _below(key: str, sources: Sources) -> Iterator[tuple[str, str]]:
    """What was given in a section, by its key there, and its sources."""
    return ((each.removeprefix(f"{key}."), source) for each, source in sources.items() if each.startswith(f"{key}."))
