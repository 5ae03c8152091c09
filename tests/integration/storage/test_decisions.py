"""The edges' tables on SQLite and PostgreSQL: idempotent writes, first come first kept."""

import json
import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import func, select, update

from ragbandit.router.config.server import ServerSettings
from ragbandit.router.learning.status import counters
from ragbandit.router.replies.decisions import record_json
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.serving.pending import PendingAnswers
from ragbandit.router.storage.access.spending import Spent, read_spending, spenders_of
from ragbandit.router.storage.decisions.decision_writes import OUTDATED
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.jobs.answers import waiting_ids
from ragbandit.router.storage.ledgers.inheritance import register_policy
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import set_switch
from ragbandit.router.storage.rows.conversion import feedback_body_hash
from ragbandit.router.storage.sql.tables import decisions, feedback, outcomes, waiting
from ragbandit.shared.errors import Conflict, NotFound, StoreError
from ragbandit.shared.types import Cost, Feedback, Outcome, Query, Receipt, Retrieved, Round

from .test_inheritance import inherit_all

THREADS = 8


def an_outcome(decision, **changes) -> Outcome:
    outcome = make_outcome(decision_id=decision.id, now=1.0, status="answered", answer="Bram Stoker", steps=1.0)
    trace = (Round(number=1), Retrieved(query="Dracula", ids=("a", "b"), scores=(2.0, 1.0), seconds=0.5))
    return replace(outcome, trace=trace, cost=Cost(retriever_calls=1, passages=2, seconds_total=0.75), **changes)


def a_rating(decision_id: str, key: str, *, value: float = 1.0, at: float = 1.0, **changes) -> Feedback:
    made = Feedback(id=key, decision_id=decision_id, kind="rating", value=value, source="human", received_at=at)
    return replace(made, **changes)


def count(database, table) -> int:
    with database.read() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


def test_decision_round_trip(store, make_decision):
    """A decision comes back from the database exactly as it was."""
    decision = make_decision(
        "d1",
        scores=(0.1, 0.2 + 0.1, 1e-300),
        facts={"price": 0.1 + 0.2, "reply": "\U0001f9db", "heads": [1, None]},
        run_by="worker",
        pmf=(1 / 3, 1 / 3, 1 - 2 / 3),
        query=Query(
            id="d1", text="Was weiß man? \U0001f9db", context={"a": 1, "b": None, "c": 0.1}, arms=("multi_step",)
        ),
    )
    store.add_decisions([decision])
    kept, _ = store.decisions_by_id(["d1"])["d1"]
    assert np.array_equal(kept.features, decision.features)
    assert replace(kept, features=None) == replace(decision, features=None)


def test_same_id_same_body(store, database, make_decision):
    """The same request under the same id gets the first decision, whatever is drawn the second time."""
    first = make_decision("d1")
    store.add_decisions([first])
    second = replace(first, arm="multi_step", made_at=first.made_at + 5, version="main-9-other")
    (got,) = store.add_decisions([second])
    assert (got.arm, got.made_at, got.version) == (first.arm, first.made_at, first.version)
    assert count(database, decisions) == count(database, waiting) == 1


def test_duplicates_within_a_group(store, database, make_decision):
    """In one group the first of an id wins: its repetition gets it, another body is a conflict, neighbours go on."""
    first, other = make_decision("d1"), make_decision("d2")
    repeated = replace(first, arm="multi_step")
    clashing = replace(first, query=Query(id="d1", text="Another question?"))
    results = store.add_decisions([first, repeated, clashing, other])
    assert [getattr(r, "arm", None) for r in results[:2]] == [first.arm, first.arm]
    assert isinstance(results[2], Conflict)
    assert results[2].field == "decision_id"
    assert results[3].id == "d2"
    assert count(database, decisions) == count(database, waiting) == 2


def test_decisions_of_an_older_revision(store, database, make_decision):
    """Decisions made with another revision of versions and kill switch are not stored, and nothing counts them."""
    group = [make_decision("d1"), make_decision("d2")]
    with database.write() as connection:
        switch = {"killed": "arm", "arm": "one", "actor": "cli:ann", "reason": "smoke", "now": 1.0}
        revision = set_switch(connection, base=store.label, **switch).revision
    for result in store.add_decisions(group, revision=revision - 1):
        assert isinstance(result, Conflict)
        assert result.field == OUTDATED
    assert count(database, decisions) == 0
    assert counters(Ledger(database, label=store.label)).decided == 0
    assert store.add_decisions(group, revision=revision) == group


