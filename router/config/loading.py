"""Loads settings from one YAML file and the environment: the environment overrides the file, the file the defaults.

Environment variables: DATABASE_URL, REDIS_URL, and RAGBANDIT_<SECTION>__<KEY> for any setting, with YAML values. A
setting may name a class of the user ("package.module:Class"): the folder of the file is appended to sys.path. It comes
last, so a module there cannot shadow an installed one.
"""

import copy
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import ValidationError

from ragbandit.router.config.error_words import first_error_of
from ragbandit.router.config.settings import Settings
from ragbandit.router.config.sources import Sources, leaves_of, paths_of, source_of, with_short_forms, with_source
from ragbandit.router.config.strict_yaml import parse_yaml
from ragbandit.router.config.urls import PLAIN_VARIABLES, check_url, refuse_secrets, shown_setting
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.files import read_text

ENV_PREFIX: Final = "RAGBANDIT_"
#: variable with the folder of users' classes. `up` sets it, since its children read a copy of the configuration
CLASS_FOLDER: Final = "RAGBANDIT_CLASS_FOLDER"
_NOT_SETTINGS: Final = {"RAGBANDIT_CONFIG", "RAGBANDIT_URL", "RAGBANDIT_API_KEY", CLASS_FOLDER}
#: variables that Kubernetes and Docker put into containers, for each Service whose name begins with "ragbandit"
_SERVICE_ENDS: Final = ("_SERVICE_HOST", "_SERVICE_PORT")
_SERVICE_LINK: Final = re.compile(r"_PORT_\d{1,5}_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?\Z")
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://\S+")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedSettings:
    settings: Settings
    sources: Sources = field(default_factory=dict)
    file: Path | None = None
    #: content of the file, without the environment
    tree: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> list[tuple[str, object, str]]:
        """(dotted key, value, source) of every setting, with secrets hidden as in `shown_value`."""
        return [
            (*shown_setting(path, value), source_of(".".join(path), self.sources) or "default")
            for path, value in paths_of(self.settings.model_dump())
        ]


def load(path: str | Path | None = None, *, environ: Mapping[str, str] | None = None) -> LoadedSettings:
    """Read the file (default: $RAGBANDIT_CONFIG, else ./config.yaml if present) and the environment. Raises
    ConfigError.
    """
    read = read_tree(path, environ=os.environ if environ is None else environ)
    settings = checked_settings(read.tree, sources=read.sources)
    sources = with_short_forms(read.tree, read.sources)
    return LoadedSettings(settings=settings, sources=sources, file=read.file, tree=read.written)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadTree:
    file: Path | None
    #: content of the file, without the environment
    written: Mapping[str, Any]
    #: the settings of file and environment, not checked
    tree: dict[str, Any]
    sources: Sources


def read_tree(path: str | Path | None, *, environ: Mapping[str, str]) -> ReadTree:
    """Read the file and the environment, and make classes of users importable. Raises ConfigError."""
    file = _find_file(path or environ.get("RAGBANDIT_CONFIG"))
    tree = {} if file is None else _read_file(file)
    refuse_secrets(tree)
    written = copy.deepcopy(tree)
    sources = dict.fromkeys(leaves_of(tree), f"file {file}")
    for variable, keys, value in _environment_settings(environ):
        _set_value(tree, keys, value, variable=variable)
        sources = with_source(sources, ".".join(keys), value=value, source=f"environment {variable}")
    if file is not None:
        folder = environ.get(CLASS_FOLDER) or class_folder(file)
        sys.path.extend({folder} - {*sys.path})
    return ReadTree(file=file, written=written, tree=tree, sources=sources)


def checked_settings(tree: Mapping[str, Any], *, sources: Sources = MappingProxyType({})) -> Settings:
    """The settings of a tree. Raises ConfigError for the first fault."""
    settings = _validate(tree, sources)
    check_url(settings.database_url, key="database_url")
    check_url(settings.redis_url, key="redis_url")
    return settings


