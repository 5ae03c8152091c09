"""A store of schema revision 0009, from before feedback had raters, weights and calibration, goes on as it was."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from ragbandit import Router
from ragbandit.router.config.loading import load
from ragbandit.router.jobs.memory_jobs import MemoryJobs
from ragbandit.router.storage.sql.database import Database, migrate
from tests.support.tar_files import unpack

#: made with the code of schema revision 0009, by make.py in it; the sha256 of its policies stand in facts.json
ARCHIVE = Path(__file__).parents[3] / "tests" / "data" / "store_0_2_before_raters.tar.gz"
LEDGERS = {"main": "mba", "ucb": "linucb", "grad": "softmax"}


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A folder as revision 0009 left it, its schema brought up; it is the current folder."""
    unpack(ARCHIVE, tmp_path)
    monkeypatch.chdir(tmp_path)
    with closing(Database("sqlite:///store/ragbandit.db")) as database:
        migrate(database)
    return json.loads((tmp_path / "facts.json").read_text())


def opened(label):
    tree = load("config.yaml", environ={}).settings
    chosen = tree.policy.model_copy(update={"name": LEDGERS[label], "label": label})
    return Router.open(tree.model_copy(update={"policy": chosen}), jobs=MemoryJobs())


@pytest.mark.parametrize("label", LEDGERS)
def test_policies_have_the_sha256_of_before(old, label):
    """Its ledgers replay to the same policies, whose snapshots are served, and the counters fit."""
    with opened(label) as router:
        verdict = router.verify(deep=True)
        counters = router.status().counters
    assert (verdict.ok, verdict.notes) == (True, [])
    assert (verdict.live_sha256, verdict.replay_sha256) == (old[label]["sha256"], old[label]["sha256"])
    assert (counters.learned, counters.waiting, counters.disagreements) == (old[label]["updates"], 6, 0)


def test_what_waited_is_learned_on_top(old):
    """Feedback of before is learned by the rules of now, rows of before keep theirs, and the ledger verifies."""
    with opened("main") as router:
        assert router.learn() == 3
        rows = [(update.reward.judged_by, update.reward.sample_weight) for update in router.ledger.read(after=0)]
        assert rows[:48] == [(None, 1.0)] * 48
        assert sorted(rows[48:]) == [("human", 1.0), ("human", 1.0), ("judge", 0.3)]
        verdict = router.verify(deep=True)
    assert (verdict.ok, verdict.updates) == (True, old["main"]["updates"] + 3)
