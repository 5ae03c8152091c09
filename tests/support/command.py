"""The command line, run in this process."""

from click.testing import Result
from typer.testing import CliRunner

from ragbandit.workers.cli import app


def run(*arguments: object, code: int | None = None, **options: object) -> Result:
    """Run `ragbandit ARGUMENTS`; returns output and exit code, which must equal `code` unless it is None."""
    done = CliRunner().invoke(app, [*map(str, arguments)], **options)  # type: ignore[arg-type]
    assert code in (None, done.exit_code), done.output
    return done
