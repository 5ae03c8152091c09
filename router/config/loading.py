"""Loads settings from one YAML file and the environment: the environment overrides the file, the file the defaults.

Environment variables: DATABASE_URL, REDIS_URL, and RAGBANDIT_<SECTION>__<KEY> for any setting, with YAML values. If a
setting names a class ("package.module:Class"), the folder of the file is appended to sys.path. It comes last, so a
module there cannot shadow an installed one.
"""

import copy
import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml
from pydantic import ValidationError

from ragbandit.router.config.context_schema import ContextKey
from ragbandit.router.config.named_sections import BY_NAME, grids_of, section_of, value_at
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.formats import did_you_mean, known_choices
from ragbandit.shared.redaction import HIDDEN, credentials_in, described, shown_value, without_secrets

Sources = Mapping[str, str]
#: maximum number of values in a YAML text; an alias counts as many values as it stands for
_MOST_VALUES: Final = 1_000_000


def leaves_of(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key -> value of every leaf."""
    return {".".join(path): value for path, value in paths_of(tree)}


def paths_of(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """(path of keys, value) of every leaf. above: path of the tree itself."""
    rows: list[tuple[tuple[str, ...], Any]] = []
    for key, value in tree.items():
        path = (*above, str(key))
        rows += paths_of(value, path) if isinstance(value, dict) and value else [(path, value)]
    return rows


def source_of(key: str, sources: Sources) -> str | None:
    """The source of a setting, else of a section that contains the setting, or of a part of the setting; else None."""
    related = (
        source for name, source in sources.items() if f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.")
    )
    return sources.get(key) or next(related, None)


def with_short_forms(tree: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    """Add the sources of settings that come from short forms: arms of grids, and sections given by their names."""
    expanded = dict(sources)
    for entry, names in grids_of(tree.get("arms") or {}).items():
        origin = source_of(f"arms.{entry}.grid", sources)
        expanded |= {f"arms.{name}": f"{origin}, grid of arms.{entry}" for name in names}
    for path in BY_NAME:
        name = value_at(tree, path)
        if not isinstance(name, str):
            continue
        key = ".".join(path)
        section = section_of("generator", name)
        origin = expanded.pop(key)
        suffixes = [setting.removeprefix(section) for setting in sources if setting.startswith(f"{section}.")]
        expanded |= {f"{key}{suffix}": f"{origin}, {section}" for suffix in suffixes}
    return expanded


log = logging.getLogger("ragbandit.config")

ENV_PREFIX = "RAGBANDIT_"
#: variable with the folder of users' classes. `up` sets it, since its children read a copy of the configuration
CLASS_FOLDER = "RAGBANDIT_CLASS_FOLDER"
_CLASS_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
#: folder of the file that was loaded last, empty without a file; `with_changes` looks for classes there
_folder: list[str] = []
_NOT_SETTINGS = {"RAGBANDIT_CONFIG", "RAGBANDIT_URL", "RAGBANDIT_API_KEY", CLASS_FOLDER}
_PLAIN_ENV = {"DATABASE_URL": "database_url", "REDIS_URL": "redis_url"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedSettings:
    settings: Settings
    #: dotted key -> "file <path>" or "environment <variable>"; keys with default values are missing
    sources: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None
    #: content of the file, without the environment
    tree: Mapping[str, Any] = field(default_factory=dict)


def load(path: str | Path | None = None, *, environ: Mapping[str, str] | None = None) -> LoadedSettings:
    """Read the file (default: $RAGBANDIT_CONFIG, else ./config.yaml if present) and the environment. Raises
    ConfigError.
    """
    environ = os.environ if environ is None else environ
    path = path or environ.get("RAGBANDIT_CONFIG")
    file = Path(path or "config.yaml")
    has_file = file.is_file()
    if path and not has_file:
        raise ConfigError(f"the file {file} does not exist", field="config", remedy="give --config an existing file")
    tree = _read(file) if has_file else {}
    _refuse_secrets(tree)
    written = copy.deepcopy(tree)
    sources = dict.fromkeys(leaves_of(tree), f"file {file}")
    for variable, keys, value in sorted(_from_environment(environ), key=lambda variable_keys: len(variable_keys[1])):
        _put(tree, keys, value, variable=variable)
        key = ".".join(keys)
        sources = {name: source for name, source in sources.items() if not f"{name}.".startswith(f"{key}.")}
        sources |= dict.fromkeys(leaves_of({key: value}), f"environment {variable}")
    settings = _checked(tree, sources)
    sources = with_short_forms(tree, sources)
    _check_urls(settings)
    _folder.clear()
    if has_file:
        _folder.append(environ.get(CLASS_FOLDER) or class_folder(file))
    _find_classes(tree)
    return LoadedSettings(settings=settings, sources=sources, file=file if has_file else None, tree=written)


def _find_classes(tree: Mapping[str, Any]) -> None:
    if any(isinstance(value, str) and _CLASS_PATH.fullmatch(value) for value in leaves_of(tree).values()):
        sys.path.extend(folder for folder in _folder if folder not in sys.path)


def class_folder(file: Path) -> str:
    return str(file.absolute().parent)


def with_changes(settings: Settings, changes: Mapping[str, Mapping[str, object]]) -> Settings:
    """A checked copy of the settings with changes. Raises ConfigError, which names the setting.

    changes: section -> its changed settings. Changes of `policy.params` are merged with the present params, unless the
    policy's name changes.
    """
    _find_classes(dict(changes))
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
    return _checked(tree)


def _checked(tree: Mapping[str, Any], sources: Mapping[str, str] = MappingProxyType({})) -> Settings:
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise _explained(error, sources) from error


def effective(loaded: LoadedSettings) -> list[tuple[str, object, str]]:
    """(dotted key, value, source) of every setting, with secrets hidden as in `shown_value`."""
    return [
        (*_shown(path, value), source_of(".".join(path), loaded.sources) or "default")
        for path, value in paths_of(loaded.settings.model_dump())
    ]


def changed_settings(settings: Settings) -> dict[str, object]:
    """Dotted key -> value of every setting that differs from its default, with secrets hidden."""
    missing = object()
    defaults = leaves_of(Settings().model_dump())
    values = leaves_of(settings.model_dump())
    changed = {key for key, value in values.items() if defaults.get(key, missing) != value}
    leaves = paths_of(settings.model_dump(mode="json"))
    return dict(_shown(path, value) for path, value in leaves if ".".join(path) in changed)


def _shown(path: tuple[str, ...], value: Any) -> tuple[str, object]:
    key = ".".join(path)
    if key not in _PLAIN_ENV.values() or not isinstance(value, str):
        return without_secrets(key), shown_value(value, path=path)
    url = _parsed_url(value)
    return key, url.set(query=dict.fromkeys(url.query, HIDDEN)).render_as_string(hide_password=True)


def _parsed_url(url: str) -> Any:
    from sqlalchemy.engine import make_url  # imported here: it takes 0.2 s, and most files contain no URL
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # make_url raises ValueError if the port is not a number
        return None


class _OnceLoader(yaml.SafeLoader):
    """A SafeLoader that refuses duplicate keys, and aliases that stand for more than _MOST_VALUES values together."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.CollectionNode):
            parts = node.value if isinstance(node, yaml.SequenceNode) else chain.from_iterable(node.value)
            size = 1 + sum(getattr(part, "size", 1) for part in parts)
            if size > _MOST_VALUES:
                raise yaml.constructor.ConstructorError(None, None, "there are too many values", node.start_mark)
            node.size = size  # type: ignore[attr-defined] # read when the enclosing collection is counted
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is set twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        """Construct a value. Raises ConstructorError for impossible dates (2026-13-45) and recursive values."""
        try:
            return super().construct_object(node, deep=deep or True)  # with deep=True recursive values raise
        except (ValueError, KeyError, AttributeError):
            raise yaml.constructor.ConstructorError(None, None, "the value is invalid", node.start_mark) from None


def parsed_yaml(text: str) -> Any:
    """Parse a YAML text. Raises ValueError with line and column, but without the text, which may contain a secret."""
    try:
        return yaml.load(text, Loader=_OnceLoader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        fault = f"{error.problem or error.context or 'it is not YAML'}{where}"
    except (yaml.YAMLError, TypeError, RecursionError) as error:  # control characters, odd keys or recursive anchors
        fault = f"it is not YAML ({type(error).__name__})"
    raise ValueError(fault)


def _read(file: Path) -> dict[str, Any]:
    try:
        tree = parsed_yaml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fault = error.strerror if isinstance(error, OSError) else str(error)
        fault = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else fault
        remedy = "check the indentation, and quote values that hold a colon"
        raise ConfigError(f"{file} cannot be read: {fault}", field="config", remedy=remedy) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        remedy = "write key: value lines"
        raise ConfigError(f"{file} must hold a mapping, not {type(tree).__name__}", field="config", remedy=remedy)
    return tree


def _refuse_secrets(tree: Mapping[str, Any]) -> None:
    for variable, key in _PLAIN_ENV.items():
        value = tree.get(key)
        url = _parsed_url(value) if isinstance(value, str) else None  # invalid URLs are reported by `_check_urls`
        if url is not None and (url.password or "password" in url.query):
            message = "the file has a URL with a password, visible to everyone who can read the file"
            remedy = f"take it out of the file and set the environment variable {variable}"
            raise ConfigError(message, field=key, remedy=remedy)
    field = credentials_in(tree.get("arms"), field="arms")
    if field is not None:
        message = "the file has an address with a user, password or key, visible to everyone who can read the file"
        remedy = (
            "remove it, and send it as a header (headers_env of the arm http) or set this param by the environment, as "
            f"{ENV_PREFIX}ARMS__NAME__PARAM"
        )
        raise ConfigError(message, field=field, remedy=remedy)


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, tuple[str, ...], Any]]:
    variables: list[tuple[str, tuple[str, ...], Any]] = []
    for variable, value in environ.items():
        if variable in _PLAIN_ENV and value:
            variables.append((variable, (_PLAIN_ENV[variable],), value))
        elif variable.startswith(ENV_PREFIX) and variable not in _NOT_SETTINGS:
            keys = tuple(variable.removeprefix(ENV_PREFIX).lower().split("__"))
            try:
                variables.append((variable, keys, parsed_yaml(value)))
            except ValueError:
                message = "the value of this variable is not a YAML value"
                raise ConfigError(message, field=variable, remedy="put the value in quotes") from None
    return variables


