"""The command's calls to a running service: what they print."""

import json
from dataclasses import replace

import pytest

from ragbandit.shared.types import Source
from tests.support import command
from tests.support.servers.http_service import QUESTION, routed, worker_answers


@pytest.fixture
def run(service):
    """Runs a verb against the service; gives its exit code and output."""

    def call(*words: str) -> tuple[int, str]:
        done = command.run(*words, "--url", service.url)
        return done.exit_code, done.output

    return call


def test_the_answer_is_printed_first(run, service):
    """`answer` says how to ask again while there is no answer; then the answer is first, and how to rate it last.

    Each source has a line.
    """
    code, output = run("answer", QUESTION, "--id", "mine-1", "--wait", "0")
    assert (code, output.splitlines()[0]) == (0, "no answer yet: ask again with --id mine-1")
    assert "rate it" not in output
    found = Source(id="d1", title="Dracula,\n a novel", text="# Dracula\n\nBy Bram Stoker.", score=12.345)
    worker_answers(service, "mine-1", "Bram Stoker [1897]", sources=(found, replace(found, title="", score=None)))
    code, output = run("answer", QUESTION, "--id", "mine-1", "--wait", "0")
    first = ["Bram Stoker [1897]", "1. Dracula,  a novel (score 12.3)", "2. d1", ""]
    assert (code, output.splitlines()[:4]) == (0, first)
    assert "arm" in output
    assert len(output.splitlines()) < 12
    rating = f"ragbandit feedback send mine-1 --rating true --url {service.url}"
    assert output.splitlines()[-1] == f"rate it: `{rating}`"
    command.run(*rating.split()[1:], code=0)
    code, output = run("answer", QUESTION, "--id", "mine-1", "--json")
    assert json.loads(output)["answer"] == "Bram Stoker [1897]"


def test_a_refused_rating_names_the_option(run, http):
    """A rating of 4 without its scale ends with exit code 2 and the option of the command line."""
    key = routed(http)["decision_id"]
    code, output = run("feedback", "send", key, "--rating", "4")
    assert code == 2
    assert "--scale 1-5" in output
    assert run("feedback", "send", key, "--rating", "4", "--scale", "1-5")[0] == 0


def test_the_configured_server_is_asked(service, tmp_path, monkeypatch):
    """Without --url a verb asks the server of the configuration; --config names another file."""
    port = int(service.url.rpartition(":")[2])
    (tmp_path / "other.yaml").write_text(f"server: {{host: 0.0.0.0, port: {port}}}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAGBANDIT_URL", raising=False)
    command.run("route", QUESTION, "--config", "other.yaml", "--json", code=0)
    (tmp_path / "config.yaml").write_text((tmp_path / "other.yaml").read_text())
    command.run("route", QUESTION, "--json", code=0)
