"""`ragbandit data erase`, `retire` and `recount`: what they do, and what they refuse."""

import json

import pytest

from ragbandit.router.storage.sql.leases import lease_holder
from ragbandit.router.verbs import policy
from tests.support.command import run


@pytest.fixture
def world(make_world, tmp_path, monkeypatch):
    """A store with three learned decisions, which the environment names."""
    new_world = make_world()
    new_world.judged(3)
    new_world.learn()
    monkeypatch.setenv("RAGBANDIT_DATA_DIR", str(new_world.settings.data_dir))
    monkeypatch.chdir(tmp_path)
    return new_world


def test_erase_asks_for_a_yes(world):
    """A dry run counts; without --yes nothing is erased; with it all that is selected is; a completion's id will do."""
    assert json.loads(run("data", "erase", "--before", "2030-01-01", "--dry-run", "--json").stdout)["decisions"] == 3
    refused = run("data", "erase", "--before", "2030-01-01")
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    decision = next(decision for _, decision in world.ledger.read_with_decisions(after=0))
    assert decision.query.text != ""
    done = json.loads(run("data", "erase", "--before", "2030-01-01", "--yes", "--json").stdout)
    assert done == {"erased": True, "decisions": 3, "waiting": 0}
    one = json.loads(run("data", "erase", "--decision", f"chatcmpl-{decision.id}", "--dry-run", "--json").stdout)
    assert one["decisions"] == 1
    none = json.loads(run("data", "erase", "--session", "talk", "--dry-run", "--json").stdout)
    assert none == {"erased": False, "decisions": 0, "waiting": 0}
    assert {decision.query.text for _, decision in world.ledger.read_with_decisions(after=0)} == {""}


def test_retire(world, make_world):
    """A ledger that nobody serves is retired; the one that is configured is not, and an unknown one is named."""
    other = make_world(policy={"label": "second"})
    other.learn()
    world.route()
    done = run("policy", "retire", "--label", "second", "--json")
    assert json.loads(done.stdout)["retired"] == "second"
    assert other.counters().waiting == 0
    assert run("policy", "retire", "--label", "main").exit_code == 2
    assert "second" in run("policy", "retire", "--label", "third").stderr


@pytest.mark.usefixtures("world")
def test_a_ledger_whose_learner_runs_is_not_retired(make_world, monkeypatch):
    """While a learner holds the ledger, however long its lease is, retiring it is refused with the remedy."""
    other = make_world(policy={"label": "second"})
    other.learn()
    holder = lease_holder("learn")
    assert other.ledger.acquire(holder=holder, lease_s=600)
    monkeypatch.setattr(policy, "PATIENCE_S", 0.0)
    refused = run("policy", "retire", "--label", "second")
    assert refused.exit_code != 0
    assert "stop that learner" in refused.stderr
    other.ledger.release(holder=holder)
    run("policy", "retire", "--label", "second", code=0)
