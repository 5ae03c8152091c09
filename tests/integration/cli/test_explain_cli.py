"""`ragbandit explain`: the whole story in text, with what others wrote made harmless."""

from dataclasses import replace

import pytest

from ragbandit.router.serving.checks.reports import made_outcome
from ragbandit.shared.types import CallFailed
from tests.support import command

HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]who[/red] <script>alert(1)</script>\u202egnp.exe"


@pytest.fixture
def world(make_world, tmp_path, monkeypatch):
    made = make_world()
    monkeypatch.setenv("RAGBANDIT_DATA_DIR", str(made.settings.data_dir))
    monkeypatch.chdir(tmp_path)
    return made


def run(*arguments: str):
    return command.run("explain", *arguments, terminal_width=200)


def test_hostile_texts_reach_no_terminal(world):
    """Controls, markup and signs that turn the direction are shown as what they are, wherever they stand."""
    world.judged(2)
    world.learn()
    decision = world.route(HOSTILE)
    made = made_outcome(decision_id=decision.id, now=world.now, status="failed", answer=HOSTILE, steps=1.0)
    world.store.add_outcome(
        replace(made, error=HOSTILE, trace=(CallFailed(purpose=HOSTILE, error=HOSTILE, seconds=1.0),))
    )
    world.feedback(decision, rating=1.0, rater="rater")
    world.learn()
    for words in ([decision.id], [decision.id, "--all"]):
        done = run(*words)
        assert done.exit_code == 0, done.output
        assert {"\x1b", "\x07", "\u202e"}.isdisjoint(done.stdout)
        for shown in ("\\u001b[2J", "[red]who[/red]", f"Why {decision.arm}", "as update 3 of its ledger"):
            assert shown in done.stdout


def test_an_explanation_fits_on_one_screen(world):
    """By default 80 columns and 24 lines, with every reason; --all has the rest."""
    world.judged(2)
    world.learn()
    decision = world.route("Why " * 300 + "?")
    made = made_outcome(decision_id=decision.id, now=world.now, status="answered", answer="so " * 900, steps=2.0)
    world.store.add_outcome(made)
    for number in range(30):
        world.feedback(decision, rating=1.0, rater=f"rater {number}")
    world.learn()
    lines = run(decision.id).stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "likeliest arm" in " ".join(lines) or "drawn by chance" in " ".join(lines)
    assert "seed" not in " ".join(lines)
    assert "facts" not in " ".join(lines[:-1])
    whole = run(decision.id, "--all").stdout
    assert "seed" in whole
    assert whole.count("rater ") >= 30
