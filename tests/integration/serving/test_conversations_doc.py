"""docs/conversations.md is held to the code: its example runs, with its settings, and prints what it says."""

import re
from pathlib import Path

import pytest
import yaml

from ragbandit.testing.openai_server import ScriptedServer

PAGE = (Path(__file__).parents[3] / "docs" / "conversations.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_example_prints_what_the_page_says(settings, tmp_path, monkeypatch, capsys):
    """The first example, with the page's settings and a server in place of the model, prints the rewritten question."""
    printed = "When was Bram Stoker born?"
    assert f"This prints `{printed}`" in PAGE
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    made = settings()  # an empty store of today's schema
    with ScriptedServer([printed]) as server:
        given = yaml.safe_load(blocks("yaml")[0].replace("http://localhost:8000/v1", server.url))
        given |= {"data_dir": made.data_dir, "encoder": {"model": "hashing"}}
        Path("config.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")
        exec(blocks("python")[0], {})
    assert capsys.readouterr().out == f"{printed}\n"


@pytest.mark.parametrize("reason", ["timeout", "connection", "malformed", "empty", "too_long", "question_long", "busy"])
def test_reasons_are_those_of_the_code(reason):
    """Every reason that the code documents is on the page."""
    from ragbandit.router.serving import conversations

    assert re.search(rf"\b{reason}\b", conversations.__doc__)
    assert f"`{reason}`" in PAGE
