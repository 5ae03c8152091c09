"""Prints facts and rows: as JSON, or as lines and tables for people."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ragbandit.router.cli.console import console, print_json
from ragbandit.shared.texts.formats import moment, number, one_line, printable

#: maximum length of a printed cell, characters; longer ones are cut
_LONGEST: Final = 1000
#: names of mappings whose keys are users' names, such as arms; `_title` does not change these keys
_BY_NAME: Final = frozenset({"accuracy_by_label", "labels", "pmf", "scores"})
#: keys whose values are seconds since 1970 and are printed as times
_TIMES: Final = frozenset(
    {"created_at", "expires_at", "last_used_at", "made_at", "received_at", "revoked_at", "since", "until"}
)


def show(facts: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        _print_facts(facts)


def show_list(rows: Sequence[Mapping[str, Any]], *, none: str, as_json: bool) -> None:
    """Print rows that all have the same keys, as a table or JSON. none: text that is printed for an empty list."""
    if as_json:
        print_json(rows)
    elif rows:
        _print_section(rows, key="")
    else:
        console.print(none)


def counts_in_words(counts: Mapping[str, int], *, meanings: Mapping[str, str]) -> dict[str, object]:
    return {name: f"{counts[name]}  ({meaning})" for name, meaning in meanings.items() if counts[name]}


def _print_facts(facts: Mapping[str, Any], *, nested: bool = False, by_name: bool = False) -> None:
    """Print a mapping. nested: each mapping in `facts` on one line. by_name: the keys of `facts` are users' names."""
    sections = {key: value for key, value in facts.items() if _is_rows(value) or (_is_facts(value) and not nested)}
    shown = [(key, value) for key, value in facts.items() if key not in sections and not _is_empty(value)]
    width = max((len(key) for key, _ in shown), default=0)
    for key, value in shown:
        console.say(f"{_title(key, by_name=by_name):<{width}}  {_cell(value, key=key)}")
    for title, value in sections.items():
        if not _is_empty(value):
            console.print()
            console.say(_title(title), style="bold")
            _print_section(value, key=title)


def _print_section(value: Any, *, key: str) -> None:
    if _is_facts(value):
        _print_facts(value, nested=True, by_name=key in _BY_NAME)
    elif all(map(_is_facts, value)):
        columns = [key for key in value[0] if any(not _is_empty(row[key]) for row in value)]
        cells = ([_cell(row[key], key=key) for key in columns] for row in value)
        show_rows([_title(key) for key in columns], cells)
    else:
        for line in value:
            console.say(f"- {_cell(line)}")


def _is_facts(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_rows(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_empty(value: Any) -> bool:
    """Whether a value is None, empty, or contains only empty values. 0 and False are not empty."""
    if _is_facts(value):
        return all(map(_is_empty, value.values()))
    return value is None or value == "" or (_is_rows(value) and not value)


def _title(key: str, *, by_name: bool = False) -> str:
    """Replace underscores by spaces, except in users' names (by_name) and in titles that have spaces already."""
    return key if by_name or " " in key else key.replace("_", " ")


def _cell(value: Any, *, key: str = "") -> str:
    if _is_facts(value):
        by_name = key in _BY_NAME
        parts = [
            f"{_title(name, by_name=by_name)} {_cell(part)}" for name, part in value.items() if not _is_empty(part)
        ]
        text = ", ".join(parts)
    elif _is_rows(value):
        text = ", ".join(map(_cell, value))
    elif key in _TIMES and isinstance(value, int | float):
        text = moment(value)
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, float):
        text = number(value, 4)
    else:
        text = "" if value is None else str(value)
    return _excerpt(text, most=_LONGEST)


def _excerpt(text: str, *, most: int) -> str:
    """The text, cut before the word at which it gets longer than `most` characters."""
    if len(text) <= most:
        return text
    words = text[: most + 1].rpartition(" ")[0]  # "" if there is no space, as in Chinese
    return f"{words or text[:most]} [...]"


#: columns whose cells stay on one line, unless a cell has more characters than _MOST_WHOLE
_WHOLE: Final = frozenset({"arm", "model"})
_MOST_WHOLE: Final = 40
#: limit of the width of a table in a file or pipe, characters
_WIDEST: Final = 1_000_000


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[str]], *, none: str = "") -> None:
    """Print a table. In a terminal long cells wrap; in a file or pipe each row is one line, for `grep` and `wc`."""
    table, wraps = Table(*columns, box=None, pad_edge=False), console.is_terminal
    shown = [[printable(cell) if wraps else one_line(cell) for cell in row] for row in rows]
    for index, column in enumerate(table.columns):
        column.overflow = "fold"  # wrap long names and ids, do not cut them
        column.no_wrap = column.header in _WHOLE and all(len(row[index]) <= _MOST_WHOLE for row in shown)
    for row in shown:
        table.add_row(*map(Text, row))
    if not wraps:
        table.width = Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
    console.print(table if shown else none, soft_wrap=not wraps)