def _put(tree: dict[str, Any], keys: tuple[str, ...], value: object, *, variable: str) -> None:
    for key in keys[:-1]:
        if tree.get(key) is None:  # missing, or an empty section
            tree[key] = {}
        tree = tree[key]
        if not isinstance(tree, dict):
            raise ConfigError(
                f"{key} is a single setting, but this variable sets a part of it",
                field=variable,
                remedy=f"unset this variable, or set {ENV_PREFIX}{key.upper()}",
            )
    tree[keys[-1]] = value


#: pattern in pydantic's messages -> plainer words
_WORDS = {
    r"a valid dictionary( or instance of \w+)?": "a mapping",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
    "(Input|String) should be": "must be",
    "(Dictionary|List) should have (.*) after validation, not .*": r"must have \2",
    "String should match pattern .*": "must have another form",
}
#: last part of a setting whose value must match a pattern -> example of a value
_EXAMPLES = {
    "rate_limits": "for example 600/minute",
    "sources": "for example key:ID, role:app, tenant:acme, rater:NAME or import:NAME",
    "label": "1 to 40 small letters, digits and _",
    "cost_weights": "a small letter, then small letters, digits, - or _",
}
#: the defaults, with the sections that are null by default
_WITH_ALL_SECTIONS = Settings.model_validate(
    {"judge": {"generator": {}}, "generator": {"token_prices": {"input": 0.0, "output": 0.0}}}
)