def class_folder(file: Path) -> str:
    return str(file.absolute().parent)


def with_changes(settings: Settings, changes: Mapping[str, Mapping[str, object]]) -> Settings:
    """A checked copy of the settings with changes. Raises ConfigError, which names the setting.

    changes: section -> its changed settings. Changes of `policy.params` are merged with the present params, unless the
    policy's name changes.
    """
    tree = settings.model_dump()
    for section, changed in changes.items():
        if not isinstance(tree.get(section), dict) or not isinstance(changed, Mapping):
            raise ConfigError("this is not a section with settings", field=section, remedy="use {name: value}")
        present = tree[section]
        tree[section] = {**present, **changed}
        params = changed.get("params", {})
        if section == "policy" and isinstance(params, Mapping):
            same_policy = changed.get("name", present.get("name")) == present.get("name")
            tree[section]["params"] = {**present["params"], **params} if same_policy else dict(params)
    return _validate(tree)


def _validate(tree: Mapping[str, Any], sources: Sources = MappingProxyType({})) -> Settings:
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise first_error_of(error, sources=sources) from error


def _find_file(path: str | Path | None) -> Path | None:
    file = Path(path or "config.yaml")
    if file.is_file() or (path and file.exists()):
        return file
    if path:
        raise ConfigError(f"the file {file} does not exist", field="config", remedy="give --config an existing file")
    return None


def _read_file(file: Path) -> dict[str, Any]:
    try:
        tree = parse_yaml(read_text(file))
    except (OSError, ValueError) as error:
        fault, remedy = str(error), "check the indentation, and quote values that hold a colon"
        if isinstance(error, OSError):
            fault, remedy = error.strerror or fault, "give --config a YAML file that this user can read"
        raise ConfigError(f"{file} cannot be read: {fault}", field="config", remedy=remedy) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        remedy = "write key: value lines"
        raise ConfigError(f"{file} must hold a mapping, not {type(tree).__name__}", field="config", remedy=remedy)
    return tree


def _environment_settings(environ: Mapping[str, str]) -> list[tuple[str, tuple[str, ...], Any]]:
    """(variable, path of keys, value) of every setting in the environment, sections before settings within them."""
    variables: list[tuple[str, tuple[str, ...], Any]] = []
    for variable, value in environ.items():
        if variable in PLAIN_VARIABLES and value:
            variables.append((variable, (PLAIN_VARIABLES[variable],), value))
        elif variable.startswith(ENV_PREFIX) and variable not in _NOT_SETTINGS and not _is_link(variable, value):
            keys = tuple(variable.removeprefix(ENV_PREFIX).lower().split("__"))
            try:
                variables.append((variable, keys, parse_yaml(value)))
            except ValueError:
                message = "the value of this variable is not a YAML value"
                raise ConfigError(message, field=variable, remedy="put the value in quotes") from None
    return sorted(variables, key=lambda row: len(row[1]))


def _is_link(variable: str, value: str) -> bool:
    """Whether Kubernetes or Docker has set the variable, to the address of a Service."""
    if variable.endswith("_PORT") and _SERVICE_URL.fullmatch(value) is not None:
        return True
    is_named = variable.endswith(_SERVICE_ENDS) or "_SERVICE_PORT_" in variable
    return "__" not in variable and (is_named or _SERVICE_LINK.search(variable) is not None)


def _set_value(tree: dict[str, Any], keys: tuple[str, ...], value: object, *, variable: str) -> None:
    for key in keys[:-1]:
        if tree.get(key) is None:  # the section is missing or empty
            tree[key] = {}
        tree = tree[key]
        if not isinstance(tree, dict):
            raise ConfigError(
                f"{key} is a single setting, but this variable sets a part of it",
                field=variable,
                remedy=f"unset this variable, or set {ENV_PREFIX}{key.upper()}",
            )
    tree[keys[-1]] = value
