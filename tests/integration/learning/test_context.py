"""Context in the ledger: lean updates, another schema, texts that are not kept or erased."""

import json

import pytest

from ragbandit.router.learning.examples import updates_to_learn
from ragbandit.router.policies.base import schema_of
from ragbandit.router.policies.settings_check import check_policy
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.ledgers.ledger import lean_updates
from ragbandit.shared.types import Query
from ragbandit.testing.policies import sha_of
from tests.support.additions import needs

TIER = {"tier": {"type": "category", "values": ["free", "pro"]}}
TENANT = {"asked_by": {"type": "tenant"}}
CALLER_ARMS = {name: {"run_by": "caller"} for name in ("no_retrieval", "single_step")}


def asked(world, count=12):
    """Decisions with contexts and feedback."""
    for number in range(count):
        context = {"tier": ("free", "pro", "other")[number % 3], "age": number, "secret": "Zygmunt"}
        query = Query(text=f"who wrote number {number} and the rest?", context=context, tenant=f"t{number % 2}")
        world.feedback(world.router.submit(query).result(30), reward=0.1 * (number % 7))
    world.learn()


def live_sha(world):
    return sha_of(world.router.service.serving.policy)


@pytest.mark.parametrize("name", ["mba", "linucb", pytest.param("vw", marks=needs("vw"))])
def test_the_ledger_gives_the_policy_again(make_world, name):
    """A policy with a schema is verified to every pmf, and is what the ledger alone teaches."""
    given = {"name": name, "params": {}}
    world = make_world(context=TIER | TENANT, policy=given)
    asked(world)
    assert sum(world.router.service.serving.policy.seen.values()) == 12
    verdict = world.router.verify(deep=True)
    assert verdict.ok, verdict
    assert sha_of(world.replayed()) == live_sha(world)


@pytest.mark.parametrize(
    ("name", "schema"), [("mba", {}), ("linucb", {}), ("uniform", {}), ("mba", TIER), ("mba", TIER | TENANT)]
)
def test_lean_lessons_teach_the_same(make_world, database_url, name, schema):
    """What a policy learns from lean rows, in pages, has the sha256 of the whole rows, also with a context."""
    world = make_world(database_url=database_url, context=schema, policy={"name": name})
    asked(world)
    fresh = type(world.replayed())(**world.replayed().params)
    for update in updates_to_learn(world.ledger, policy=fresh, after=0):
        fresh.learn(update)
    assert sum(fresh.seen.values()) == 12
    assert sha_of(fresh) == sha_of(world.replayed()) == live_sha(world)
    assert [u.seq for u in lean_updates(world.ledger, after=2, upto=9, page=3)] == [3, 4, 5, 6, 7, 8, 9]


def test_another_schema_learns_the_ledger_again(make_world, tmp_path):
    """A key that is declared later is learned from the contexts that were logged before, in the same ledger."""
    old = make_world(data_dir=str(tmp_path))
    asked(old)
    assert schema_of(old.router.service.serving.policy) == {}
    old.router.close()
    new = make_world(data_dir=str(tmp_path), context=TIER | {"age": {"type": "number"}})
    new.learn()
    new.router.refresh()
    policy = new.router.service.serving.policy
    assert set(schema_of(policy)) == {"tier", "age"}
    assert policy.state()[1]["context"]["age"][0] == 12
    assert json.loads(new.ledger.policy_row()["params"])["context"]["tier"] == TIER["tier"]
    assert new.router.verify(deep=True).ok


def test_declared_keys_are_kept_without_texts(make_world):
    """Where no texts are kept, declared keys are, since they are learned from; no other key is."""
    world = make_world(log={"text": "none"}, arms=CALLER_ARMS, context=TIER)
    asked(world)
    kept = [update.query.context for update in world.ledger.read(after=0)]
    assert kept[:2] == [{"tier": "free"}, {"tier": "pro"}]
    assert world.router.verify(deep=True).ok
    assert sha_of(world.replayed()) == live_sha(world)


def test_a_policy_that_does_not_learn_from_it_is_named(settings, caplog):
    """A schema with a policy that reads no context is a warning: it may be the next one's."""
    check_policy(settings(policy={"name": "uniform"}, context=TIER))
    assert "uniform does not learn from it" in caplog.text
    caplog.clear()
    check_policy(settings(context=TIER))
    assert caplog.text == ""


def test_erased_contexts_are_not_learned_again(make_world):
    """After an erasure `verify` says that the rows cannot be learned again; it does not call the policy wrong."""
    world = make_world(context=TIER)
    asked(world)
    erase(world.database, Selection(tenant="t1"), features=False, actor="cli:me", now=world.now)
    verdict = world.router.verify(deep=True)
    assert verdict.ok, verdict
    assert verdict.not_relearnable == 6
