"""The help of the command line."""

import subprocess
import sys

from typer.main import get_command
from typer.testing import CliRunner

from ragbandit.router.cli.lazy_verbs import LazyGroup
from ragbandit.workers.cli import VERBS, app
from tests.support.cases import every_case


def verbs_below(group, *path):
    for name in group.list_commands(None):
        verb = group.get_command(None, name)
        if isinstance(verb, LazyGroup):
            yield from verbs_below(verb, *path, name)
        else:
            yield group, (*path, name)


def test_every_verb_loads_and_has_a_help():
    """What the table names is there, and the help that is read from its source is the loaded verb's own."""
    with every_case() as case:
        for group, path in verbs_below(get_command(app)):
            with case(*path):
                listed = group.get_command(None, path[-1]).help
                assert listed == group.load(path[-1]).help
                assert listed.endswith(".")


def test_the_root_names_an_unknown_verb():
    """The root lists every verb from its table, runs one with its options, and refuses one that is not there."""
    shown = CliRunner().invoke(app, ["index", "build", "--help"], env={"COLUMNS": "160"})
    assert shown.exit_code == 0
    assert "--retriever" in shown.stdout
    for words, meant in (
        (["sreve"], "did you mean `ragbandit serve`?"),
        (["Report"], "did you mean `ragbandit report`?"),
        (["rollback"], "did you mean `ragbandit policy rollback`?"),
        (["policy", "promot"], "policy promote`?"),
        (["xyzzy"], "there is no command 'xyzzy'; see --help"),
    ):
        wrong = CliRunner().invoke(app, words, env={"COLUMNS": "160"})
        assert wrong.exit_code == 2
        assert words[-1] in wrong.output
        assert meant in wrong.output
    listed = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "160"})
    assert all(f" {name} " in listed.stdout for name in VERBS)


def test_help_imports_no_verb():
    """`ragbandit --help` and the help of a group import no module of a verb."""
    code = """
import sys
from typer.testing import CliRunner
from ragbandit.workers.cli import VERBS, app
for words in ([], ["data"], ["policy"]):
    assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0
targets = [t for v in VERBS.values() for t in ([v] if isinstance(v, str) else v.verbs.values())]
print({t.partition(":")[0] for t in targets} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
