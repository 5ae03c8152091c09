"""Several raters of one decision, and events, on SQLite and PostgreSQL."""

import json

import pytest
from sqlalchemy import select

from ragbandit.router.storage.sql.tables import waiting
from ragbandit.shared.errors import Conflict, InvalidInput

EVENTS = {"copied": 0.8, "regenerated": 0.1, "followed_up": None}
WINDOW = {"wait_s": 60.0, "aggregate": "mean"}


def rated(world, decision, key, **said):
    return world.feedback(decision, feedback_id=key, **said)


def learned(world):
    """The only row of the ledger, after the window."""
    world.now += 100
    assert world.learn() == 1
    (row,) = world.updates()
    return row


@pytest.mark.parametrize(
    ("left_out", "judged_by", "quality", "weight", "used", "surrogates"),
    [
        (0, "label", 1.0, 1.0, ["gold"], {"judge": 0.9, "event": 0.8}),
        (1, "label", 0.5, 1.0, ["check"], {"judge": 0.9, "event": 0.8}),
        (2, "human", 0.3, 1.0, ["ann", "bob"], {"judge": 0.9, "event": 0.8}),
        (4, "judge", 0.9, 0.3, ["model"], {}),
        (5, "event", 0.8, 0.1, ["copied"], {}),
    ],
)
def test_the_most_trusted_raters_make_the_reward(make_world, left_out, judged_by, quality, weight, used, surrogates):
    """The order is label, code, people, judge, events; the ledger records the class, the weight, and the scores of
    judge and events next to people's ratings. Feedback in time is not late.
    """
    world = make_world(learning=WINDOW, feedback_events=EVENTS)
    decision = world.route()
    world.outcome(decision, answer="Bram Stoker")
    given = [
        ("gold", {"label": ["Bram Stoker"]}),
        ("check", {"rating": 0.5, "source": "code", "rater": "a:check"}),
        ("ann", {"rating": 0.2, "rater": "ann"}),
        ("bob", {"rating": 0.4, "rater": "bob"}),
        ("model", {"rating": 0.9, "source": "judge", "rater": "a-model"}),
        ("copied", {"event": "copied"}),
    ]
    for key, said in reversed(given[left_out:]):
        rated(world, decision, key, **said)
    row = learned(world)
    assert (row["judged_by"], row["quality"], row["sample_weight"]) == (judged_by, pytest.approx(quality), weight)
    assert sorted(json.loads(row["feedback_ids"])) == used
    record = world.router.decision(decision.id)
    assert (record.reward.judged_by, record.late) == (judged_by, frozenset())
    assert record.reward.surrogates == surrogates
    assert world.counters().late_feedback == 0


def test_a_rater_may_change_their_mind_until_the_decision_closes(make_world):
    """The later judgement of the same rater is learned; one after closing is kept and late."""
    world = make_world(learning=WINDOW)
    decision = world.route()
    world.outcome(decision)
    rated(world, decision, "first", rating=1.0, rater="ann")
    world.now += 1
    rated(world, decision, "second", rating=0.0, rater="ann")
    row = learned(world)
    assert (row["quality"], json.loads(row["feedback_ids"])) == (0.0, ["second"])
    assert rated(world, decision, "third", rating=1.0, rater="ann").late
    assert world.router.decision(decision.id).late == {"third"}


def test_events_teach_what_the_settings_say(make_world):
    """The configured value, with the weight of events; a repetition is a duplicate, whatever it is worth now."""
    world = make_world(feedback_events=EVENTS)
    decision = world.route()
    world.outcome(decision)
    rated(world, decision, "e-1", event="copied")
    world.settings = world.settings.model_copy(update={"feedback_events": {"copied": 0.5, "regenerated": 0.5}})
    assert rated(world, decision, "e-1", event="copied").duplicate
    with pytest.raises(Conflict):
        rated(world, decision, "e-1", event="regenerated")
    assert world.learn() == 1
    (row,) = world.updates()
    assert (row["quality"], row["judged_by"], row["sample_weight"]) == (0.8, "event", 0.1)
    (note,) = world.router.decision(decision.id).feedback
    assert (note.kind, note.source, note.event, note.value) == ("event", "event", "copied", 0.8)


@pytest.mark.parametrize("wait_s", [0.0, 60.0])
def test_an_event_without_a_value_closes_nothing(make_world, database_url, wait_s):
    """It is stored and counted, no decision is learned from it, and what comes after it is learned as ever."""
    world = make_world(database_url=database_url, feedback_events=EVENTS, learning={"wait_s": wait_s})
    decision = world.route()
    world.outcome(decision)
    receipt = rated(world, decision, "e-1", event="followed_up")
    assert (receipt.late, receipt.waiting_for) == (False, None)
    assert world.learn() == 0
    with world.router.database.read() as connection:
        assert not connection.execute(select(waiting.c.has_feedback)).scalar_one()
    rated(world, decision, "r-1", rating=0.5)
    row = learned(world)
    assert json.loads(row["feedback_ids"]) == ["r-1"]
    counters = world.counters()
    assert (counters.feedback, counters.late_feedback, counters.learned) == (2, 0, 1)


@pytest.mark.parametrize(
    ("said", "field", "remedy"),
    [
        ({"event": "liked"}, "event", "known: copied, followed_up, regenerated"),
        ({"event": "copied", "rating": 1.0}, "feedback", "exactly one"),
        ({"event": "copied", "source": "judge"}, "source", "leave source out"),
        ({"rating": 1.0, "source": "event"}, "source", "known: human, label, judge, code"),
        ({"rating": 1.0, "rater": "x" * 65}, "rater", "at most 64"),
        ({"rating": 1.0, "rater": " "}, "rater", "not a space"),
        ({"rating": 1.0, "rater": 7}, "rater", "send a string"),
    ],
)
def test_bad_input_is_refused(make_world, said, field, remedy):
    """An unknown event and invalid raters are refused with field and remedy."""
    world = make_world(feedback_events=EVENTS)
    decision = world.route()
    with pytest.raises(InvalidInput) as caught:
        world.feedback(decision, **said)
    assert caught.value.field == field
    assert remedy in caught.value.remedy
