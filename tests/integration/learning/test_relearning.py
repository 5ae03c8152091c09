"""Exclusion: a ledger that is learned without a source is that of a store that never had its feedback."""

import json
from dataclasses import replace
from functools import partial

import pytest

from ragbandit.router.learning.exclusions import count_feedback, relearn_without_source
from ragbandit.router.learning.sources import exclusions_of
from ragbandit.router.serving.checks.reports import make_feedback
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.access.audit_log import entries
from ragbandit.shared.errors import InvalidInput
from tests.support import command
from tests.support.audits import assert_compared, verified


def fill(world, *, count=60, bad=True):
    """Decisions with feedback of two keys; some are judged by both, and the quarantined one comes first."""
    decisions = [world.route(f"question {number}?", key=f"decision-{number}") for number in range(count)]
    for number, decision in enumerate(decisions):
        world.outcome(decision)
        for key, rating in (("bad", 0.0), ("good", 1.0)):
            world.now += 1
            if (number % 3 == 0 or (key == "bad") == (number % 3 == 1)) and (bad or key == "good"):
                said = make_feedback(
                    decision_id=decision.id,
                    settings=world.settings,
                    now=world.now,
                    feedback_id=f"{key}-{number}",
                    rating=rating,
                )
                world.router.submit_feedback(replace(said, api_key=key)).result(30)


def quarantined(world, **more):
    return relearn_without_source(
        world.ledger,
        make_learner=partial(make_learner, world.settings),
        reason="a test",
        actor="me",
        now=world.now,
        **{"source": "key:bad", "since": None, "until": None} | more,
    )


def test_it_is_as_if_the_source_never_was(make_world, tmp_path, other_processor):
    """The same updates in the same order, and a policy of the same sha256; the ledger in use is not touched. Another
    processor verifies the new ledger.
    """
    world = make_world()
    fill(world, count=30)
    assert world.learn() == 30
    before = world.sha256(world.replayed())
    done = quarantined(world)
    assert (done["label"], done["feedback"]) == ("main_q1", 20)
    assert world.sha256(world.replayed()) == before
    clean = make_world(data_dir=str(tmp_path / "clean"), policy={"label": "main_q1"})
    fill(clean, count=30, bad=False)
    clean.learn()
    assert done["updates"] == clean.ledger.last_seq() == 20
    assert done["snapshot"] == clean.ledger.latest_snapshots(limit=1)[0].version  # it has the sha256
    again = world.settings.model_copy(update={"policy": clean.settings.policy})
    assert_compared(other_processor.call(verified, again))
    (entry,) = (one for one in entries(world.database) if one.action.startswith("feedback."))
    assert (entry.action, entry.target, entry.actor) == ("feedback.quarantine", "key:bad", "me")
    assert world.router.verify(deep=True).ok


def test_services_go_on_with_the_new_label(make_world, database_url):
    """The new ledger serves at once and ignores new feedback of the source, which the former ledger learns."""
    world = make_world(database_url=database_url)
    fill(world, count=9)
    world.learn()
    done = quarantined(world)
    policy = world.settings.policy.model_copy(update={"label": done["label"]})
    settings = world.settings.model_copy(update={"policy": policy})
    with Router.open(settings, jobs=world.jobs) as router:
        assert router.status().counters.balanced
        decision = router.route("another question?")
        router.outcome(decision.id, answer="Paris", steps=1)
        said = make_feedback(decision_id=decision.id, settings=settings, now=world.now + 5, rating=0.0)
        router.submit_feedback(replace(said, api_key="bad")).result(30)
        router.learn()
        assert router.decision(decision.id).state == "waiting"
        assert router.learn() == 0  # it is not looked at again
    with Router.open(world.settings, jobs=world.jobs) as router:
        router.learn()
        assert router.decision(decision.id).state == "learned"
        assert router.verify(deep=True).ok


def test_a_quarantine_has_a_time_and_is_kept_by_the_next(make_world):
    """Feedback outside since and until is learned; a further quarantine goes on without both sources; again is once."""
    world = make_world()
    fill(world, count=12)
    world.learn()
    middle = world.now - 12
    some = count_feedback(world.ledger, source="key:bad", since=middle, until=None)
    assert 0 < some < 8
    done = quarantined(world, since=middle)
    assert done["feedback"] == some
    again = quarantined(world, since=middle)
    assert again == done
    following = make_world(data_dir=world.settings.data_dir, policy={"label": "main_q1"}, now=world.now)
    both = relearn_without_source(
        following.ledger,
        make_learner=partial(make_learner, following.settings),
        source="key:good",
        since=None,
        until=None,
        reason="",
        actor="me",
        now=world.now,
    )
    assert both["label"] == "main_q2"
    assert both["updates"] == 8 - some
    assert [one.source for one in exclusions_of(world.database, new_label="main_q2")] == ["key:bad", "key:good"]


@pytest.mark.parametrize("source", ["bad", "key:", "what:x", "key:" + 200 * "x"])
def test_sources_have_a_kind_and_a_name(make_world, source):
    """Anything else is refused before anything is written."""
    world = make_world()
    with pytest.raises(InvalidInput):
        relearn_without_source(
            world.ledger,
            make_learner=partial(make_learner, world.settings),
            source=source,
            since=None,
            until=None,
            reason="",
            actor="me",
            now=0.0,
        )
    assert exclusions_of(world.database) == []


@pytest.mark.parametrize("period", [{}, {"since": 0.0, "until": 1.0}])
def test_a_source_without_feedback_is_refused(make_world, period):
    """A source that sent nothing is refused with the sources that did, and no ledger or exclusion is made."""
    world = make_world()
    fill(world, count=3)
    source = "key:bda" if not period else "key:bad"
    with pytest.raises(InvalidInput, match=f"no feedback of {source} was received") as caught:
        quarantined(world, source=source, **period)
    shown = "none" if period else "tenant:default (4), key:bad (2), key:good (2)"
    assert f"{shown}; for feedback to come" in caught.value.remedy
    assert ("did you mean key:bad" in caught.value.remedy) == (not period)
    assert exclusions_of(world.database) == []


def test_the_verbs(make_world, monkeypatch, tmp_path):
    """`quarantined` lists decisions, and `exclude` relearns, or lists."""
    world = make_world()
    fill(world, count=6)
    world.learn()
    monkeypatch.setenv("RAGBANDIT_DATA_DIR", world.settings.data_dir)
    monkeypatch.setenv("RAGBANDIT_ENCODER__MODEL", world.settings.encoder.model)
    monkeypatch.chdir(tmp_path)

    def told(*words, code=0):
        done = command.run(*words, "--json", code=code)
        return json.loads(done.stdout) if code == 0 else None

    assert told("feedback", "quarantined") == []
    assert told("feedback", "exclude", "--source", "key:bad", "--dry-run")["feedback"] == 4
    assert told("feedback", "exclude") == []
    assert (
        told("feedback", "exclude", "--source", "key:bad", "--since", "2001-01-01", "--reason", "why")["label"]
        == "main_q1"
    )
    (row,) = told("feedback", "exclude")
    assert (row["source"], row["since"], row["reason"]) == ("key:bad", 978307200.0, "why")
    told("feedback", "exclude", "--since", "2001-01-01", code=2)
    for more in ((), ("--dry-run",)):
        told("feedback", "exclude", "--source", "key:unknown", *more, code=2)
    assert len(told("feedback", "exclude")) == 1
    told("feedback", "exclude", "--source", "key:bad", "--since", "yesterday", code=2)
