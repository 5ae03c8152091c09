"""What the README shows must run."""

import re
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_library_example_runs(tmp_path, monkeypatch, capsys):
    """The README's Python runs as it stands, here with the encoder that needs no model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAGBANDIT_ENCODER__MODEL", "hashing")
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.S)

    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})

    assert len(blocks) == 1
    assert "learned" in capsys.readouterr().out


def test_every_verb_and_path_is_there():
    """Every `ragbandit` verb, every path and every file that the README names exists."""
    from workers.cli import app

    verbs = {c.name or c.callback.__name__ for c in app.registered_commands} | {g.name for g in app.registered_groups}
    named = set(re.findall(r"ragbandit ([a-z]+)", README))
    files = re.findall(r"`((?:tests|router|strategies|examples)/[\w/]+\.\w+)`", README)

    assert named <= verbs
    assert [f for f in files if not (Path(__file__).parents[2] / f).exists()] == []