def test_concurrent_decisions(store, database, make_decision):
    """Eight threads that decide the same ids in different orders leave one row each, and all get that row."""
    ids = [f"d{i:03}" for i in range(40)]

    def write(number: int) -> dict[str, str]:
        order = random.Random(number).sample(ids, len(ids))
        got = {}
        for start in range(0, len(order), 10):
            group = [make_decision(i, version=f"main-{number}-x") for i in order[start : start + 10]]
            got |= {d.id: d.version for d in store.add_decisions(group)}
        return got

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(write, range(THREADS)))
    assert count(database, decisions) == count(database, waiting) == len(ids)
    standing = {key: kept.version for key, (kept, _) in store.decisions_by_id(ids).items()}
    assert all(result == standing for result in results)


def test_reported_outcome_of_a_decision_that_workers_run(store, database, make_decision):
    """Only a worker writes the outcome of a decision that workers run, also in one group with its own."""
    decision = make_decision("d1", run_by="worker")
    store.add_decisions([decision])
    reported, ours = an_outcome(decision, answer="EVIL"), an_outcome(decision, run_by="worker")
    with pytest.raises(Conflict, match="our workers run this decision") as caught:
        store.add_outcome(reported)
    assert "wait for it" in caught.value.remedy
    assert count(database, outcomes) == 0
    assert [row[1] for row in flags(database)] == [False]
    refused, kept, again = store.add_outcomes([replace(reported, cost=Cost(dollars=5.0)), ours, reported])
    assert (type(refused), kept, type(again)) == (Conflict, True, Conflict)
    assert store.outcomes_by_id(["d1"]) == {"d1": ours}
    with database.read() as connection:
        assert read_spending(connection, payers := spenders_of("default", key=None), now=1.0) == {payers[0]: Spent()}


def test_outcome_results_in_one_group(store, database, make_decision):
    """One group gives each outcome its own word: kept, duplicate, conflict, not found, or False for a second worker."""
    mine, old, ours = make_decision("d1"), make_decision("d2"), make_decision("d3", run_by="worker")
    store.add_decisions([mine, old, ours])
    store.add_outcome(an_outcome(old))
    results = store.add_outcomes(
        [
            an_outcome(mine),
            an_outcome(mine, made_at=7.0),
            an_outcome(mine, answer="Mary Shelley"),
            an_outcome(old),
            an_outcome(old, answer="Mary Shelley"),
            an_outcome(make_decision("nobody")),
            an_outcome(ours, run_by="worker"),
            an_outcome(ours, run_by="worker", answer="Mary Shelley"),
        ]
    )
    told = [result if isinstance(result, bool) else type(result) for result in results]
    assert told == [True, False, Conflict, False, Conflict, NotFound, True, False]
    assert count(database, outcomes) == 3
    assert {kept.answer for kept in store.outcomes_by_id(["d1", "d2", "d3"]).values()} == {"Bram Stoker"}
    assert [row[1] for row in flags(database)] == [True, True, True]


def test_newest_outcomes(store, database, make_decision):
    """The list is newest first, without unreadable decisions; a read by ids returns the error of such a decision."""
    for at, key in enumerate(("d1", "d2", "d3")):
        store.add_decisions([made := make_decision(key)])
        store.add_outcome(an_outcome(made, made_at=float(at)))
    with database.write() as connection:
        connection.execute(update(outcomes).where(outcomes.c.decision_id == "d2").values(cost="[]"))
    assert [one.id for one, _ in Ledger(database, label="main").newest_outcomes(limit=3)] == ["d3", "d1"]
    known = store.outcomes_by_id(["d1", "d2", "d3"])
    assert isinstance(known["d2"], StoreError)
    waits, pending = Future(), PendingAnswers(store, notifier=None, server=ServerSettings())
    pending._futures["d2"] = [waits]
    pending.deliver(known)
    with pytest.raises(StoreError, match="outcome of decision d2 cannot be read"):
        waits.result(0)


