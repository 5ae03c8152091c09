"""Sources of settings: the file or environment variable of each value, for errors and `ragbandit validate`."""

from collections.abc import Mapping
from typing import Any

from ragbandit.router.config.grids import grids_of
from ragbandit.router.config.named_sections import section_of, settings_by_name, value_at
from ragbandit.router.config.settings import Settings
from ragbandit.router.config.urls import shown_setting

#: dotted key -> "file <path>" or "environment <variable>"; keys with default values are missing
Sources = Mapping[str, str]


def leaves_of(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key -> value of every leaf."""
    return {".".join(path): value for path, value in paths_of(tree)}


def paths_of(tree: Mapping[str, Any], parents: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """(path of keys, value) of every leaf. parents: path of the tree itself."""
    rows: list[tuple[tuple[str, ...], Any]] = []
    for key, value in tree.items():
        path = (*parents, str(key))
        rows += paths_of(value, path) if isinstance(value, dict) and value else [(path, value)]
    return rows


def source_of(key: str, sources: Sources) -> str | None:
    """The source of a setting, else of a section that contains it or of a part of it; None for a default."""
    related = (
        source for name, source in sources.items() if f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.")
    )
    return sources.get(key) or next(related, None)


def with_source(sources: Sources, key: str, *, value: object, source: str) -> dict[str, str]:
    """The sources after `source` has set `key`, a setting or a whole section, to `value`."""
    others = {name: former for name, former in sources.items() if not f"{name}.".startswith(f"{key}.")}
    return others | dict.fromkeys(leaves_of({key: value}), source)


def with_short_forms(tree: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    """Add the sources of settings from short forms: arms of grids, and sections that are given by name."""
    expanded = dict(sources)
    for entry, names in grids_of(tree.get("arms") or {}).items():
        origin = source_of(f"arms.{entry}.grid", sources)
        expanded |= {f"arms.{name}": f"{origin}, grid of arms.{entry}" for name in names}
    for path in settings_by_name():
        name = value_at(tree, path)
        if not isinstance(name, str):
            continue
        key = ".".join(path)
        section = section_of("generator", name)
        origin = expanded.pop(key)
        suffixes = [setting.removeprefix(section) for setting in sources if setting.startswith(f"{section}.")]
        expanded |= {f"{key}{suffix}": f"{origin}, {section}" for suffix in suffixes}
    return expanded


def changed_settings(settings: Settings) -> dict[str, object]:
    """Dotted key -> value of every setting that differs from its default, with secrets hidden."""
    missing = object()
    defaults = leaves_of(Settings().model_dump())
    values = leaves_of(settings.model_dump())
    changed = {key for key, value in values.items() if defaults.get(key, missing) != value}
    leaves = paths_of(settings.model_dump(mode="json"))
    return dict(shown_setting(path, value) for path, value in leaves if ".".join(path) in changed)
