"""The console of the command line: standard output and error, JSON, and failures as one line."""

import contextlib
import errno
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ragbandit.shared.errors import InvalidInput, RagBanditError, StoreError, missing_module
from ragbandit.shared.processes.this_process import LASTING_FAILURE, PARENT_VARIABLE
from ragbandit.shared.texts.formats import one_line, printable

#: exit code of a command that was ended by Ctrl-C
INTERRUPTED: Final = 130


#: a command in a message
_COMMAND: Final = re.compile(r"`ragbandit ([a-z][^`]*)`")
#: verbs without the option --config
WITHOUT_CONFIG: Final = ("index counts", "policy train")


#: value of the running command's option --config
given_config: Final[ContextVar[str | None]] = ContextVar("given_config", default=None)


def with_config_options(text: str) -> str:
    """Put the option --config of the running command into each command in the text."""
    config = given_config.get()
    if not config or "`ragbandit " not in text:
        return text
    option = f" --config {shlex.quote(str(config))}"

    def with_option(match: re.Match[str]) -> str:
        command = match[1]
        has_one = command.startswith(WITHOUT_CONFIG) or {"--config", "-c", "--help"} & {*command.split()}
        return match[0] if has_one else f"`ragbandit {command}{option}`"

    return _COMMAND.sub(with_option, text)


class _Console(Console):
    """A console that removes control characters from all printed strings, so that they cannot control the terminal.
    Commands in the strings get the option --config of the running command.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(with_config_options(printable(text)), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        given = (_with_config_option(one) if isinstance(one, Text) else one for one in objects)
        super().print(*given, **options)

    def say(self, text: str, *, style: str = "") -> None:
        """Print a text without markup, highlighting or added line breaks, so that programs can read it."""
        self.print(Text(printable(text), style=style), highlight=False, soft_wrap=True)


def _with_config_option(text: Text) -> Text:
    changed = with_config_options(text.plain)
    return text if changed == text.plain else Text(changed, style=text.style)


# Without emoji=False rich would replace the line number in file.jsonl:100: by an emoji.
console: Final = _Console(emoji=False)

errors: Final = _Console(stderr=True, emoji=False)


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
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
        _fail(InvalidInput("there is not enough memory for this", remedy="read less data at a time, or add memory"))
    except OSError as error:
        # numpy reports a full disk as "n requested and m written", without errno
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or str(error).endswith(" written")
        if error.filename is None and not full:  # an error of a socket or a pipe
            raise
        remedy = "check that it is there, and that this user may read and write it"
        if full:  # the error of a failed write has no file name
            remedy = "make room on this disk, then run it again"
        parts = (error.filename and str(error.filename), error.strerror or str(error))
        _fail(StoreError(": ".join(filter(None, parts)), remedy=remedy))


@contextlib.contextmanager
def interruptible(message: str) -> Iterator[None]:
    """On Ctrl-C, print `message` and exit with INTERRUPTED. message: what was done, and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        errors.say(message)
        raise typer.Exit(INTERRUPTED) from None


def say_error(error: RagBanditError) -> None:
    """Print an error on one line: its code, field, message and remedy."""
    line = escape(" ".join(one_line(error).split()))
    errors.print(f"[red]{error.code}[/red] {line}", soft_wrap=True, highlight=False)


def _fail(error: RagBanditError) -> NoReturn:
    say_error(error)
    # The parent process does not restart a process that ends with LASTING_FAILURE.
    is_lasting = isinstance(error, StoreError) and error.lasting and PARENT_VARIABLE in os.environ
    raise typer.Exit(LASTING_FAILURE if is_lasting else 2) from None


def print_json(value: object) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    # JSON only escapes control characters below 0x20, but those from 0x7f on control some terminals too.
    text = re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", text)
    # Half a surrogate pair cannot be written; "backslashreplace" turns it into its JSON escape.
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
