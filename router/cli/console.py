"""The command line's console: verbs loaded on demand, shared options, printing, progress bars and failures."""

import ast
import contextlib
import errno
import json
import os
import re
import sys
import textwrap
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, NoReturn

import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.progress import BarColumn, Progress as Bars, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from ragbandit.shared.errors import InvalidInput, RagBanditError, StoreError, missing_module
from ragbandit.shared.formats import moment, one_line, printable
from ragbandit.shared.this_process import LASTING, PARENT_VARIABLE

if TYPE_CHECKING:
    from ragbandit.router.offline.estimation import Progress

ConfigOption = Annotated[str | None, typer.Option("--config", "-c", help="the YAML file; default ./config.yaml")]

AllOption = Annotated[bool, typer.Option("--all", help="everything, however many lines it takes")]

JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]

UrlOption = Annotated[str | None, typer.Option("--url", envvar="RAGBANDIT_URL", help="service; default: configured")]

KeyOption = Annotated[str | None, typer.Option("--key-env", help="variable with the key; default: RAGBANDIT_API_KEY")]

LabelOption = Annotated[str | None, typer.Option(help="name of the ledger; default: the configured one")]

HostOption = Annotated[str | None, typer.Option("--host", help="address to listen on; default: server.host")]

PortOption = Annotated[int | None, typer.Option("--port", help="port to listen on; default: server.port")]

IdOption = Annotated[str | None, typer.Option("--id", help="your own id: makes the call idempotent")]

#: exit code of a command that was ended by Ctrl-C
INTERRUPTED: Final = 130
#: time between two lines of progress if there is no terminal, seconds
LINE_S = 6.0


class _Console(Console):
    """A console that removes control characters from all printed strings, so that they cannot control the terminal."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def say(self, text: str, *, style: str = "") -> None:
        """Print a text without markup, highlighting or added line breaks, so that programs can read it."""
        self.print(Text(printable(text), style=style), highlight=False, soft_wrap=True)


# Without emoji=False rich would replace the line number in file.jsonl:100: by an emoji.
console: Final = _Console(emoji=False)

errors: Final = _Console(stderr=True, emoji=False)


def listen_on(*, host: str | None, port: int | None) -> None:
    """Take --host and --port as the settings server.host and server.port, in this process and its children."""
    for name, value in (("HOST", host), ("PORT", port)):
        if value is not None:
            os.environ[f"RAGBANDIT_SERVER__{name}"] = str(value)


@contextlib.contextmanager
def failing_well() -> Iterator[None]:
    """Print one line and exit with code 2 on a known error, a missing package, an error of a file, or full memory."""
    try:
        yield
    except RagBanditError as error:
        _fail(error)
    except ModuleNotFoundError as error:
        missing = missing_module(error)
        if missing is None:
            raise
        _fail(missing)
    except MemoryError:
        _fail(InvalidInput("there is not enough memory for this", remedy="give it less at a time, or more memory"))
    except OSError as error:
        # numpy reports a full disk as "n requested and m written", without errno
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or str(error).endswith(" written")
        if error.filename is None and not full:  # a socket or a pipe
            raise
        remedy = "check that it is there, and that this user may read and write it"
        if full:  # the error of a failed write has no file name
            remedy = "make room on this disk, then run it again"
        parts = (error.filename and str(error.filename), error.strerror or str(error))
        _fail(StoreError(": ".join(filter(None, parts)), remedy=remedy))


@contextlib.contextmanager
def interruptible(message: str) -> Iterator[None]:
    """On Ctrl-C, print `message` and exit with `INTERRUPTED`. message: what was done, and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        errors.say(message)
        raise typer.Exit(INTERRUPTED) from None


def _fail(error: RagBanditError) -> NoReturn:
    line = escape(" ".join(one_line(error).split()))
    errors.print(f"[red]{error.code}[/red] {line}", soft_wrap=True, highlight=False)
    if isinstance(error, StoreError) and error.lasting:
        raise typer.Exit(LASTING if PARENT_VARIABLE in os.environ else 2) from None
    raise typer.Exit(2) from None


def print_json(value: object) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    # JSON only escapes control characters below 0x20, but those from 0x7f on control some terminals too.
    text = re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", text)
    # Half a surrogate pair cannot be written; "backslashreplace" turns it into its JSON escape.
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")


