"""The command line, run in this process."""

import contextlib
import sys
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from ragbandit.workers.cli import app


def run(*arguments: object, code: int | None = None, **options: object) -> Result:
    """Run `ragbandit ARGUMENTS`; returns output and exit code, which must equal `code` unless it is None.

    Pages name a user's module `my_pipelines`. A process of its own would import the file of its folder.
    """
    sys.modules.pop("my_pipelines", None)
    done = CliRunner().invoke(app, [*map(str, arguments)], **options)  # type: ignore[arg-type]
    assert code in (None, done.exit_code), done.output
    return done


def printed_in(folder: Path, *arguments: object) -> str:
    """What `ragbandit ARGUMENTS` prints in this folder, without an error."""
    with contextlib.chdir(folder):
        return run(*arguments, code=0).stdout
