"""`ragbandit feedback import`: what it prints, how it ends, and what a kill between two pages leaves."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml
from typer.testing import CliRunner

from ragbandit.workers.cli import app
from tests.support.servers.feedback_servers import KEY
from tests.support.waiting import until


@pytest.fixture
def command(make_bridge, tmp_path):
    """A bridge to Langfuse on real time, and a function that gives the command line of an import from it."""
    bridge = make_bridge("langfuse")
    bridge.world.now = time.time()
    file = tmp_path / "config.yaml"

    def line(*arguments: str, url: str = bridge.twin.url) -> list[str]:
        section = bridge.world.settings.importers.langfuse
        names = {name: each.model_dump(exclude_defaults=True) for name, each in section.names.items()}
        given = {
            "data_dir": bridge.world.settings.data_dir,
            "encoder": {"model": "hashing", "dimension": 8},
            "importers": {"langfuse": {"url": url, "names": names}},
        }
        file.write_text(yaml.safe_dump(given))
        return ["feedback", "import", "langfuse", "--config", str(file), *arguments]

    return bridge, line


def started(arguments: list[str]) -> subprocess.Popen:
    command = [sys.executable, "-m", "ragbandit", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ)


def test_the_report_says_what_became_of_every_judgement(command):
    """A table by name, and why others were not taken; as JSON with --json; nothing is kept with --dry-run."""
    bridge, line = command
    bridge.judged("a", at=time.time() - 60)
    bridge.judged("b", at=time.time() - 60, name="[red]toxicity[/red]")
    bridge.twin.add("c", at=time.time() - 60, trace="another-app")
    dry = CliRunner().invoke(app, line("--dry-run"))
    assert dry.exit_code == 0, dry.output
    assert "nothing was kept" in dry.output
    assert bridge.rows() == []
    told = CliRunner().invoke(app, line())
    assert "[red]toxicity[/red]" in told.output
    assert "unmatched: about no decision that is known here, for example decision another-app" in told.output
    assert KEY not in told.output
    again = json.loads(CliRunner().invoke(app, line("--json", "--since", "1h")).stdout)
    assert again["names"]["user-feedback"] == {"unmatched": 1, "duplicate": 1}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--once", "--every", "60"], "exclude each other"),
        (["--every", "0"], "too short"),
        (["--since", "yesterday"], "is not a time"),
    ],
)
def test_wrong_arguments_are_refused(command, arguments, said):
    """Each with what to give instead, and exit code 2."""
    _, line = command
    told = CliRunner().invoke(app, line(*arguments))
    assert (told.exit_code, said in told.stderr) == (2, True), told.output


def test_a_source_that_is_not_configured(command):
    """Without an address, and by an unknown name, it ends with the setting or the names that there are."""
    _, line = command
    arguments = line()
    assert "importers.phoenix.url" in CliRunner().invoke(app, ["feedback", "import", "phoenix", *arguments[3:]]).stderr
    assert "known: openwebui" in CliRunner().invoke(app, ["feedback", "import", "mlflow", *arguments[3:]]).stderr


def test_a_kill_between_two_pages_loses_nothing_and_doubles_nothing(command):
    """Kill -9 in mid-import: the pages before are kept with their cursor, and the next import brings the others."""
    bridge, line = command
    bridge.twin.page = 10
    for number in range(40):
        bridge.judged(f"j{number:02d}", at=time.time() - 60 - number)
    bridge.twin.faults += [0.0, 0.0, 60.0]
    process = started(line())
    until(lambda: len(bridge.twin.requests) == 3)
    process.kill()
    process.communicate(timeout=30)
    assert len(bridge.rows()) == 20
    bridge.world.expire_leases()
    assert bridge.run().total("imported") == 20
    assert len({json.loads(row["facts"])["import"]["id"] for row in bridge.rows()}) == 40
    assert bridge.world.counters().feedback == 40
    assert bridge.world.counters().balanced


def test_it_imports_again_and_again_until_it_is_told_to_end(command):
    """--every: what comes later is imported later, a server that is away is waited for, and SIGTERM ends it with 0."""
    bridge, line = command
    process = started(line("--every", "1"))
    until(lambda: bridge.twin.requests)
    bridge.twin.faults += [(200, {"content-type": "text/html"}, b"<html>upgrading</html>")]
    bridge.judged("later", at=time.time())
    until(lambda: bridge.rows())
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    assert "NOT_READY" in output
