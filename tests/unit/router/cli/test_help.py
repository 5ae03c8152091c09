"""The help of the command line."""

import pytest
from typer.main import get_command, get_group
from typer.testing import CliRunner

from ragbandit.router.cli.console import CommandLine
from ragbandit.router.cli.offline.logs import FORMATS_HELP
from ragbandit.router.offline.logs import FORMATS
from ragbandit.workers.cli import VERBS, app
from ragbandit.workers.evaluation.command import FAMILIES_HELP
from ragbandit.workers.evaluation.questions import FAMILY_NAMES
from ragbandit.workers.verbs import SECTIONS


@pytest.mark.parametrize("words", [(), ("replay",), ("index",), ("index", "build")])
def test_flags_show_no_type(words):
    """A flag stands in the help without a type: it takes no value; an option that takes one shows its type."""
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "160"})
    assert done.exit_code == 0
    assert "--help" in done.stdout
    assert "bool" not in done.stdout.lower()
    if words == ("replay",):
        assert "float" in done.stdout.lower()


def test_names_that_are_written_out():
    """Names that the help writes out, since it must load little, are those that are known."""
    assert ", ".join(FAMILY_NAMES) == FAMILIES_HELP
    assert ", ".join(FORMATS) == FORMATS_HELP


def test_the_root_lists_every_verb_with_its_own_line():
    """What `ragbandit --help` prints without loading a verb is every verb, with the first paragraph of its own help."""
    own = {name: " ".join(verb.help.split("\n\n")[0].split()) for name, verb in get_command(app).commands.items()}
    assert {name: line for name, (_, line) in VERBS.items()} == own


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_has_the_verbs_that_name_it(section):
    """A verb is loaded with the section that the table names."""
    loaded = CommandLine()
    SECTIONS[section](loaded)
    assert set(get_group(loaded).commands) == {name for name, (named, _) in VERBS.items() if named == section}


def test_the_root_runs_a_verb_and_names_the_unknown_one():
    """The root that lists from its table runs a verb with its options, and refuses one that is not there."""
    from ragbandit.workers import cli

    root = cli._command(cls=cli._Verbs)
    shown = CliRunner().invoke(root, ["index", "build", "--help"], env={"COLUMNS": "160"})
    assert shown.exit_code == 0
    assert "--retriever" in shown.stdout
    wrong = CliRunner().invoke(root, ["sreve"], env={"COLUMNS": "160"})
    assert wrong.exit_code == 2
    assert "sreve" in wrong.output
    listed = CliRunner().invoke(root, ["--help"], env={"COLUMNS": "160"})
    assert all(f" {name} " in listed.stdout for name in VERBS)
