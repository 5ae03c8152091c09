"""`ragbandit explain`: the whole story in text, with what others wrote made harmless."""

from dataclasses import replace

import pytest

from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.shared.types import CallFailed, Cost
from tests.support import command

HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]who[/red] <script>alert(1)</script>\u202egnp.exe"


@pytest.fixture
def world(make_world, tmp_path, monkeypatch):
    new_world = make_world()
    monkeypatch.setenv("RAGBANDIT_DATA_DIR", str(new_world.settings.data_dir))
    monkeypatch.chdir(tmp_path)
    return new_world


def run(*arguments: str):
    return command.run("explain", *arguments, terminal_width=200)


def test_hostile_texts_reach_no_terminal(world):
    """Controls, markup and signs that turn the direction are shown as what they are, wherever they stand."""
    world.judged(2)
    world.learn()
    decision = world.route(HOSTILE)
    outcome = make_outcome(decision_id=decision.id, now=world.now, status="failed", answer=HOSTILE, steps=1.0)
    world.store.add_outcome(
        replace(outcome, error=HOSTILE, trace=(CallFailed(purpose=HOSTILE, error=HOSTILE, seconds=1.0),))
    )
    world.feedback(decision, rating=1.0, rater="rater")
    world.learn()
    done = run(decision.id)
    assert done.exit_code == 0, done.output
    assert {"\x1b", "\x07", "\u202e"}.isdisjoint(done.stdout)
    for shown in ("\\u001b[2J", "[red]who[/red]", f"Why {decision.arm}", "as update 3 of its ledger"):
        assert shown in done.stdout


def test_one_call_is_singular(world):
    """`explain` prints one call and one token in the singular, and others in the plural."""
    decision = world.route("What is one?")
    cost = Cost(llm_calls=1, retriever_calls=2, prompt_tokens=310, completion_tokens=1, seconds_generate=1, dollars=0.5)
    outcome = make_outcome(decision_id=decision.id, now=world.now, status="answered", answer="1", steps=1.0)
    world.store.add_outcome(replace(outcome, cost=cost))
    (line,) = (line for line in run(decision.id).stdout.splitlines() if line.startswith("cost "))
    amounts = "2 retriever calls, 1 llm call, 310 prompt tokens, 1 completion token, 1 second generate, 0.5 dollars"
    assert line.split("  ")[-1].strip() == amounts


def test_turns_of_a_cost_are_those_after_the_first(world):
    """`explain` names the turns in a decision's cost later turns, since a limit of a task counts the first one too."""
    decision = world.route("What is one?")
    outcome = make_outcome(decision_id=decision.id, now=world.now, status="answered", answer="1", steps=1.0)
    world.store.add_outcome(replace(outcome, cost=Cost(turns=5)))
    (line,) = (line for line in run(decision.id).stdout.splitlines() if line.startswith("cost "))
    assert line.split("  ")[-1].strip() == "5 later turns"
