"""A ledger is learned in blocks, and a rebuild is the live policy again."""

import pytest

from ragbandit.router.learning.examples import lessons
from ragbandit.router.policies import make_policy
from ragbandit.router.storage.ledgers.ledger import lean_updates
from ragbandit.testing.policies import sha_of


@pytest.mark.parametrize("name", ["mba", "linucb", "uniform"])
def test_lean_lessons_teach_the_same(make_world, name):
    """What a policy learns from the lean rows of the ledger, in pages, has the sha256 of the whole rows."""
    world = make_world()
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
