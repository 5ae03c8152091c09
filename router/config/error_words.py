"""Turns errors of pydantic into plain words: the setting, the fault of its value, the value's source, and a remedy."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeGuard, get_args, get_type_hints

from pydantic import BaseModel, ValidationError

from ragbandit.router.config.settings import Settings
from ragbandit.router.config.sources import leaves_of, source_of
from ragbandit.shared.additions import additions, faults
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.texts.formats import did_you_mean, known_choices
from ragbandit.shared.texts.redaction import describe_value

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
#: part of the path of a setting whose value must match a pattern -> example of a value
_EXAMPLES = {
    "rate_limits": "for example 600/minute",
    "sources": "for example key:ID, role:app, tenant:acme, rater:NAME or import:NAME",
    "label": "1 to 40 small letters, digits and _",
    "cost_weights": "a small letter, then small letters, digits, - or _",
}


#: addition -> (section, keys) of its settings, so that the error for such a setting can name the missing addition
_OF_ADDITIONS: Mapping[str, tuple[str, frozenset[str]]] = {
    "anthropic": ("generator", frozenset({"anthropic"})),
    "elasticsearch": ("retriever", frozenset({"url", "api_key_env", "search", "timeout_s", "fields"})),
    "embeddings": ("", frozenset({"embeddings"})),
    "golden": ("learning", frozenset({"golden", "golden_s", "golden_dollars"})),
    "hybrid": ("retriever", frozenset({"first", "second"})),
    "local_models": ("generator", frozenset({"precision", "device", "threads", "max_batch", "trained_tokens"})),
    "model_picks": ("policy", frozenset({"pick"})),
    "other_tools": ("", frozenset({"ratings"})),
    "reranking": ("retriever", frozenset({"rerank"})),
}


def _of_addition(*path: str) -> str:
    """The part of an error about an unknown setting that names its missing addition; "" if no addition has it."""
    section = re.sub(r"^(generator|retriever)s\.[^.]+$|^.*\.(generator)$", r"\1\2", ".".join(path[:-1]))
    for name, (where, keys) in _OF_ADDITIONS.items():
        if where == section and path[-1] in keys and (name in faults() or name not in additions()):
            return f": the addition {name} {f'cannot be used: {faults()[name]}' if name in faults() else 'is missing'}"
    return ""


def first_error_of(error: ValidationError, *, sources: Mapping[str, str]) -> ConfigError:
    """The first fault of `error`. sources: dotted key -> where its value comes from"""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    message, remedy = first["msg"].removeprefix("Value error, "), None
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):  # in models, in dataclasses
        message = f"unknown setting{_of_addition(*map(str, first['loc']))}"
        remedy = known_choices(sorted(_keys_at(first["loc"][:-1])), given=str(first["loc"][-1]))
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
        key = re.sub(r"\.[^.]*\.\[key\]$", "", key)  # the error about a key names its mapping
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
        return "", describe_value(value)
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


def _keys_at(path: Sequence[str | int]) -> set[str]:
    """The keys of the section at this path. The section may be null by default, or an entry of a mapping or list."""
    classes: tuple[type[Any], ...] = (Settings,)
    for part in path:
        hints = [get_type_hints(one).get(str(part)) for one in classes]
        if any(hints):  # otherwise `part` is a key of a mapping or an index of a list
            classes = tuple(one for hint in hints for one in _sections_in(hint))
    return {name for one in classes for name in _keys_of(one)}


def _is_model(hint: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(hint, type) and issubclass(hint, BaseModel)


def _sections_in(hint: Any) -> Iterator[type[Any]]:
    """The classes of sections in the type of a setting."""
    if _is_model(hint) or (isinstance(hint, type) and is_dataclass(hint)):
        yield hint
    for part in get_args(hint):
        yield from _sections_in(part)


def _keys_of(section: type[Any]) -> Iterable[str]:
    return section.model_fields if _is_model(section) else (field.name for field in fields(section))


def _default_of(key: str) -> str | None:
    """A remedy that shows the default of a setting; None if `key` is not a single setting."""
    defaults = leaves_of(_defaults_of(Settings()))
    return f"the default is {json.dumps(defaults[key])}" if key in defaults else None


def _defaults_of(section: BaseModel) -> dict[str, Any]:
    """The defaults of a section. An inner section that is null by default is replaced by its defaults."""
    defaults = section.model_dump()
    for name, hint in get_type_hints(type(section)).items():
        value = getattr(section, name, None)
        inner = next((one for one in get_args(hint) if _is_model(one)), None) if value is None else None
        if inner is not None:
            value = inner.model_construct()  # has only the keys with a default
        if isinstance(value, BaseModel):
            defaults[name] = _defaults_of(value)
    return defaults


def _section_example(section: str) -> str | None:
    """A remedy that shows a setting of a section with its default; None if `section` is not a section."""
    for key, value in leaves_of(Settings().model_dump()).items():
        name = key.removeprefix(f"{section}.")
        if name != key and "." not in name:
            return f"for example {section}: {{{name}: {json.dumps(value)}}}"
    return None
