"""The comments of config.yaml, from the comments on the settings' fields: a setting is described in one place.

Keys, values, headings and examples are edited in config.yaml itself; this module writes the text after each `#`.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from docs.generate.configuration import comments, sections
from ragbandit.router.config.settings import Settings

FILE: Final = Path(__file__).parents[2] / "config.yaml"
#: column of the comments, and the longest line
_COLUMN: Final = 32
_WIDTH: Final = 120
#: an entry, perhaps commented out: indentation, key, value
_ENTRY: Final = re.compile(r"(?P<before> *(?:# +)?)(?P<key>\w+):(?P<value>(?: (?!#)\S+)*) *(?:#.*)?")
#: a line that continues the comment of the entry above
_CONTINUED: Final = re.compile(rf" {{{_COLUMN}}}#.*")


def config_file() -> str:
    """The text of config.yaml with the present comments."""
    meanings = dict(_meanings())
    known = {key for key, *_ in sections(Settings, value=Settings()) if key}
    lines: list[str] = []
    path: tuple[str, ...] = ()
    for line in FILE.read_text(encoding="utf-8").splitlines():
        entry = _ENTRY.fullmatch(line)
        if _CONTINUED.fullmatch(line):
            continue
        if entry is None:
            lines.append(line)
            continue
        depth = len(entry["before"].replace("# ", "")) // 2
        key = ".".join((*path[:depth], entry["key"]))
        if key not in meanings:
            if ".".join(path[:depth]) not in known:  # else it is a key of an addition that this tree lacks
                lines.append(line)
            continue
        path = (*path[:depth], entry["key"])
        lines += _with_comment(f"{entry['before']}{entry['key']}:{entry['value']}", meanings[key])
    return "\n".join(lines) + "\n"


def _meanings() -> Iterator[tuple[str, str]]:
    """(dotted key, what it means in a line or two) of every setting and section."""
    for key, model, _ in sections(Settings, value=Settings()):
        if key:
            yield key, _shortened(inspect.getdoc(model) or "")
        hints = get_type_hints(model, include_extras=True)
        for name, text in comments(model).items():
            meaning, choices = _shortened(text), _choices(hints[name])
            if not all(f'"{choice}"' in meaning for choice in choices):
                meaning = f"{meaning} ({', '.join(choices)})"
            yield f"{key}.{name}" if key else name, meaning


def _shortened(text: str) -> str:
    """The first sentence and the one on None, which is null in YAML."""
    first, *others = re.split(r"\. (?=[A-Z\"])", " ".join(text.split()).rstrip("."))
    shown = [first, *(other for other in others if other.startswith("None"))]
    return re.sub(r"\bNone\b", "null", "; ".join(shown))


def _choices(hint: Any) -> list[str]:
    """The texts that the type of a setting lists."""
    if get_origin(hint) is Literal:
        return [str(choice) for choice in get_args(hint)]
    if get_origin(hint) is Annotated:
        extra = [getattr(one, "json_schema_extra", None) or {} for one in hint.__metadata__]
        schemas = [one for schema in extra for one in (schema, *schema.get("anyOf", ()))]
        return [name for schema in schemas for name in schema.get("enum", ())] or _choices(get_args(hint)[0])
    is_union = get_origin(hint) in (Union, UnionType)
    return [choice for part in get_args(hint) for choice in _choices(part)] if is_union else []


def _with_comment(entry: str, comment: str) -> Iterator[str]:
    """The line of an entry, and its comment in the lines from there on; the comment of a long entry starts below it."""
    parts = textwrap.wrap(comment, _WIDTH - _COLUMN - 2, break_on_hyphens=False, break_long_words=False)
    if len(entry) >= _COLUMN:
        yield entry
        entry = ""
    for number, part in enumerate(parts):
        yield f"{entry if number == 0 else '':<{_COLUMN}}# {part}"
