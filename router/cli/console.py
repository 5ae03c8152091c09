"""Console of the command line: shared options, output streams, progress bars, how facts and failures are printed."""

import contextlib
import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from ragbandit.shared.errors import RagBanditError, StoreError, missing_module
from ragbandit.shared.formats import one_line, printable

ConfigOption = Annotated[str | None, typer.Option("--config", "-c", help="the YAML file; default ./config.yaml")]

JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]

UrlOption = Annotated[
    str | None,
    typer.Option("--url", envvar="RAGBANDIT_URL", help="URL of a running service; default: the configured server"),
]

KeyOption = Annotated[
    str | None,
    typer.Option("--key-env", help="environment variable that holds the API key; default: RAGBANDIT_API_KEY"),
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


# Without emoji: rich would turn the line number in file.jsonl:100: into a picture.
console: Final = _Console(emoji=False)

errors: Final = _Console(stderr=True, emoji=False)


def listen_on(*, host: str | None, port: int | None) -> None:
    """Take --host and --port as the settings server.host and server.port, in this process and its children."""
    for name, value in (("HOST", host), ("PORT", port)):
        if value is not None:
            os.environ[f"RAGBANDIT_SERVER__{name}"] = str(value)


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[str]], *, none: str) -> None:
    """Rows of texts as a table; `none` where there are no rows."""
    table = Table(*columns, box=None)
    table.columns[0].overflow = "fold"  # names are read whole, on a narrow terminal too
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table if table.rows else none)


@contextlib.contextmanager
def failing_well() -> Iterator[None]:
    """An error of ours, of a file or of an extra's package ends the command with one line and exit code 2."""
    try:
        yield
    except RagBanditError as error:
        _fail(error)
    except ModuleNotFoundError as error:
        missing = missing_module(error)
        if missing is None:
            raise
        _fail(missing)
    except OSError as error:
        if error.filename is None:  # of a socket or a pipe
            raise
        remedy = "check that it is there, and that this user may read and write it"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "make room on this disk, then run it again"
        _fail(StoreError(f"{error.filename}: {error.strerror}", remedy=remedy))


@contextlib.contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Ctrl-C ends the command with this message: what was done, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        errors.print(escape(message), soft_wrap=True, highlight=False)
        raise typer.Exit(INTERRUPTED) from None


def _fail(error: RagBanditError) -> NoReturn:
    errors.print(
        f"[red]{error.code}[/red] {escape(' '.join(one_line(error).split()))}", soft_wrap=True, highlight=False
    )
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
    """Progress bars, one for each kind of work, with rate and time left; gone at the end; none in a pipe.

    A total of 0 is not known.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
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
