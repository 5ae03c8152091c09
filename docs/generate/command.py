"""docs/command.md: every verb of the command line with its arguments and options."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from ragbandit.router.cli.lazy_verbs import LazyGroup
from ragbandit.workers.cli import app

_HEAD = """# The command line

Written by `make docs` from the command itself. `ragbandit VERB --help` says the same. Exit codes: 0 done, 1 something
differs or is wrong (`verify`, `status`), 2 refused, with one line that says what to do. `--json`
prints JSON for programs; progress bars go to standard error, and are left out in a pipe.
"""


def command_page() -> str:
    """The page."""
    return "\n".join([_HEAD, *_verbs(get_command(app), path="ragbandit", level=2)])


def _verbs(group: Any, *, path: str, level: int) -> Iterator[str]:
    for name in group.verbs:
        yield from _described(f"{path} {name}", group.load(name), level=level)


def _described(path: str, command: Any, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} {path}\n"
    if command.help:
        yield f"{_plain(command.help)}\n"
    if isinstance(command, LazyGroup):
        yield from _verbs(command, path=path, level=level + 1)
        return
    rows = [row for parameter in command.params if (row := _row(parameter)) is not None]
    if rows:
        yield "| argument or option | what it is |\n|---|---|\n" + "\n".join(rows) + "\n"


def _row(parameter: Any) -> str | None:
    if parameter.param_type_name == "argument":
        return f"| `{(parameter.metavar or parameter.name).upper()}` | {_cell(parameter.help)} |"
    if parameter.hidden or parameter.name == "help":
        return None
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    return f"| {names} | {_cell(parameter.help)} |"


def _cell(text: str | None) -> str:
    return _plain(text or "").replace("\n", " ").replace("|", "\\|") or "-"


def _plain(text: str) -> str:
    """Help text as Markdown: what looks like an element of HTML is none."""
    lines = [line.strip() for line in text.strip().splitlines()]
    return "\n".join(lines).replace("<", "&lt;").replace("*", "\\*")