def test_feedback_results_in_one_group(store, database, make_decision):
    """One group gives each item its own word: kept, duplicate, conflict, not found."""
    store.add_decisions([make_decision("d1"), make_decision("d2")])
    store.add_feedback([a_rating("d1", "old")])
    results = store.add_feedback(
        [
            a_rating("d1", "new"),
            a_rating("d1", "new", at=7.0),
            a_rating("d1", "new", value=0.0),
            a_rating("d1", "old"),
            a_rating("d2", "old"),
            a_rating("nobody", "lost"),
        ]
    )
    assert results[0] == Receipt(feedback_id="new", duplicate=False, late=False, waiting_for="outcome")
    assert results[1] == Receipt(feedback_id="new", duplicate=True, late=False, waiting_for="outcome")
    assert isinstance(results[2], Conflict)
    assert results[3] == Receipt(feedback_id="old", duplicate=True, late=False, waiting_for="outcome")
    assert isinstance(results[4], Conflict)
    assert isinstance(results[5], NotFound)
    assert count(database, feedback) == 2


def test_feedback_ids_belong_to_a_tenant(store, database, make_decision):
    """An id that another tenant has used, even in the same group, is as good as a new one, once for each tenant."""
    made = [make_decision(f"d{number}") for number in (1, 2, 3)]
    store.add_decisions([replace(one, query=replace(one.query, tenant=f"of-{one.id}")) for one in made])
    group = [a_rating("d1", "f"), a_rating("d2", "f", value=0.5, facts={"n": 1}), a_rating("d3", "f")]
    kept = {"feedback_id": "f", "late": False, "waiting_for": "outcome"}
    assert store.add_feedback(group) == [Receipt(duplicate=False, **kept)] * 3
    assert store.add_feedback(group) == [Receipt(duplicate=True, **kept)] * 3
    assert [type(reply) for reply in store.add_feedback([replace(one, value=0.0) for one in group])] == [Conflict] * 3
    assert count(database, feedback) == 3
    for given in group:
        record = store.record(given.decision_id)
        (shown,) = record_json(record)["feedback"]
        assert (shown["id"], shown["facts"], shown["value"]) == ("f", given.facts, given.value)
        assert feedback_body_hash(record.feedback[0]) == feedback_body_hash(given)
    assert len({store.record(one).feedback[0].id for one in ("d1", "d2", "d3")}) == 3


def flags(database) -> list[tuple]:
    with database.read() as connection:
        rows = connection.execute(select(waiting).order_by(waiting.c.policy, waiting.c.decision_id)).mappings()
        return [(row["policy"], row["has_outcome"], row["has_feedback"], row["has_reward"]) for row in rows]


def test_rating_without_outcome_says_what_is_missing(store, make_decision):
    """A rating of a decision that the caller ran says that the outcome is missing, in receipt and record, until it is
    there; a raw reward, and a rating of what our workers answer, miss nothing.
    """
    store.add_decisions([make_decision("d1"), make_decision("d2"), make_decision("d3", run_by="worker")])
    notes = [a_rating("d1", "f1"), a_rating("d2", "f2", kind="reward", value=0.5), a_rating("d3", "f3")]
    assert [receipt.waiting_for for receipt in store.add_feedback(notes)] == ["outcome", None, None]
    missing = "waiting for an outcome: report it by POST /v1/outcomes or Router.outcome(...)"
    assert [store.record(one).reason for one in ("d1", "d2", "d3")] == [missing, None, None]
    store.add_outcome(an_outcome(make_decision("d1")))
    assert (store.record("d1").state, store.record("d1").reason) == ("waiting", None)
    assert store.add_feedback([a_rating("d1", "f4")])[0].waiting_for is None


def test_decision_waits_for_every_label(store, database, make_decision):
    """A decision waits in the ledger of every label that is registered, with who runs it and what has come in."""
    second = DecisionStore(database, label="second")
    store.add_decisions([make_decision("d1")])
    assert [row[0] for row in flags(database)] == ["main"]
    register_policy(second.database, label=second.label, algorithm="uniform", params="{}", encoder_hash="", now=1.0)
    inherit_all(Ledger(database, label="second"))
    store.add_decisions([make_decision("d2", run_by="worker")])
    second.add_decisions([make_decision("d3", policy="second")])
    assert [row[0] for row in flags(database)] == ["main"] * 3 + ["second"] * 3
    store.add_outcome(an_outcome(make_decision("d2"), run_by="worker"))
    second.add_feedback([a_rating("d2", "f1")])
    assert [row[1:] for row in flags(database) if row[1]] == [(True, True, False)] * 2
    assert waiting_ids(database, limit=10) == []
    for label in ("main", "second"):
        assert counters(Ledger(database, label=label)).balanced


