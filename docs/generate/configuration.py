"""docs/configuration.md from the settings' models: keys, types, defaults, ranges and the comments on the fields."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final, get_args, get_type_hints

from pydantic import BaseModel

from docs.generate.schemas import default_of, range_of, resolved, table, type_of
from ragbandit.router.config.settings import Settings

_HEAD: Final = """# Configuration

<!-- Written by `make docs` from router/config/, ragbandit/shared/model_servers/openai_options.py and the sections of
ragbandit/additions/. Change the fields and their comments there. -->

Every setting, with its type, its default and what it means. They stand in one YAML file, `./config.yaml` or the one
that `RAGBANDIT_CONFIG` or `--config` names. The file is read strictly: an unknown key or a value of the wrong type or
range stops the start, with the key, the value and the remedy. `ragbandit validate` checks a configuration
without starting anything, and prints all faults at once (exit code 2). If there are none, it tries whether data_dir
can be written, the port is free, and Redis, the database and servers of models can be reached. It prints what is not
the default and where it comes from (`--all`: every setting), and ends with one line: `ok: ...`, or the number of
problems (exit code 1). `--settings-only` tries nothing.

- **Order**: the environment beats the file, the file beats the default.
- **Environment**: `RAGBANDIT_<SECTION>__<KEY>`, for example `RAGBANDIT_LEARNING__WAIT_S=30` or
  `RAGBANDIT_GENERATOR__OPENAI__PREFIX=continue`; values are read as YAML. A key without a section has one underscore:
  `RAGBANDIT_DATA_DIR`. `DATABASE_URL` and `REDIS_URL` set `database_url` and `redis_url`.
  Variables that Kubernetes adds for a Service, as `RAGBANDIT_PORT=tcp://...`, are no settings.
- **Secrets** belong in the environment. A URL of the database, of Redis or of an arm with a password is
  refused in the file.
- **Numbers** may have an exponent: `5e-5`, `5.0e-5`.
- **Params** of arms stand in `arms` ([strategies.md](strategies.md)), those of the policy in `policy.params`
  ([policies.md](policies.md)).
"""


def configuration_page() -> str:
    """The whole page."""
    schema = Settings.model_json_schema()
    defaults = Settings()
    parts = [_HEAD]
    for key, model, value in sections(Settings, value=defaults):
        title = f"`{key}`" if key else "Top level"
        intro = " ".join((inspect.getdoc(model) or "").split())
        shown = _table(model, value=value, schema=schema)
        parts.append(f"## {title}\n\n{intro}\n" + (f"\n{shown}\n" if shown else ""))
    return "\n".join(parts)


def sections(model: type[Any], *, value: object, key: str = "") -> Iterator[tuple[str, type[Any], object]]:
    """Dotted key, class and defaults of every section, a section before those within it."""
    yield key, model, value
    hints = get_type_hints(model)
    for name in keys(model):
        inner = getattr(value, name)
        inner = _optional(hints[name]) if inner is None else inner
        if is_section(inner):
            yield from sections(type(inner), value=inner, key=f"{key}.{name}" if key else name)


def _optional(hint: Any) -> BaseModel | None:
    """The defaults of a section that is null by default; None if it has no defaults, or is described elsewhere."""
    parts = (part for part in get_args(hint) if isinstance(part, type) and issubclass(part, BaseModel))
    for kind in (part for part in parts if part not in _described()):
        if not any(field.is_required() for field in kind.model_fields.values()):
            return kind.model_construct()
    return None


@cache
def _described() -> set[type[Any]]:
    """The classes that the top level of the settings holds."""
    defaults = Settings()
    return {type(getattr(defaults, name)) for name in Settings.model_fields}


def is_section(value: object) -> bool:
    """Whether a value has settings of its own: sections are pydantic models or dataclasses."""
    return isinstance(value, BaseModel) or is_dataclass(value)


def keys(model: type[Any]) -> dict[str, str | None]:
    """Map each key of a section to its description, or None if it has none."""
    if issubclass(model, BaseModel):
        return {name: field.description for name, field in model.model_fields.items()}
    return {field.name: None for field in fields(model)}


def _table(model: type[Any], *, value: object, schema: Mapping[str, Any]) -> str:
    definitions = schema.get("$defs", {})
    meanings = comments(model)
    own = definitions.get(model.__name__, schema)
    rows = []
    for name, description in keys(model).items():
        shape = own["properties"][name]
        if "properties" in resolved(shape, definitions):
            continue
        kind = " or ".join(filter(None, [type_of(shape, definitions)]))
        limits = range_of(shape)
        default = default_of(getattr(value, name))
        meaning = re.sub(r"\bNone\b", "null", description or meanings.get(name, ""))
        rows.append([f"`{name}`", f"{kind}, {limits}" if limits else kind, default, meaning])
    return table(["key", "type", "default", "meaning"], rows) if rows else ""


def comments(model: type[Any]) -> dict[str, str]:
    """Field -> the comment above it, its lines that begin with `#:`; also for fields of its base classes."""
    meanings: dict[str, str] = {}
    for one in model.__mro__[::-1]:
        if one.__module__.startswith("ragbandit."):
            meanings |= _comments_in(one.__name__, module=one.__module__)
    return meanings


def _comments_in(name: str, *, module: str) -> dict[str, str]:
    lines = inspect.getsource(sys.modules[module]).splitlines()
    tree = ast.parse("\n".join(lines))
    (definition,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    meanings = {}
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            at, above = node.lineno - 2, list[str]()
            while lines[at].strip().startswith("#:"):
                above.insert(0, lines[at].strip().removeprefix("#:").strip())
                at -= 1
            if above:
                meanings[node.target.id] = " ".join(above)
    return meanings
