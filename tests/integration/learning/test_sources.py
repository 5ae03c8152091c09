"""Sources of feedback on SQLite and PostgreSQL: votes, retractions, weights, caps, and what is held and released."""

import json
from dataclasses import replace

import pytest

from ragbandit.router.erasure import Selection, erase
from ragbandit.router.learning.sources.screening import Screening
from ragbandit.router.serving.checks.reports import made_feedback
from ragbandit.router.storage.access.audit_log import check_entries, entries
from ragbandit.router.storage.ledgers.held_feedback import held, release, sources_held
from ragbandit.router.storage.sql.counters import counted, kept
from ragbandit.shared.errors import InvalidInput, NotFound
from ragbandit.shared.types import Query
from tests.conftest import on_sqlite

WINDOW = {"wait_s": 60.0, "aggregate": "mean"}
TIGHT = {"window": 100, "floor": 2, "key_share": 0.1, "trusted": ["key:app"]}


def said(world, decision, *, key=None, **value):
    """A feedback as the edge stores it, of an API key."""
    made = made_feedback(decision_id=decision.id, settings=world.settings, now=world.now, **value)
    return world.router.submit_feedback(replace(made, api_key=key)).result(30)


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
        assert counted(connection, label=world.store.label) == kept(connection, label=world.store.label)
    assert world.router.verify(deep=True).ok


def test_a_key_has_one_vote(make_world):
    """A key without raters replaces its own judgement; another key's, and those of its named raters, stand beside."""
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


def test_a_retraction_before_the_outcome(make_world):
    """Without a window, a judgement that was taken back before the outcome came closes nothing; the next one does."""
    world = make_world()
    decision = world.route()
    said(world, decision, rating=1.0, rater="ann")
    said(world, decision, retract="rating", rater="ann")
    world.outcome(decision)
    assert world.learn() == 1  # it was looked at
    assert world.learn() == 0  # and is not again
    assert world.router.decision(decision.id).state == "waiting"
    said(world, decision, rating=0.5, rater="bob", feedback_id="bob")
    assert world.learn() == 1
    assert used(world) == [["bob"]]
    sound(world)


@pytest.mark.parametrize("given", [{"retract": "event"}, {"retract": "rating", "rating": 1.0}])
def test_what_cannot_be_retracted(make_world, given):
    """A retraction names label, rating or reward, and comes alone."""
    world = make_world()
    with pytest.raises(InvalidInput):
        said(world, world.route(), **given)


def test_a_source_of_weight_0_teaches_nothing_and_closes_nothing(make_world):
    """An importer's model scores wait for a person by default; a factor multiplies what a class counts."""
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


def voted(world, votes, *, tenant="default"):
    """Decisions in groups, and a vote on each, (API key, feedback id): 0.9 of the trusted application, else -0.9."""
    decisions = []
    for first in range(0, len(votes), 50):
        asked = [Query(text=f"question {first + number}?", tenant=tenant) for number in range(len(votes[first:][:50]))]
        decisions += [future.result(60) for future in world.router.submit_many(asked)]
    world.store.add_feedback(
        [
            replace(
                made_feedback(
                    decision_id=decision.id,
                    settings=world.settings,
                    now=world.now,
                    reward=0.9 if key == "app" else -0.9,
                    feedback_id=name,
                ),
                api_key=key,
            )
            for decision, (key, name) in zip(decisions, votes, strict=True)
        ]
    )


def of_key(key, count):
    return [(key, f"{key}{number}") for number in range(count)]


def flooded(world, *, votes=60):
    """An application that is trusted, then a key that judges."""
    for flood in (of_key("app", 60), of_key("bad", votes)):
        voted(world, flood)
        world.learn()


def test_beyond_its_cap_a_source_is_held(make_world):
    """Sixty votes of one key beside a trusted one: a tenth of the window is learned, the rest is held and waits."""
    world = make_world(learning={"influence": TIGHT})
    flooded(world)
    assert world.ledger.last_seq() == 66
    assert sources_held(world.ledger) == {"key:bad": 54}
    assert world.counters().held == 54
    assert world.counters().waiting == 54
    assert world.learn() == 0  # what is held is not looked at again
    sound(world)


def test_what_is_released_is_learned(make_world, database_url):
    """Releasing one feedback, then a source, lets the ledger learn them; the audit log says who did it."""
    world = make_world(database_url=database_url, learning={"influence": TIGHT})
    flooded(world, votes=30)
    (one, *_) = held(world.ledger, source="key:bad")
    done = release(world.ledger, feedback_id=one.feedback_id, actor="cli:me@here", now=world.now)
    assert (done.feedback, done.waiting, done.reopened) == (1, 1, 0)
    assert world.learn() == 1
    assert used(world)[-1] == [one.feedback_id]
    assert release(world.ledger, source="key:bad", actor="cli:me@here", now=world.now).feedback == 23
    with pytest.raises(NotFound):
        release(world.ledger, source="key:bad", actor="cli:me@here", now=world.now)
    assert world.learn() == 23
    assert (world.counters().held, world.counters().waiting) == (0, 0)
    actions = [entry.action for entry in entries(world.database)]
    assert [action for action in actions if action.startswith("feedback.")] == ["feedback.release"] * 2
    assert check_entries(world.database).fault is None
    sound(world)


