"""Facts for people: in two columns, rows as tables, sentences as lists, and nothing of what is empty."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from ragbandit.router.cli.console import console, print_json
from ragbandit.shared.formats import moment, printable

#: characters of a text that are shown
_LONGEST: Final = 1000
#: keys of mappings whose keys are names of users, which are shown as they must be typed
_BY_NAME: Final = frozenset({"pmf", "scores"})
#: keys of times, seconds since 1970
_TIMES: Final = frozenset({"created_at", "made_at", "received_at", "since"})


def show(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Facts for people, or as JSON."""
    if as_json:
        print_json(facts)
    else:
        _tell(facts)


def in_words(counts: Mapping[str, int], *, meanings: Mapping[str, str]) -> dict[str, object]:
    """The counts with what each means, without those that are 0."""
    return {name: f"{counts[name]}  ({meaning})" for name, meaning in meanings.items() if counts[name]}


def _tell(facts: Mapping[str, Any], *, nested: bool = False, by_name: bool = False) -> None:
    """Texts of others are made harmless, and are no markup. nested: mappings stand in one line. by_name: see _words."""
    sections = {key: value for key, value in facts.items() if _is_rows(value) or (_is_facts(value) and not nested)}
    shown = [(key, value) for key, value in facts.items() if key not in sections and not _is_empty(value)]
    width = max((len(key) for key, _ in shown), default=0)
    for key, value in shown:
        _print(f"{_words(key, by_name=by_name):<{width}}  {_cell(value, key=key)}")
    for title, value in sections.items():
        if not _is_empty(value):
            console.print()
            _print(_words(title), style="bold")
            _section(value, key=title)


def _section(value: Any, *, key: str) -> None:
    if _is_facts(value):
        _tell(value, nested=True, by_name=key in _BY_NAME)
    elif all(map(_is_facts, value)):
        columns = [key for key in value[0] if not all(_is_empty(row[key]) for row in value)]
        cells = ([_cell(row[key], key=key) for key in columns] for row in value)
        _table(cells, heads=[_words(key) for key in columns])
    else:
        for line in value:
            _print(f"- {_cell(line)}")


def _is_facts(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_rows(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_empty(value: Any) -> bool:
    """Says nothing; 0 and False do."""
    if _is_facts(value):
        return all(map(_is_empty, value.values()))
    return value is None or value == "" or (_is_rows(value) and not value)


def _words(key: str, *, by_name: bool = False) -> str:
    """A key for people; a title, which has spaces already, and a name of a user's (by_name) stay as they are."""
    return key if by_name or " " in key else key.replace("_", " ")


def _cell(value: Any, *, key: str = "") -> str:
    if _is_facts(value):
        named = ((_words(name, by_name=key in _BY_NAME), each) for name, each in value.items() if not _is_empty(each))
        text = ", ".join(f"{name} {_cell(each)}" for name, each in named)
    elif _is_rows(value):
        text = ", ".join(map(_cell, value))
    elif key in _TIMES and isinstance(value, int | float):
        text = moment(value)
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, float):
        text = f"{value:.4g}"
    else:
        text = "" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} [...]"


def _table(rows: Iterable[Sequence[str]], *, heads: Sequence[str]) -> None:
    table = Table(*heads, box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"  # names and ids are read whole
        column.no_wrap = column.header == "arm"
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


def _print(text: str, *, style: str = "") -> None:
    console.print(Text(printable(text), style=style), highlight=False, soft_wrap=True)  # whatever is read by a program
