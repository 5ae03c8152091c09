"""The router's verbs refuse a wrong configuration with one line and exit code 2."""

import json

import pytest
import typer
from typer.testing import CliRunner

from router.cli import add_verbs


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a verb with a config file's text."""
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    add_verbs(app, check=lambda _settings: None)

    def call(text, *words):
        (tmp_path / "config.yaml").write_text(f"encoder: {{model: hashing}}\n{text}\n")
        return CliRunner().invoke(app, words)

    return call


@pytest.mark.parametrize("verb", ["validate", "serve"])
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("policy: {name: oracle}", "policy.name"),
        ("policy: {params: {learning_rate: 0.1}}", "policy.params.learning_rate"),
        ("policy: {name: fixed, params: {arm: oracle}}", "policy.params.arm"),
        ("policy: {floor: 0.9}", "policy.floor"),
    ],
)
def test_policy_that_cannot_decide_ends_the_command(run, tmp_path, verb, text, named):
    """`validate` and `serve` end with exit code 2 and the setting's key, before anything is opened."""
    done = run(text, verb)
    assert done.exit_code == 2
    assert named in done.output
    assert not (tmp_path / ".ragbandit").exists()


def test_validate_prints_every_setting(run):
    """`validate --json` prints every setting with its value and where it came from."""
    done = run("policy: {name: fixed, params: {arm: multi_step}}", "validate", "--json")
    assert done.exit_code == 0, done.output
    rows = {row["key"]: row for row in json.loads(done.output)}
    assert rows["policy.name"] == {"key": "policy.name", "value": "fixed", "source": "file config.yaml"}
    assert rows["learning.batch"]["source"] == "default"