@contextlib.contextmanager
def bars(console: Console) -> "Iterator[Progress]":
    """Show bars, or without a terminal a line every LINE_S. Yields a function of (kind, done, total); 0 is unknown.

    kind: name of the step with its unit, for example "questions encoded"
    """
    between = ("working", 0, 0)  # a step has ended, and the next one has not reported yet
    with (_bars_on if console.is_terminal else _lines_to)(console) as report:
        report(*between)
        yield lambda kind, done, total: report(*(between if done >= total > 0 else (kind, done, total)))


@contextlib.contextmanager
def _bars_on(console: Console) -> "Iterator[Progress]":
    name, counts = TextColumn("{task.description}"), TextColumn("{task.fields[counts]}")
    with Bars(name, BarColumn(), counts, TimeRemainingColumn(), console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def report(kind: str, done: int, total: int) -> None:
            if kind not in tasks:
                for former in set(tasks) - {"runs"}:  # new work begins, though the former may have ended early
                    progress.remove_task(tasks.pop(former))
                tasks[kind] = progress.add_task(kind, total=None, counts="")
            progress.update(tasks[kind], completed=done, total=total or None, counts=_counts(done, total))

        yield report


@contextlib.contextmanager
def _lines_to(console: Console) -> "Iterator[Progress]":
    """Print the newest step from a thread, because a step may take long before it reports again."""
    file, began, newest, ended = console.file, time.monotonic(), "", threading.Event()

    def report(kind: str, done: int, total: int) -> None:
        nonlocal newest
        newest = one_line(f"{kind}: {_counts(done, total)}" if done or total else kind)

    def print_lines() -> None:
        while not ended.wait(LINE_S):
            print(f"{newest} ({time.monotonic() - began:.0f} s)", file=file, flush=True)

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        ended.set()
        thread.join()


def _counts(done: int, total: int) -> str:
    return f"{done:,} of {total:,}" if total else f"{done:,}" if done else ""


#: longest text that is printed uncut, characters
_LONGEST: Final = 1000
#: length to which `show_screen` cuts texts, characters
_EXCERPT: Final = 200
#: names of mappings whose keys are users' names, such as arms; `_title` does not change these keys
_BY_NAME: Final = frozenset({"pmf", "scores"})
#: keys whose values are seconds since 1970 and are printed as times
_TIMES: Final = frozenset(
    {"created_at", "expires_at", "last_used_at", "lifted_at", "made_at", "received_at", "revoked_at", "since", "until"}
)


def show(facts: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        _print_facts(facts)


#: lines of one screen
_SCREEN: Final = 24


def show_screen(*parts: Mapping[str, Any], more: str, whole: Collection[str] = ()) -> None:
    """Print `parts` on one screen, then the line `more`. Texts are cut to `_EXCERPT`, except of keys in `whole`."""
    with console.capture() as shown:
        for number, facts in enumerate(parts):
            texts = {key: value for key, value in facts.items() if isinstance(value, str) and key not in whole}
            if number:
                console.print()
            _print_facts({**facts, **{key: _excerpt(text, most=_EXCERPT) for key, text in texts.items()}})
    printed = map(one_line, shown.get().splitlines())
    lines = [part for text in printed for part in textwrap.wrap(text, console.width, subsequent_indent="  ") or [""]]
    for line in [*lines[: _SCREEN - 2], more]:  # one line is for `more`, one for the prompt
        console.say(line)


def show_list(rows: Sequence[Mapping[str, Any]], *, none: str, as_json: bool) -> None:
    """Print rows that all have the same keys, as a table or JSON. none: text that is printed if there are no rows."""
    if as_json:
        print_json(rows)
    elif rows:
        _section(rows, key="")
    else:
        console.print(none)


def in_words(counts: Mapping[str, int], *, meanings: Mapping[str, str]) -> dict[str, object]:
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
            _section(value, key=title)


def _section(value: Any, *, key: str) -> None:
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
        text = f"{value:.4g}"
    else:
        text = "" if value is None else str(value)
    return _excerpt(text, most=_LONGEST)


def _excerpt(text: str, *, most: int) -> str:
    """The text, cut before the word at which it gets longer than `most` characters."""
    if len(text) <= most:
        return text
    words = text[: most + 1].rpartition(" ")[0]  # "" if there is no space, as in Chinese
    return f"{words or text[:most]} [...]"


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[str]], *, none: str = "") -> None:
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"  # wrap long names and ids, do not cut them
        column.no_wrap = column.header == "arm"
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(fitting(table, console=console) if table.rows else none)


