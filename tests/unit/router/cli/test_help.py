"""The help of the command line."""

import pytest
from typer.testing import CliRunner

from ragbandit.workers.cli import app


@pytest.mark.parametrize("words", [(), ("replay",), ("index",), ("index", "build")])
def test_flags_show_no_type(words):
    """A flag stands in the help without a type: it takes no value; an option that takes one shows its type."""
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "160"})
    assert done.exit_code == 0
    assert "--help" in done.stdout
    assert "bool" not in done.stdout.lower()
    if words == ("replay",):
        assert "float" in done.stdout.lower()
