"""Sources of feedback on SQLite and PostgreSQL: votes, retractions, weights and caps."""

import json
from dataclasses import replace

import pytest
from sqlalchemy import update

from ragbandit.router.learning.sources import matches_source, read_keys, sources_of, weight_factor
from ragbandit.router.serving.checks.reports import make_feedback
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.sql.counters import row_counts, stored_counts
from ragbandit.router.storage.sql.tables import api_keys
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Feedback
from tests.conftest import on_sqlite

WINDOW = {"wait_s": 60.0, "aggregate": "mean"}


def said(world, decision, *, key=None, **value):
    """A feedback as the edge stores it, of an API key."""
    feedback = make_feedback(decision_id=decision.id, settings=world.settings, now=world.now, **value)
    return world.router.submit_feedback(replace(feedback, api_key=key)).result(30)


def answered(world):
    decision = world.route()
    world.outcome(decision)
    return decision


def used(world):
    return [json.loads(row["feedback_ids"]) for row in world.updates()]


def sound(world):
    """Counters balance and are those of the tables, and the ledger gives the policy."""
    assert world.counters().balanced
    with world.database.read() as connection:
        assert row_counts(connection, label=world.store.label) == stored_counts(connection, label=world.store.label)
    assert world.router.verify(deep=True).ok


def test_keys_whose_names_look_alike_are_one_source(make_world):
    """Keys are found by every name that looks like theirs, in the store or in the settings, and by their role."""
    world = make_world()
    key = KeyStore(world.database).create(name="x", role="app", now=world.now, actor="cli:test").key.public_id
    with world.database.write() as connection:
        connection.execute(update(api_keys).values(name="cafe\u0301"))
    by_key = make_feedback(decision_id="d", settings=world.settings, now=world.now, rating=1.0)
    names = sources_of(replace(by_key, api_key=key), tenant="t", keys=read_keys(world.database))
    assert names == {"tenant:t", f"key:{key}", "key:caf\u00e9", "role:app"}
    assert all(matches_source(f"key:{name}", names) for name in ("caf\u00e9", " cafe\u0301 ", "caf\u200b\u00e9"))


def test_a_key_has_one_vote(make_world):
    """A key without raters replaces its own judgement, but not that of another key or of its named raters."""
    world = make_world(learning=WINDOW)
    decision = answered(world)
    for name, key, rating, rater in (
        ("a1", "a", 0.0, None),
        ("a2", "a", 1.0, None),
        ("b1", "b", 0.5, None),
        ("ann-a", "a", 0.25, "ann"),
        ("ann-b", "b", 0.75, "ann"),
        ("open1", None, 0.5, None),
        ("open2", None, 0.5, None),
    ):
        world.now += 1
        said(world, decision, key=key, rating=rating, rater=rater, feedback_id=name)
    world.now += 100
    assert world.learn() == 1
    assert sorted(used(world)[0]) == ["a2", "ann-a", "ann-b", "b1", "open1", "open2"]
    assert world.counters().late_feedback == 0
    sound(world)


def test_a_retraction_replaces_with_nothing(make_world):
    """What a rater takes back is not learned; a new judgement after it is."""
    world = make_world(learning=WINDOW)
    gone, again = answered(world), answered(world)
    for decision in (gone, again):
        said(world, decision, rating=1.0, rater="ann", feedback_id=f"1-{decision.id[-8:]}")
        world.now += 1
        said(world, decision, retract="rating", rater="ann", feedback_id=f"2-{decision.id[-8:]}")
    world.now += 1
    said(world, again, rating=0.25, rater="ann", feedback_id="third")
    world.now += 100
    assert world.learn() == 2
    assert used(world) == [["third"]]
    assert world.router.decision(gone.id).state == "closed"
    assert said(world, again, retract="rating", rater="ann").late
    sound(world)


@pytest.mark.parametrize("given", [{"retract": "event"}, {"retract": "rating", "rating": 1.0}])
def test_what_cannot_be_retracted(make_world, given):
    """A retraction names label, rating or reward, and comes alone."""
    world = make_world()
    with pytest.raises(InvalidInput):
        said(world, world.route(), **given)


def test_a_source_of_weight_0_teaches_nothing_and_closes_nothing(make_world):
    """A model's scores from elsewhere wait for a person by default; a factor multiplies what a class counts."""
    world = make_world(learning={"sources": {"key:half": 0.5}})
    decision = answered(world)
    said(world, decision, rating=1.0, source="judge", rater="import:langfuse:eval", feedback_id="eval")
    assert world.learn() == 1
    assert world.learn() == 0
    said(world, decision, rating=0.5, key="half", feedback_id="person")
    assert world.learn() == 1
    (row,) = world.updates()
    assert (json.loads(row["feedback_ids"]), row["sample_weight"]) == (["person"], 0.5)
    assert world.router.decision(decision.id).late == frozenset()
    sound(world)