def test_late_is_said_by_the_ledger_that_decided(make_world, database_url):
    """Feedback after its own ledger closed the decision is late, and another label that still waits may learn it."""
    world = make_world(database_url=database_url)
    other = make_world(database_url=database_url, policy={"label": "second"})
    (decision,) = world.judged(reward=0.5)
    foreign = other.route()
    world.learn()
    late, again = (world.feedback(decision, reward=-1.0, feedback_id="late") for _ in range(2))
    assert (late.late, late.duplicate, again.late, again.duplicate) == (True, False, True, True)
    assert world.counters().late_feedback == 1
    world.now += 1
    other.now += 1
    other.feedback(foreign, reward=0.25, feedback_id="fresh")
    assert world.learn() == 1
    assert not other.feedback(foreign, rating=True, feedback_id="more").late
    assert other.router.decision(foreign.id).late == frozenset()
    assert other.learn() == 2
    used = {row["decision_id"]: json.loads(row["feedback_ids"]) for row in other.updates()}
    assert used[foreign.id] == ["fresh"]
    assert len(used[decision.id]) == 1
    assert other.router.decision(foreign.id).late == {"more"}
    assert world.router.decision(decision.id).late == {"late"}


def test_feedback_races_learning(make_world, database_url):
    """Feedback that races the learner ends in exactly one place: in one update, or late."""
    world = make_world(database_url=database_url, learning={"batch": 7, "lease_s": 1e9})
    made = [world.route() for _ in range(60)]
    for decision in made:
        world.outcome(decision)
    learner, sent, stop = world.learner(), threading.Event(), threading.Event()
    closed: list[int] = []

    def learn() -> None:
        while not stop.is_set():
            closed.append(learner.drain())
        closed.append(learner.drain())

    def send(number: int) -> list[Receipt]:
        receipts = []
        order = random.Random(number).sample(made, len(made))
        for start in range(0, len(order), 12):
            group = [a_rating(d.id, f"f-{d.id[-12:]}-{number}", at=world.now) for d in order[start : start + 12]]
            receipts += world.store.add_feedback(group)
        sent.set()
        return receipts

    with ThreadPoolExecutor(5) as pool:
        learning = pool.submit(learn)
        receipts = [receipt for part in pool.map(send, range(4)) for receipt in part]
        stop.set()
        learning.result(60)
    assert all(isinstance(receipt, Receipt) for receipt in receipts)
    used = [key for row in world.updates() for key in json.loads(row["feedback_ids"])]
    with world.database.read() as connection:
        late = set(connection.execute(select(feedback.c.id).where(feedback.c.late)).scalars())
    assert sum(closed) == len(made) == len(set(used)) == len(used)
    assert set(used) | late == {receipt.feedback_id for receipt in receipts}
    assert not set(used) & late
    assert world.counters().balanced


def test_record_state(make_world, database_url):
    """The record names the one place a decision is in, with the update or the reason."""
    world = make_world(database_url=database_url, learning={"expire_s": 100.0})
    (learned,) = world.judged()
    poisoned, unjudged = world.route(), world.route()
    world.feedback(poisoned, reward=0.5)
    world.write(decisions.update().where(decisions.c.id == poisoned.id).values(propensity=0.0))
    assert world.router.decision(learned.id).state == "waiting"
    world.learn()
    record = world.router.decision(learned.id)
    assert (record.state, record.learned_seq, record.reward.source) == ("learned", 1, "explicit")
    assert world.router.decision(unjudged.id).state == "waiting"
    world.now += 100.0
    world.learn()
    assert world.router.decision(unjudged.id).state == "closed"
    assert world.router.decision(unjudged.id).reason == "no feedback in time"
    record = world.router.decision(poisoned.id)
    assert record.state == "quarantined"
    assert "propensity" in record.reason
    with pytest.raises(NotFound):
        world.router.decision("nobody")


def test_unreadable_row_is_alone(store, database, make_decision):
    """A row that cannot be read comes as a StoreError that names its decision; its neighbours come as they are."""
    group = [make_decision("d1"), make_decision("d2")]
    store.add_decisions(group)
    with database.write() as connection:
        connection.execute(decisions.update().where(decisions.c.id == "d1").values(pmf="[0.5,"))
    standing = store.decisions_by_id(["d1", "d2"])
    for broken, whole in ((standing["d1"][0], standing["d2"][0]), store.add_decisions(group)):
        assert isinstance(broken, StoreError)
        assert "d1" in broken.message
        assert whole.arm == group[1].arm
    with pytest.raises(StoreError, match="d1"):
        store.record("d1")
