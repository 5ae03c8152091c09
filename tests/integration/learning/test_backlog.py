"""A backlog: many decisions that wait for the learner, some of one moment, and when it will have caught up."""

import time

import pytest

from ragbandit.router.learning import status as status_module
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.status import read_status
from ragbandit.router.storage.ledgers.inheritance import inherit
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.types import PolicyLabel


@pytest.fixture
def backlog(make_world):
    """Nine rated decisions, of which seven were made at one moment."""
    world = make_world(learning={"batch": 3})
    for number in range(9):
        world.now += number in (0, 8)
        decision = world.route()
        world.outcome(decision)
        world.feedback(decision, rating=0.5)
    return world


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_pages_have_every_decision_once(backlog, limit):
    """The pages of the waiting decisions have each of them once, by time and then by id, if many are of one moment."""
    ledger, rule = backlog.ledger, closing_rule(backlog.settings.learning)
    place, seen = (-1.0, ""), []
    while page := ledger.ready(rule, now=backlog.now, limit=limit, after=place):
        assert len(page) <= limit
        seen += [(one.decision.made_at, one.decision.id) for one in page]
        place = seen[-1]
    assert len(seen) == 9
    assert seen == sorted(set(seen))


def test_status_estimates_the_end(backlog, monkeypatch):
    """The status has the backlog and its end by the pace of the newest updates, and no end if the learner is silent."""
    monkeypatch.setattr(status_module, "LEARNED_NEXT", 3)
    status_module._next_to_learn.cache_clear()
    rule, learner = closing_rule(backlog.settings.learning), backlog.learner()
    policy = learner.policy

    def seen(now):
        return read_status(backlog.ledger, serving=policy, rule=rule, now=now)

    assert (seen(backlog.now).backlog, seen(backlog.now).caught_up_s) == (9, None)
    for _ in range(2):
        backlog.now += 2.0
        batch = learner._next_batch(backlog.now)
        assert learner.ledger.acquire(holder=learner.holder, lease_s=10.0)
        assert learner._append(batch)
        learner._apply_new_updates()
    assert (seen(backlog.now).backlog, seen(backlog.now).caught_up_s) == (3, pytest.approx(3 * 2.0 / 5))
    assert seen(backlog.now + 100.0).caught_up_s is None
    status_module._next_to_learn.cache_clear()


def test_a_new_label_looks_at_many_decisions_at_a_time(backlog, monkeypatch):
    """A label whose decisions all have their place needs one look at them, however small its batches are."""
    monkeypatch.setattr("ragbandit.router.storage.ledgers.inheritance.BATCH", {"sqlite": 1})
    ledger = Ledger(backlog.ledger.database, label=PolicyLabel("main"))
    assert ledger.acquire(holder="test", lease_s=10.0)
    began, steps = time.monotonic(), 0
    while inherit(ledger, holder="test") != "done":
        steps += 1
        assert time.monotonic() - began < 60
    assert steps <= 2
