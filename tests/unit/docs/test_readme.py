"""What the README shows must run."""

import logging
import re
from pathlib import Path

from ragbandit.router.api.requests import FeedbackBody, RouteBody

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")


def test_the_library_example_runs(tmp_path, monkeypatch, capsys, caplog):
    """The README's Python runs as it stands, and warns of nothing; here with the encoder that needs no model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAGBANDIT_ENCODER__MODEL", "hashing")
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.S)

    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})

    assert len(blocks) == 1
    assert "learned" in capsys.readouterr().out
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_the_http_examples_are_taken():
    """Every body that the README sends by curl is one that the service takes, a budget among them."""
    sent = re.findall(r"/v1/(answer|feedback) -H 'content-type: application/json'[\s\\]+-d '(.*?)'\n", README)
    bodies = [(RouteBody if path == "answer" else FeedbackBody).model_validate_json(body) for path, body in sent]

    assert len(bodies) == README.count("curl -s localhost:8100/v1/") - 1
    assert [body.budget.rounds for body in bodies if isinstance(body, RouteBody)] == [None, 2]


def test_every_verb_and_path_is_there():
    """Every `ragbandit` verb, every path and every file that the README names exists."""
    from ragbandit.workers.cli import app

    verbs = {c.name or c.callback.__name__ for c in app.registered_commands} | {g.name for g in app.registered_groups}
    named = set(re.findall(r"ragbandit ([a-z]+)", README))
    files = re.findall(r"`((?:tests|router|strategies|examples)/[\w/]+\.\w+)`", README)

    assert named <= verbs
    assert [f for f in files if not (Path(__file__).parents[3] / f).exists()] == []
