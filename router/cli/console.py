"""Console of the command line: verbs loaded on demand, shared options, printed facts, progress and failures."""

import ast
import contextlib
import errno
import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple, NoReturn

import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bars, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from ragbandit.shared.errors import InvalidInput, RagBanditError, StoreError, missing_module
from ragbandit.shared.formats import moment, one_line, printable

ConfigOption = Annotated[str | None, typer.Option("--config", "-c", help="the YAML file; default ./config.yaml")]

AllOption = Annotated[bool, typer.Option("--all", help="everything, however many lines it takes")]

JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]

UrlOption = Annotated[str | None, typer.Option("--url", envvar="RAGBANDIT_URL", help="service; default: configured")]

KeyOption = Annotated[
    str | None, typer.Option("--key-env", help="variable with the API key; default: RAGBANDIT_API_KEY")
]

LabelOption = Annotated[str | None, typer.Option(help="name of the ledger; default: the configured one")]

HostOption = Annotated[str | None, typer.Option("--host", help="address to listen on; default: server.host")]

PortOption = Annotated[int | None, typer.Option("--port", help="port to listen on; default: server.port")]

IdOption = Annotated[str | None, typer.Option("--id", help="your own id: makes the call idempotent")]

#: the shell's code for a command that Ctrl-C ended
INTERRUPTED: Final = 130
_LATE_CONTROLS: Final = re.compile("[\x7f-\x9f]")


class _Console(Console):
    """A console on which no string that is printed, or put into a table, steers the terminal."""

    def render_str(self, text: str, **options: Any) -> Text:
        """As of rich, of the printable text."""
        return super().render_str(printable(text), **options)

    def say(self, text: str, *, style: str = "") -> None:
        """Print a text as it is, since programs read it too: no markup, no colours for numbers, no more line breaks."""
        self.print(Text(printable(text), style=style), highlight=False, soft_wrap=True)


# Without emoji: rich would turn the line number in file.jsonl:100: into a picture.
console: Final = _Console(emoji=False)

errors: Final = _Console(stderr=True, emoji=False)


def listen_on(*, host: str | None, port: int | None) -> None:
    """Take --host and --port as the settings server.host and server.port, in this process and its children."""
    for name, value in (("HOST", host), ("PORT", port)):
        if value is not None:
            os.environ[f"RAGBANDIT_SERVER__{name}"] = str(value)


@contextlib.contextmanager
def failing_well() -> Iterator[None]:
    """A known error, a missing package or a lack of memory ends the command with one line and exit code 2."""
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
        # numpy says "n requested and m written", without a number
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or str(error).endswith(" written")
        if error.filename is None and not full:  # a socket or a pipe
            raise
        remedy = "check that it is there, and that this user may read and write it"
        if full:  # a write that fails does not name its file
            remedy = "make room on this disk, then run it again"
        parts = (error.filename and str(error.filename), error.strerror or str(error))
        _fail(StoreError(": ".join(filter(None, parts)), remedy=remedy))


@contextlib.contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Ctrl-C ends the command with this message: what was done, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        errors.say(message)
        raise typer.Exit(INTERRUPTED) from None


def _fail(error: RagBanditError) -> NoReturn:
    line = escape(" ".join(one_line(error).split()))
    errors.print(f"[red]{error.code}[/red] {line}", soft_wrap=True, highlight=False)
    if isinstance(error, StoreError) and error.lasting:
        from ragbandit.shared.child_process import LASTING, PARENT_VARIABLE  # help does without numpy

        raise typer.Exit(LASTING if PARENT_VARIABLE in os.environ else 2) from None
    raise typer.Exit(2) from None