@pytest.mark.parametrize("learning", [{**WINDOW, "default_reward": 0.0}, {"expire_s": 50.0, "default_reward": 0.0}])
def test_a_held_decision_that_was_closed_is_opened_again(make_world, database_url, learning):
    """When its time is over it is closed as held, not given the default reward; released it is learned."""
    world = make_world(database_url=database_url, learning={**learning, "influence": TIGHT})
    voted(world, of_key("app", 50))
    voted(world, of_key("bad", 10))
    if learning.get("wait_s") is None:
        world.learn()
    world.now += 100
    world.learn()
    held_ids = {one.feedback_id for one in held(world.ledger)}
    assert held_ids
    assert all(name.startswith("bad") for name in held_ids)
    assert world.counters().closed == len(held_ids)
    assert world.counters().late_feedback == 0
    sound(world)
    done = release(world.ledger, source="key:bad", actor="me", now=world.now)
    assert (done.reopened, done.waiting) == (len(held_ids), len(held_ids))
    assert world.learn() == len(held_ids)
    assert {name for names in used(world)[-len(held_ids) :] for name in names} == held_ids
    sound(world)


def test_who_judged_beside_a_held_source_counts(make_world):
    """A decision that somebody else judged too is learned from them; releasing the held vote changes nothing."""
    world = make_world(learning={**WINDOW, "influence": TIGHT})
    for number in range(40):
        decision = answered(world)
        said(world, decision, key="app", rating=1.0, feedback_id=f"app{number}")
        said(world, decision, key="bad", rating=0.0, feedback_id=f"bad{number}")
    world.now += 100
    assert world.learn() == 40
    assert world.updates()[-1]["quality"] == 1.0
    assert world.counters().late_feedback == 0
    done = release(world.ledger, source="key:bad", actor="me", now=world.now)
    assert done.unchanged == done.feedback > 0
    assert world.learn() == 0
    sound(world)


@on_sqlite
def test_a_learner_that_starts_again_holds_the_same(make_world, database_url):
    """The window is a function of the ledger: one learner that stays and learners that come and go hold the same."""
    worlds = [
        make_world(database_url=database_url if first else None, learning={"influence": TIGHT}) for first in (1, 0)
    ]
    stays = worlds[0].learner()
    for first in range(0, 120, 10):
        for world in worlds:
            voted(world, [(("app", "bad")[number % 2], f"f{number}") for number in range(first, first + 10)])
        stays.drain()
        worlds[1].learn()
    first, second = ({one.feedback_id for one in held(world.ledger)} for world in worlds)
    assert first == second != set()


def test_hundreds_of_votes_of_one_tenant_have_their_share(make_world):
    """Two tenants, one of them trusted: of hundreds of votes of the other's key a tenth of the window is learned."""
    world = make_world(learning={"influence": TIGHT})
    voted(world, of_key("app", 50), tenant="app")
    world.learn()
    voted(world, of_key("bad", 400), tenant="other")
    world.learn()
    rows = world.updates()
    share = sum(row["value"] < 0 for row in rows) / len(rows)
    assert 0 < share <= 0.1
    assert world.counters().held == 450 - len(rows)
    assert world.counters().balanced


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("committed", [False, True])
def test_a_learner_that_dies_holds_nothing_twice(make_world, database_url, monkeypatch, committed):
    """Killed right before or right after its commit: the next one goes on, and holds and learns the same."""
    worlds = [
        make_world(database_url=database_url if first else None, learning={"influence": TIGHT}) for first in (1, 0)
    ]
    for world in worlds:
        voted(world, [(("app", "bad")[number % 2], f"f{number}") for number in range(40)])
    world, whole = worlds
    append = type(world.ledger).append

    def dies(*given, **more):
        if committed:
            append(*given, **more)
        raise Killed

    monkeypatch.setattr(type(world.ledger), "append", dies)
    with pytest.raises(Killed):
        world.learn()
    monkeypatch.undo()
    world.expire_leases()
    for each in worlds:
        each.learn()
        each.learn()
    kept_ids = [{one.feedback_id for one in held(each.ledger)} for each in worlds]
    assert kept_ids[0] == kept_ids[1] != set()
    assert used(world) == used(whole)
    sound(world)


def test_an_erased_rater_is_named_nowhere(make_world):
    """Erasing a tenant's texts takes the names of raters out of what is held as well."""
    rules = {"window": 100, "floor": 1, "rater_share": 0.01, "key_share": 1.0, "trusted": ["key:app"]}
    world = make_world(learning={"influence": rules})
    for number in range(12):
        key, rater = ("app", None) if number < 10 else ("web", "ann@example.com")
        said(world, answered(world), key=key, rating=1.0, rater=rater)
        world.learn()
    assert list(sources_held(world.ledger)) == ["rater:ann@example.com"]
    erase(world.database, Selection(tenant="default"), features=False, now=world.now)
    assert list(sources_held(world.ledger)) == ["erased"]


@pytest.mark.parametrize(("rater", "is_own"), [("import:langfuse:eval", False), ("gpt", True)])
def test_imported_scores_are_not_our_judge(make_world, rater, is_own):
    """Scores that an importer brings have a cap as any rater's; those of our own judge have none."""
    world = make_world()
    decision = answered(world)
    said(world, decision, rating=1.0, source="judge", rater=rater)
    (item,) = world.router.decision(decision.id).feedback
    (part,) = Screening(world.ledger, settings=world.settings)._parts([item], tenant="default", weight=1.0)
    assert part.own is is_own
