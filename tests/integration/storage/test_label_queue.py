"""The label queue in the store: which answers wait, and how their wait ends."""

from dataclasses import replace

import pytest

from ragbandit.router.serving.checks.reports import make_feedback, make_outcome
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.jobs import scores
from ragbandit.router.storage.label_queue import LABEL_QUEUE, count_items, expire_items, waiting_items
from ragbandit.router.storage.paired_answers import answers_to, store_answer
from ragbandit.router.storage.sql.counters import ALL, row_counts, stored_counts
from ragbandit.shared.types import LabelRequest
from tests.support.examples import made_decision, made_paired_answer

NOW = 1_700_000_000.0
ASKED = {LabelRequest.key: {"asked": True, "q": 0.5, "share": 0.1}}


@pytest.fixture
def store(database):
    return DecisionStore(database, label="main")


def add(store, key, *, facts=ASKED, answer="yes", at=NOW, tenant="default"):
    decision = made_decision(key, facts=facts, made_at=at)
    store.add_decisions([replace(decision, query=replace(decision.query, tenant=tenant))])
    store.add_outcome(make_outcome(decision_id=key, now=at, status="answered", answer=answer, steps=1.0))
    return key


def judge(store, settings, key, **more):
    [receipt] = store.add_feedback([make_feedback(decision_id=key, settings=settings, now=NOW, rating=True, **more)])
    return receipt


def queued(store, **more):
    return [one.id for one in waiting_items(store.database, **{"tenant": None, "limit": 10} | more)]


def test_asked_answers_wait_until_labelled(store, settings):
    """Answers that are asked for wait, the newest first; a label ends the wait, a user's rating hides it."""
    add(store, "old")
    add(store, "new", at=NOW + 1, tenant="shop")
    add(store, "rated", at=NOW + 2)
    add(store, "passed_over", facts={LabelRequest.key: {"asked": False, "q": 0.1, "share": 0.1}})
    add(store, "no_answer", answer="")
    add(store, "of_before", facts={})
    judge(store, settings(), "rated")
    assert queued(store) == ["new", "old"]
    assert queued(store, limit=1) == ["new"]
    assert queued(store, skip=1) == ["old"]
    assert queued(store, tenant="shop") == ["new"]
    judge(store, settings(), "new", source="judge")
    assert queued(store) == ["new", "old"]
    judge(store, settings(), "new", source="label")
    assert queued(store) == ["old"]
    with store.database.read() as connection:
        assert stored_counts(connection, label=ALL)["label_due"] == 2  # with the one that a user has rated
        assert stored_counts(connection, label="main") == row_counts(connection, label="main")


def test_what_waits_too_long_leaves(store):
    """Housekeeping takes out what waited since before a time, answers of decisions and of verdicts."""
    for key, at in (("old", NOW), ("new", NOW + 100)):
        add(store, key, at=at)
        answer = made_paired_answer(store.record(key).decision, arm="a", judge=LABEL_QUEUE, quality=None, made_at=at)
        store_answer(store.database, answer)
    assert expire_items(store.database, before=NOW + 50, now=NOW + 200) == 2
    assert [(one.partition(".")[0], "." in one) for one in queued(store)] == [("new", True), ("new", False)]
    with store.database.read() as connection:
        assert count_items(connection, tenant=None, now=NOW) == (1, 1, 0)
        assert [one.unjudged for one in answers_to(connection, ["old"])] == ["no label within 7 days"]


def test_no_tenant_fills_the_queue(store, monkeypatch):
    """A full queue drops the oldest answer of the tenant that has most, and shows one answer of each tenant in turn."""
    monkeypatch.setattr(scores, "MAX_LABELS", 4)
    for number in range(6):
        add(store, f"many{number}", at=NOW + number, tenant="loud")
    assert queued(store) == ["many5", "many4", "many3", "many2"]
    add(store, "few0", at=NOW - 5)
    add(store, "few1", at=NOW - 4)
    assert queued(store) == ["many5", "few1", "many4", "few0"]
    with store.database.read() as connection:
        assert stored_counts(connection, label=ALL)["label_due"] == 4
        assert stored_counts(connection, label="main") == row_counts(connection, label="main")
