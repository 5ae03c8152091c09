"""`ragbandit policy`: versions are added, moved and stopped on the database alone, whatever else is down."""

import json
from functools import partial

import pytest

from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.shared.types import PinnedArm, Query, candidate_note
from tests.support import command


@pytest.fixture(autouse=True)
def service_settings(settings, tmp_path, monkeypatch):
    """The settings of a store, which the command finds by the environment."""
    stored = settings(policy={"name": "uniform"}, rollout={"time_limit_s": 5.0})
    monkeypatch.setenv("RAGBANDIT_DATA_DIR", str(stored.data_dir))
    monkeypatch.setenv("RAGBANDIT_POLICY__NAME", "uniform")
    monkeypatch.chdir(tmp_path)
    Router.open(stored, jobs=MemoryJobs()).close()
    return stored


run = partial(command.run, "policy", code=0)


def reply_of(*arguments: str):
    return json.loads(run(*arguments, "--json").stdout)


def test_from_draft_to_champion_and_back(service_settings):
    """Each verb moves the version, and a router that opens serves it so; a version in shadow shows its evidence."""
    version = reply_of("add", "--set", "policy.name=linucb", "--set", "policy.params.ridge=2", "--reason", "a [try]")
    assert version["changes"] == {"policy": {"name": "linucb", "params": {"ridge": 2}}}
    assert reply_of("shadow", "v1")["state"] == "shadow"
    with Router.open(service_settings, jobs=MemoryJobs()) as router:
        note = candidate_note(router.submit(Query(text="why?"), run_by="caller").result(30).facts, "v1")
        assert (note.version, note.fault) == ("v1", None)
        run("kill", "single_step", "--reason", "smoke")
        pinned = router.submit(Query(text="why?"), run_by="caller").result(30)
        assert (pinned.arm, PinnedArm.key in pinned.facts) == ("single_step", True)
        listed = run("show").stdout
        assert "KILLED" in listed
        assert "smoke" in listed
        run("resume")
        assert PinnedArm.key not in router.submit(Query(text="why?"), run_by="caller").result(30).facts
    shown = reply_of("show", "v1")
    assert shown["possible"] == ["promote", "retire"]
    assert shown["evidence"]["comparison"]["verdict"] == "not known yet"
    assert "whether v1 is better than main is not known yet" in " ".join(run("show", "v1").stdout.split())
    assert "--force" in run("promote", "v1", code=2).output
    assert reply_of("promote", "v1", "--force")["state"] == "champion"
    assert "v1 (linucb) decides" in " ".join(command.run("status").stdout.split())
    assert reply_of("rollback", "v1")["state"] == "retired"
    assert {one["name"]: one["state"] for one in reply_of("show")["policies"]} == {"main": "champion", "v1": "retired"}


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [("DATA_DIR", "nothing-here", "there is no database"), ("POLICY__LABEL", "other", "no ledger 'other'")],
)
def test_the_switch_of_a_store_that_nobody_serves_is_not_thrown(monkeypatch, tmp_path, variable, value, text):
    """In the wrong folder, or with another label, `kill` would stop nobody: it is refused, and makes no store."""
    monkeypatch.setenv(f"RAGBANDIT_{variable}", value)
    for verb in ("show", "kill"):
        assert text in run(verb, code=2).output
    assert not (tmp_path / "nothing-here").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["add", "--set", "policy.name=nonsense"], "nonsense"),
        (["add", "--set", "policy=1"], "SECTION.NAME=VALUE"),
        (["add", "A B"], "name of a version"),
        (["shadow", "nobody"], "nobody"),
        (["kill", "nonsense"], "nonsense"),
        (["resume"], "the kill switch is off"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(arguments, text):
    """Exit code 2 and the setting's or the version's name."""
    assert text in run(*arguments, code=2).output


def test_a_ledger_is_learned_anew(service_settings):
    """`ragbandit policy relearn` learns a new ledger from the whole store, and goes on if it is given its label."""
    with Router.open(service_settings, jobs=MemoryJobs()) as router:
        for number in range(3):
            decision = router.route(f"question {number}?")
            router.outcome(decision.id, answer="Paris", steps=1)
            router.feedback(decision.id, rating=True)
        assert router.learn() == 3
    for more in ((), ("--to", "main_q1")):
        made = reply_of("relearn", "--reason", "limits", *more)
        assert (made["label"], made["updates"]) == ("main_q1", 3)


def test_a_change_of_an_arm_is_declared():
    """`ragbandit policy restart` writes who and why; an arm that is not configured is refused with those that are."""
    assert reply_of("restart", "single_step", "--reason", "a new model")["arm"] == "single_step"
    assert "single_step" in run("restart", "nonsense", code=2).output
    exported = command.run("audit").stdout
    assert "a new model" in exported
