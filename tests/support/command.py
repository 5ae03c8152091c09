"""The command line, run in this process."""

from click.testing import Result
from typer.testing import CliRunner

from ragbandit.workers.cli import app


def run(*arguments: str) -> Result:
    """What `ragbandit ARGUMENTS` said, and its exit code."""
    return CliRunner().invoke(app, [*arguments])
