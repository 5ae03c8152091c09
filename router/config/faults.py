"""Finds all faults of a configuration: each setting with a fault is removed, and the rest is checked again."""

import copy
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ragbandit.router.config.loading import checked_settings, read_tree
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError

#: maximum number of checks, each of which finds one fault
_MOST: Final = 50
#: replaces an arm with a fault, so that settings that name the arm cause no further fault
_ARM: Final[Mapping[str, Any]] = {"class": "no_retrieval"}

#: replaces a wrong address of a server; without an address, the next fault would be a missing key for OpenAI
_SERVER: Final = "http://localhost/v1"


def faults_of(
    path: str | Path | None, *, check: Callable[[Settings], object], environ: Mapping[str, str] | None = None
) -> list[ConfigError]:
    """Every fault of the file and the environment. check: raises ConfigError for settings that cannot be used.

    A fault that only follows from an earlier one is left out: its setting contains the setting of the earlier fault.
    """
    try:
        read = read_tree(path, environ=os.environ if environ is None else environ)
    except ConfigError as error:
        return [error]
    tree, faults = copy.deepcopy(read.tree), list[ConfigError]()
    for _ in range(_MOST):
        try:
            check(checked_settings(tree, sources=read.sources))
        except ConfigError as error:
            field = error.field or ""
            if not any(f"{fault.field}.".startswith(f"{field}.") for fault in faults):
                faults.append(error)
            if _remove_setting(tree, field):
                continue
        break
    return faults


def _remove_setting(tree: dict[str, Any], field: str) -> bool:
    """Remove a setting from the tree, or empty the section that lacks it. Returns whether the tree has changed."""
    path = _path_in(tree, field)
    if path is None:
        section, _, _ = field.rpartition(".")
        return bool(section) and _empty_section(tree, section)
    if path[0] == "arms" and (len(path) == 2 or path[2:] == ["class"]):
        return _empty_section(tree, f"arms.{path[1]}")
    parent = tree
    for key in path[:-1]:
        parent = parent[key]
    if path[-1] == "base_url" and parent["base_url"] != _SERVER:
        parent["base_url"] = _SERVER
    else:
        del parent[path[-1]]
    if path == ["policy", "name"]:
        parent.pop("params", None)  # another policy has other params
    return True


def _empty_section(tree: dict[str, Any], field: str) -> bool:
    """Empty a section, so that settings that name it cause no further fault; remove it if it is empty already. Returns
    whether the tree has changed.
    """
    path = _path_in(tree, field)
    if path is None:
        return _remove_setting(tree, field)
    parent = tree
    for key in path[:-1]:
        parent = parent[key]
    value, empty = parent[path[-1]], dict[str, Any]()
    if path[0] == "arms" and len(path) == 2:
        is_callers = isinstance(value, Mapping) and value.get("run_by") == "caller"
        empty = {"run_by": "caller"} if is_callers else dict(_ARM)
    parent[path[-1]] = empty
    if value == empty and path[0] != "arms":
        del parent[path[-1]]
        return True
    return bool(value != empty)


def _path_in(tree: object, field: str) -> list[str] | None:
    """The keys that lead to a setting; a key may have dots. None if the tree does not have the setting."""
    if not isinstance(tree, Mapping):
        return None
    for key in map(str, tree):
        if field == key:
            return [key]
        rest = _path_in(tree[key], field.removeprefix(f"{key}.")) if field.startswith(f"{key}.") else None
        if rest is not None:
            return [key, *rest]
    return None