def _explained(error: ValidationError, sources: Mapping[str, str]) -> ConfigError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    message, remedy = first["msg"].removeprefix("Value error, "), None
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):  # a model's, a dataclass's
        section, path = _WITH_ALL_SECTIONS.model_dump(), first["loc"]
        if path[0] in ("generators", "retrievers") and len(path) > 2:
            path = (path[0][:-1], *path[2:])  # has the same settings as the section without a name
        for part in path[:-1]:
            section = section.get(str(part)) or dict.fromkeys(ContextKey.model_fields)
        message = "unknown setting"
        choices = known_choices(sorted(section), given=str(first["loc"][-1]))
        remedy = f"{choices}; for a setting of another release see CHANGELOG.md"
    elif first["type"] == "missing":
        message, remedy = "is needed", "it has no default"
    elif first["type"] != "value_error":
        # Pydantic appends the type in a union that it has tried last. Users do not know these types.
        key = re.sub(r"\.(literal\[.*|constrained-str|\[key\])$", "", key)
        suggestion, value = _suggestion(first)
        for pattern, words in _WORDS.items():
            message = re.sub(pattern, words, message, count=1)
        message = f"{message}, not {value}"
        remedy = suggestion or "; ".join(filter(None, (_unit(first), _default_of(key) or _section_example(key))))
        arms_remedy = "for example {fast: {run_by: caller}, deep: {run_by: caller}}"
        remedy = arms_remedy if first["loc"][0] == "arms" else remedy or None
    else:
        key = re.sub(r"\.[^.]*\.\[key\]$", "", key)  # if a key is refused, name the mapping that has it
        head, _, tail = message.partition(": ")
        if tail and " " not in head:
            key, message = head, tail
    source = source_of(key, sources)
    return ConfigError(
        f"{message}{f' [{source}]' if source else ''}",
        field=key or "config",
        remedy=remedy or _default_of(key) or "`ragbandit validate --all` lists every setting",
    )


