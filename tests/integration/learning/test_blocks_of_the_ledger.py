"""New ledgers are learned in blocks, those that are there as they began, and a rebuild is the live policy again."""

import json

import pytest

from ragbandit.router.learning.lessons import lessons, policy_of
from ragbandit.router.policies import make_policy
from ragbandit.router.storage.ledgers.lean_updates import lean_updates
from ragbandit.testing.policies import sha_of


def test_a_new_ledger_learns_in_blocks(make_world, database_url):
    """Without a word in the configuration a ledger that begins now records `block`, and goes on with it."""
    world = make_world(database_url=database_url)
    assert json.loads(world.ledger.registered()["params"])["block"] == 256
    world.judged(3)
    world.learn()
    assert policy_of(world.settings, registered=world.ledger.registered()).params["block"] == 256


def test_a_ledger_that_is_there_goes_on(make_world, tmp_path):
    """A ledger that was learned row by row is so until the configuration names a block; then it is learned again."""
    old = make_world(data_dir=str(tmp_path), policy={"params": {"block": 1}})
    old.judged(5)
    old.learn()
    assert "block" not in json.loads(old.ledger.registered()["params"])
    version = old.router.service.serving.version
    old.router.close()
    silent = make_world(data_dir=str(tmp_path), policy={"params": {}})
    assert silent.router.service.serving.version == version
    silent.judged(2)
    silent.learn()
    assert silent.router.verify(deep=True).ok
    silent.router.close()
    moved = make_world(data_dir=str(tmp_path), policy={"params": {"block": 64}})
    moved.learn()
    assert json.loads(moved.ledger.registered()["params"])["block"] == 64
    assert moved.router.service.serving.last_seq == 7
    assert moved.router.verify(deep=True).ok


@pytest.mark.parametrize("name", ["mba", "linucb", "uniform"])
def test_lean_lessons_teach_the_same(make_world, database_url, name):
    """What a policy learns from the lean rows of the ledger, in pages, has the sha256 of the whole rows."""
    world = make_world(database_url=database_url)
    world.judged(11)
    world.learn()
    lean, whole = make_policy(name, params={}), make_policy(name, params={})
    for update in lessons(world.ledger, policy=lean, after=0):
        lean.learn(update)
    for update in world.ledger.read(after=0):
        whole.learn(update)
    assert sum(lean.seen.values()) == 11
    assert sha_of(lean) == sha_of(whole)
    assert [u.seq for u in lean_updates(world.ledger, after=2, upto=9, page=3)] == [3, 4, 5, 6, 7, 8, 9]
