"""The fixtures of the integration tests serve the tests of additions too; a table to train policies on."""

import json

import pytest

from tests.integration.api.conftest import http
from tests.integration.conftest import keyed, serve, serve_module, service, store
from tests.support import command

__all__ = ["http", "keyed", "serve", "serve_module", "service", "store"]


@pytest.fixture
def table(tmp_path):
    """A table in which the first word decides: "who" needs nothing, "when" many steps."""
    lines = []
    for number in range(24):
        easy = number % 2 == 0
        words = ("who" if easy else "when", ("dracula", "born", "city")[number % 3], ("river", "film")[number % 5 % 2])
        lines.append(
            {
                "id": f"q{number}",
                "question": f"{' '.join(words)} {number} ?",
                "correct": {"no_retrieval": int(easy), "single_step": int(easy), "multi_step": 1},
                "steps": {"no_retrieval": 0, "single_step": 1, "multi_step": 4.5},
            }
        )
    file = tmp_path / "table.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Runs `policy train` with these options."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: command.run("policy", "train", *words)