def _suggestion(fault: Any) -> tuple[str, str]:
    """Returns ("did you mean ...?" or "", description of the value). The description of a possible secret hides it."""
    value = fault["input"]
    if fault["type"] in ("too_short", "too_long"):
        return "", str(len(value))
    if fault["type"] != "literal_error" or not isinstance(value, str):
        return "", described(value)
    suggestion = did_you_mean(value, re.findall(r"'([^']*)'", fault["ctx"]["expected"])).strip()
    return suggestion, repr(value) if suggestion else "another text"


def _unit(fault: Any) -> str:
    """A remedy: the unit of a number, or an example of a text that must match a pattern; "" for other faults."""
    if fault["type"] == "string_pattern_mismatch":
        return next((text for key, text in _EXAMPLES.items() if key in fault["loc"]), "")
    seconds = str(fault["loc"][-1]).endswith("_s")
    if fault["type"] in ("float_type", "int_type") and isinstance(fault["input"], str):
        return f"write a plain number{' of seconds' if seconds else ''}, without quotes and unit"
    return "in seconds" if seconds else ""


def _default_of(key: str) -> str | None:
    """A remedy that shows the default of a setting; None if `key` is not a single setting."""
    defaults = leaves_of(_WITH_ALL_SECTIONS.model_dump())
    return f"the default is {json.dumps(defaults[key])}" if key in defaults else None


def _section_example(section: str) -> str | None:
    """A remedy that shows a setting of a section with its default; None if `section` is not a section."""
    for key, value in leaves_of(Settings().model_dump()).items():
        name = key.removeprefix(f"{section}.")
        if name != key and "." not in name:
            return f"for example {section}: {{{name}: {json.dumps(value)}}}"
    return None


#: setting with a URL -> (supported schemes, remedy)
_URLS = {
    "database_url": (("sqlite", "postgresql"), "use sqlite:///FILE or postgresql+psycopg://host/name"),
    "redis_url": (("redis", "rediss", "unix"), "for example redis://host:6379/0"),
}


def _check_urls(settings: Settings) -> None:
    for key, (schemes, remedy) in _URLS.items():
        text = getattr(settings, key)
        if text:
            url = _parsed_url(text)
            scheme = url and (url.get_backend_name() if key == "database_url" else url.drivername)
            if scheme not in schemes:
                fault = f"URLs of the kind {scheme!r} cannot be used here" if scheme else "this is not a URL"
                raise ConfigError(fault, field=key, remedy=remedy)