def fitting(table: Table, *, console: Console) -> Table | Group:
    """The table if it fits into the width of the console, else one line per row."""
    unbounded = console.options.update(max_width=sys.maxsize)
    if console.measure(table, options=unbounded).maximum <= console.width:
        return table
    columns = [[*column.cells] for column in table.columns]
    lines = []
    for cells in zip(*columns, strict=True):
        pairs = zip(table.columns[1:], map(_text, cells[1:]), strict=True)
        further = "; ".join(f"{_text(column.header)} {cell}" for column, cell in pairs if cell)
        lines.append(Text(f"{_text(cells[0])}: {further}" if further else _text(cells[0])))
    return Group(*lines)


def _text(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain


class VerbGroup(NamedTuple):
    help: str
    verbs: Mapping[str, str]


#: name of a verb -> "module:function", or a group of such verbs. The docstring of the function is the verb's help
Verbs = Mapping[str, str | VerbGroup]


class LazyGroup(TyperGroup):
    """A group that lists its verbs without importing them, and imports a verb when it is called."""

    #: verbs of this group: the class of the root group sets them, nested groups get them in `__init__`
    verbs: Verbs
    #: heading in the help -> verbs listed under it
    panels: Mapping[str, Collection[str]] = MappingProxyType({})

    def __init__(self, *, verbs: Verbs | None = None, **options: Any) -> None:
        super().__init__(**options)
        if verbs is not None:
            self.verbs = verbs

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of click
        ordered = [name for names in self.panels.values() for name in names if name in self.verbs]
        return list(dict.fromkeys([*ordered, *self.verbs]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the signature of click
        """Return the verb if it was loaded, else a placeholder that has only the help text."""
        target = self.verbs.get(cmd_name)
        panel = next((title for title, names in self.panels.items() if cmd_name in names), None)
        if isinstance(target, VerbGroup):
            options: dict[str, Any] = {"no_args_is_help": True, "rich_help_panel": panel}
            return LazyGroup(name=cmd_name, help=target.help, verbs=target.verbs, **options)
        if target is None or cmd_name in self.commands:
            return self.commands.get(cmd_name)
        return TyperCommand(cmd_name, help=_docstring(target), rich_help_panel=panel)

    def load(self, name: str) -> Any:
        """Import the verb `name` with its options. Returns the command, or a `LazyGroup` if `name` is a group."""
        target = self.verbs[name]
        if isinstance(target, str) and name not in self.commands:
            module, _, function = target.partition(":")
            app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            with failing_well():
                app.command(name=name, cls=_Verb)(getattr(import_module(module), function))
            self.commands[name] = get_command(app)
        return self.get_command(None, name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in self.verbs:
            self.load(args[0])
        elif args and not args[0].startswith("-"):
            paths = {name: name for name in self.verbs}
            for group, target in self.verbs.items():
                nested = target.verbs if isinstance(target, VerbGroup) else {}
                paths = {verb: f"{group} {verb}" for verb in nested} | paths
            similar = get_close_matches(args[0].lower(), paths, n=1)
            remedy = f"did you mean `{ctx.command_path} {paths[similar[0]]}`?" if similar else "see --help"
            ctx.fail(f"there is no command {args[0]!r:.80}; {remedy}")
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))


class _Verb(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        with failing_well():
            return super().invoke(ctx)


def _without_types(params: Any) -> Any:
    """Remove the type of flags from the help: `--json <bool>` would look as if the flag needed a value."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


_SOURCES: Final[dict[str, dict[str, str]]] = {}


def _docstring(target: str) -> str:
    """The docstring of "module:function", read from the source, since importing 30 modules would take seconds."""
    module, _, function = target.partition(":")
    if module not in _SOURCES:
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        tree = ast.parse(Path(spec.origin).read_bytes())
        functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
        _SOURCES[module] = {node.name: ast.get_docstring(node) or "" for node in functions}
    return _SOURCES[module][function]