def print_json(value: object) -> None:
    """JSON on standard output, for pipes."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    # JSON escapes the controls below 0x20 alone; those from 0x7f on steer some terminals too.
    text = _LATE_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    # Half a surrogate pair cannot be written, and what "backslashreplace" makes of it is its escape in JSON.
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")


@contextlib.contextmanager
def bars(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Progress bars with rate and time left, one for each kind of work; none in a pipe. A total of 0 is not known."""
    what, rate = TextColumn("{task.description}"), TextColumn("{task.fields[rate]}")
    columns = (what, BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                for ended in set(tasks) - {"runs"}:  # it may have stopped before its last step
                    progress.remove_task(tasks.pop(ended))
                tasks[what] = progress.add_task(what, total=None, rate="")
            speed = progress.tasks[progress.task_ids.index(tasks[what])].speed
            rate = f"{speed:,.0f}/s" if speed and speed >= 10 else f"{speed:.1f}/s" if speed else ""
            progress.update(tasks[what], completed=done, total=total or None, rate=rate)
            if done == total:
                progress.remove_task(tasks.pop(what))

        yield report


#: characters of a text that are shown, and on one screen
_LONGEST: Final = 1000
_EXCERPT: Final = 200
#: keys of mappings whose keys are names of users, which are shown as they must be typed
_BY_NAME: Final = frozenset({"pmf", "scores"})
#: keys of times, seconds since 1970
_TIMES: Final = frozenset({"created_at", "lifted_at", "made_at", "received_at", "since", "until"})


def show(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Facts for people, or as JSON."""
    if as_json:
        print_json(facts)
    else:
        _tell(facts)


#: lines and characters of a line of one screen
_SCREEN: Final = (24, 80)


def show_screen(facts: Mapping[str, Any], *, more: str, whole: Collection[str] = ()) -> None:
    """Facts for people on one screen: lines are wrapped, long texts cut, except `whole`. more: how to see the rest."""
    cut = {key: _cell(value)[:_EXCERPT] for key, value in facts.items() if isinstance(value, str) and key not in whole}
    with console.capture() as shown:
        _tell({**facts, **cut})
    lines = [part for line in shown.get().splitlines() for part in textwrap.wrap(line, _SCREEN[1]) or [""]]
    for line in [*lines[: _SCREEN[0] - 1], more]:
        console.say(line)


def show_paragraphs(texts: Iterable[str], *, show_all: bool) -> None:
    """Print texts of others, wrapped to the terminal; without `show_all` those that fit into one screen."""
    room: float = math.inf if show_all else _SCREEN[0] - 2  # the line about --all, and the prompt
    for text in texts:
        lines = textwrap.wrap(one_line(text), console.width, subsequent_indent="  ")
        room -= len(lines)
        if room < 0:
            console.say("More: --all")
            return
        for line in lines:
            console.say(line)


def show_list(rows: Sequence[Mapping[str, Any]], *, none: str, as_json: bool) -> None:
    """Facts of the same kind as a table, or as JSON; for people `none` where there are none."""
    if as_json:
        print_json(rows)
    elif rows:
        _section(rows, key="")
    else:
        console.print(none)


def in_words(counts: Mapping[str, int], *, meanings: Mapping[str, str]) -> dict[str, object]:
    """The counts above 0, each with its meaning."""
    return {name: f"{counts[name]}  ({meaning})" for name, meaning in meanings.items() if counts[name]}


def _tell(facts: Mapping[str, Any], *, nested: bool = False, by_name: bool = False) -> None:
    """Texts of others are made harmless, and are no markup. nested: mappings stand in one line. by_name: see _words."""
    sections = {key: value for key, value in facts.items() if _is_rows(value) or (_is_facts(value) and not nested)}
    shown = [(key, value) for key, value in facts.items() if key not in sections and not _is_empty(value)]
    width = max((len(key) for key, _ in shown), default=0)
    for key, value in shown:
        console.say(f"{_words(key, by_name=by_name):<{width}}  {_cell(value, key=key)}")
    for title, value in sections.items():
        if not _is_empty(value):
            console.print()
            console.say(_words(title), style="bold")
            _section(value, key=title)


def _section(value: Any, *, key: str) -> None:
    if _is_facts(value):
        _tell(value, nested=True, by_name=key in _BY_NAME)
    elif all(map(_is_facts, value)):
        columns = [key for key in value[0] if not all(_is_empty(row[key]) for row in value)]
        cells = ([_cell(row[key], key=key) for key in columns] for row in value)
        show_rows([_words(key) for key in columns], cells)
    else:
        for line in value:
            console.say(f"- {_cell(line)}")


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


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[str]], *, none: str = "") -> None:
    """Rows of texts of others as a table; `none` if there are no rows."""
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"  # names and ids are read whole
        column.no_wrap = column.header == "arm"
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(fitting(table, console=console) if table.rows else none)


def fitting(table: Table, *, console: Console) -> Table | Group:
    """The table if its cells fit in the width of the console, else its rows as lines."""
    unbounded = console.options.update(max_width=sys.maxsize)
    if console.measure(table, options=unbounded).maximum <= console.width:
        return table
    columns = [[*column.cells] for column in table.columns]
    lines = []
    for cells in zip(*columns, strict=True):
        named = zip(table.columns[1:], map(_text, cells[1:]), strict=True)
        rest = "; ".join(f"{_text(column.header)} {cell}" for column, cell in named if cell)
        lines.append(Text(f"{_text(cells[0])}: {rest}" if rest else _text(cells[0])))
    return Group(*lines)


def _text(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain


class VerbGroup(NamedTuple):
    """Verbs under one name: their help and their table."""

    help: str
    verbs: Mapping[str, str]


#: verb -> "module:function", or a group of such verbs. The docstring of the function is the verb's help.
Verbs = Mapping[str, str | VerbGroup]


class LazyGroup(TyperGroup):
    """Lists its verbs without importing them, and imports the one that is called."""

    #: the root's verbs; a group below it is made with other ones
    verbs: Verbs
    #: title in the help -> the verbs below it
    panels: Mapping[str, Collection[str]] = MappingProxyType({})

    def __init__(self, *, verbs: Verbs | None = None, **options: Any) -> None:
        super().__init__(**options)
        if verbs is not None:
            self.verbs = verbs

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of click
        """The names in the order of the panels, then of the table."""
        ordered = [name for names in self.panels.values() for name in names if name in self.verbs]
        return list(dict.fromkeys([*ordered, *self.verbs]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the signature of click
        """The verb if it was loaded; else a stand-in that knows its help."""
        target = self.verbs.get(cmd_name)
        panel = next((title for title, names in self.panels.items() if cmd_name in names), None)
        if isinstance(target, VerbGroup):
            more = {"no_args_is_help": True, "rich_help_panel": panel}
            return LazyGroup(name=cmd_name, help=target.help, verbs=target.verbs, **more)
        if target is None or cmd_name in self.commands:
            return self.commands.get(cmd_name)
        return TyperCommand(cmd_name, help=_docstring(target), rich_help_panel=panel)

    def load(self, name: str) -> Any:
        """The group, or the verb, which is imported, so that it can run and knows its options."""
        target = self.verbs[name]
        if isinstance(target, str) and name not in self.commands:
            module, _, function = target.partition(":")
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            with failing_well():
                alone.command(name=name, cls=_Verb)(getattr(import_module(module), function))
            self.commands[name] = get_command(alone)
        return self.get_command(None, name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As of click, with the verb loaded before; an unknown verb ends the command with the most similar one."""
        if args and args[0] in self.verbs:
            self.load(args[0])
        elif args and not args[0].startswith("-"):
            known = {name: name for name in self.verbs}
            for group, target in self.verbs.items():
                nested = target.verbs if isinstance(target, VerbGroup) else {}
                known = {verb: f"{group} {verb}" for verb in nested} | known
            alike = get_close_matches(args[0].lower(), known, n=1)
            remedy = f"did you mean `{ctx.command_path} {known[alike[0]]}`" if alike else "see --help"
            ctx.fail(f"there is no command {args[0]!r:.80}; {remedy}{'?' if alike else ''}")
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> Any:
        """As of typer, flags without their type."""
        return _without_types(super().get_params(ctx))


class _Verb(TyperCommand):
    """A verb: an error of ours ends it with one line, and its help shows no type for flags."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        with failing_well():
            return super().invoke(ctx)


def _without_types(params: Any) -> Any:
    """Parameters whose flags show no type: `--json <bool>` would look as if it took a value."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


_SOURCES: Final[dict[str, dict[str, str]]] = {}


def _docstring(target: str) -> str:
    """The docstring of "module:function", read from its source: importing 30 modules would take seconds."""
    module, _, function = target.partition(":")
    if module not in _SOURCES:
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        tree = ast.parse(Path(spec.origin).read_bytes())
        functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
        _SOURCES[module] = {node.name: ast.get_docstring(node) or "" for node in functions}
    return _SOURCES[module][function]
