"""docs/integrations/feedback-importers.md and openwebui.md: their settings are read, and their commands import."""

import re
import shlex
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from ragbandit.router.config.settings import Settings
from ragbandit.workers.cli import app

DOCS = Path(__file__).parents[3] / "docs" / "integrations"


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (DOCS / page).read_text("utf-8"), flags=re.S | re.M)


def commands(page: str) -> list[list[str]]:
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines]


def sections(page: str) -> dict[str, dict]:
    found: dict[str, dict] = {}
    for block in blocks(page, "yaml"):
        found |= yaml.safe_load(block).get("importers", {})
    return found


@pytest.mark.parametrize("page", ["feedback-importers.md", "openwebui.md"])
def test_the_settings_of_the_page_are_settings(page):
    """Every YAML block is a part of a configuration."""
    for block in blocks(page, "yaml"):
        Settings.model_validate(yaml.safe_load(block))


@pytest.mark.parametrize("name", ["openwebui", "langfuse", "langsmith", "phoenix"])
def test_the_commands_of_the_page_import(make_bridge, tmp_path, name):
    """With its settings and its variables, each importer's commands bring a judgement of a decision, once."""
    page = "feedback-importers.md"
    section = sections(page)[name]
    bridge = make_bridge(name, section={**section, "url": None, "project": "my project"} if name == "phoenix" else {})
    bridge.world.now = time.time()
    exported = [word.partition("=")[0] for words in commands(page) if words[:1] == ["export"] for word in words[1:]]
    assert set(bridge.twin.environment) <= set(exported)
    names = {"langsmith": {"key": "user_score"}}
    bridge.judged("j1", at=bridge.world.now - 5, **names.get(name, {}))
    given = {**section, "url": bridge.twin.url, **({"project": "my project"} if name == "phoenix" else {})}
    file = tmp_path / "config.yaml"
    file.write_text(
        yaml.safe_dump(
            {"data_dir": bridge.world.settings.data_dir, "encoder": {"model": "hashing"}, "importers": {name: given}}
        )
    )
    ours = [words[1:] for words in commands(page) if words[:4] == ["ragbandit", "feedback", "import", name]]
    assert ours
    for arguments in ours:
        told = CliRunner().invoke(app, [*arguments, "--config", str(file)])
        assert told.exit_code == 0, told.output
    assert len(bridge.rows()) == 1


def test_the_python_of_the_page_links(router, monkeypatch):
    """The question of the page is found by its trace."""
    (code,) = blocks("feedback-importers.md", "python")
    monkeypatch.setattr("ragbandit.Router", type("Opened", (), {"open": staticmethod(lambda: _Kept(router))}))
    names: dict = {}
    exec(compile(code, "feedback-importers.md", "exec"), names)
    decision = router.decision(names["decision"].id).decision
    assert decision.query.request["links"] == {"trace": "4bf92f3577b34da6a3ce929d0e0e4736"}


class _Kept:
    """A router that stays open when a block that uses it ends."""

    def __init__(self, router) -> None:
        self.router = router

    def __enter__(self):
        return self.router

    def __exit__(self, *_: object) -> None:
        pass