NAMED = {
    "key:shop": 0.0,
    "tenant:trial": 0.0,
    "role:operator": 2.0,
    "rater:user-17": 2.0,
    "rater:bot-*": 0.25,
    "rater:bot-9": 0.5,
    "import:eval": 5.0,
    "import:*": 3.0,
}


@pytest.mark.parametrize(
    ("sources", "rater", "key", "expected"),
    [
        (["key:shop"], None, "k", 0.0),
        (["key:shop"], "user-17", "k", 0.0),
        (["key:shop"], "import:eval", "k", 0.0),
        (["tenant:trial"], "user-17", None, 0.0),
        ([], "user-17", "k", 1.0),
        (["role:operator"], "user-17", "k", 2.0),
        (["role:operator", "key:shop"], "user-17", "k", 0.0),
        (["role:operator"], "bot-7", "k", 0.25),
        ([], "bot-9", "k", 0.5),
        ([], "import:eval", None, 5.0),
        (["tenant:trial"], "import:other", None, 3.0),
        ([], "import:eval", "k", 1.0),
    ],
)
def test_a_name_of_a_rater_cannot_raise_a_weight(sources, rater, key, expected):
    """Key, role and tenant bound what the name that a caller writes may give; a file of the operator has its own."""
    item = Feedback(
        id="f", decision_id="d", kind="rating", value=1.0, source="human", received_at=0.0, rater=rater, api_key=key
    )
    names = {*sources, *([] if rater is None else [f"rater:{rater}"])}
    assert weight_factor(item, sources=names, configured=NAMED) == expected


def rated(world, raters, *, key=None, first=0):
    """Decisions rated by these raters, each a second after the previous one."""
    for number, rater in enumerate(raters, start=first):
        decision = answered(world)
        world.now += 1
        said(world, decision, key=key, rating=1.0, rater=rater, feedback_id=f"{key}-{rater}-{number}")


def test_beyond_its_cap_a_rater_is_not_learned(make_world, database_url):
    """Three judgements of a rater per day are learned; other raters and the next day have caps of their own."""
    world = make_world(database_url=database_url, learning={"rater_per_day": 3})
    rated(world, ["ann"] * 5 + ["bob"] * 2 + [None] * 5, key="app")
    world.learn()
    assert [names[0] for names in used(world)] == [
        *(f"app-ann-{number}" for number in range(3)),
        "app-bob-5",
        "app-bob-6",
        *(f"app-None-{number}" for number in range(7, 12)),
    ]
    assert world.counters().waiting == 2
    assert world.learn() == 0  # what is beyond the cap is not looked at again
    world.now += 86_400
    rated(world, ["ann"], key="app", first=20)
    assert world.learn() == 1
    sound(world)


def test_a_cap_is_of_a_rater_of_one_key(make_world, tmp_path):
    """The same name with another key is another rater; 0 means no cap."""
    world = make_world(learning={"rater_per_day": 2})
    for key in ("app", "shop"):
        rated(world, ["ann"] * 3, key=key)
    world.learn()
    assert world.ledger.last_seq() == 4
    free = make_world(data_dir=str(tmp_path / "free"), learning={"rater_per_day": 0})
    rated(free, ["ann"] * 5, key="app")
    free.learn()
    assert free.ledger.last_seq() == 5


def test_a_flood_moves_the_policy_by_the_cap_and_no_more(make_world, tmp_path):
    """A rater that floods teaches what the same rater teaches by the first feedbacks alone: the same policy."""
    worlds = [
        make_world(data_dir=str(tmp_path / name), learning={"rater_per_day": 4}) for name in ("flooded", "honest")
    ]
    for world, votes in zip(worlds, (40, 4), strict=True):
        rated(world, ["app-user"] * 6, key="app")
        rated(world, ["bad"] * votes, key="web", first=100)
        world.learn()
    flooded, honest = worlds
    assert used(flooded) == used(honest)
    assert len(used(flooded)) == 8


@on_sqlite
def test_learners_that_come_and_go_learn_the_same(make_world, database_url):
    """The cap follows from stored rows: one learner that stays and learners that start again learn the same rows."""
    worlds = [
        make_world(database_url=database_url if first else None, learning={"rater_per_day": 15}) for first in (1, 0)
    ]
    stays = worlds[0].learner()
    for first in range(0, 40, 10):
        for world in worlds:
            rated(world, ["ann"] * 10, key="app", first=first)
        stays.drain()
        worlds[1].learn()
    assert used(worlds[0]) == used(worlds[1])
    assert len(used(worlds[0])) == 15


@pytest.mark.parametrize(
    ("rater", "key", "learned"), [("import:langfuse:eval", None, 3), ("gpt", None, 3), ("gpt", "web", 1)]
)
def test_own_processes_have_no_cap(make_world, rater, key, learned):
    """The cap counts judgements of API keys; it ignores the configured judge and imports of an operator."""
    world = make_world(learning={"rater_per_day": 1, "sources": {"import:*": 1.0}})
    for number in range(3):
        said(world, answered(world), key=key, rating=1.0, source="judge", rater=rater, feedback_id=f"f{number}")
    world.learn()
    assert world.ledger.last_seq() == learned
