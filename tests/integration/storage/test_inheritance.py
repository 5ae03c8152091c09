"""A new label inherits the stored decisions in batches while others write; every decision has one place in the end."""

import threading
import time

import pytest
from sqlalchemy import insert, select

from ragbandit.router.learning.status import counters
from ragbandit.router.offline.logs.ledger_transfer import import_rows, ledger_rows
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.ledgers import inheritance
from ragbandit.router.storage.ledgers.inheritance import inherit, is_inheriting, register_policy, retire
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import decision_row
from ragbandit.router.storage.sql.counters import WriteTransaction, row_counts, stored_counts
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, waiting
from ragbandit.shared.errors import Conflict, NotReady
from ragbandit.shared.types import Feedback

HOLDER = "test"


def register(database, label: str) -> Ledger:
    register_policy(database, label=label, algorithm="uniform", params="{}", encoder_hash="", now=1.0)
    return Ledger(database, label=label)


def inherit_all(ledger: Ledger, *, pause_s: float = 0.0) -> int:
    """Inherit to the end; the number of batches."""
    batches, give_up = 0, time.monotonic() + 30
    while True:
        assert ledger.acquire(holder=HOLDER, lease_s=60.0)
        step = inherit(ledger, holder=HOLDER)
        if step == "done":
            ledger.release(holder=HOLDER)
            return batches
        assert time.monotonic() < give_up
        batches += step == "batch"
        time.sleep(pause_s if step == "batch" else 0.01)


def retire_all(ledger: Ledger) -> None:
    assert ledger.acquire(holder=HOLDER, lease_s=60.0)
    while retire(ledger, holder=HOLDER, now=1.0) != "done":
        time.sleep(0.005)
    ledger.release(holder=HOLDER)


def places(database, label: str) -> dict[str, tuple[bool, bool, bool]]:
    with database.read() as connection:
        rows = connection.execute(select(waiting).where(waiting.c.policy == label)).mappings()
        return {row["decision_id"]: (row["has_outcome"], row["has_feedback"], row["has_reward"]) for row in rows}


def assert_exact(database, label: str) -> None:
    with database.read() as connection:
        assert stored_counts(connection, label=label) == row_counts(connection, label=label)
    found = counters(Ledger(database, label=label))
    assert (found.balanced, found.unseen) == (True, 0)


@pytest.fixture
def small(monkeypatch):
    """Batches of three decisions."""
    monkeypatch.setattr(inheritance, "BATCH", {"sqlite": 3, "postgresql": 3})


def test_the_ledger_is_the_same(make_world, database_url, small):
    """A label that inherits and learns has the ledger of one that was there from the start, row by row."""
    world = make_world(database_url=database_url)
    first = make_world(database_url=database_url, policy={"label": "first"})
    for n in range(10):
        decision = world.route(key=f"{(n * 7) % 10}-key", ours=n % 3 == 0)
        world.now += 1
        if n % 3 == 0:
            world.outcome(decision, by_worker=True)
        if n != 4:
            world.feedback(decision, reward=0.1 * n)
    late = make_world(database_url=database_url, policy={"label": "late"})
    first.now = late.now = world.now
    assert (first.learn(), late.learn()) == (9, 9)

    def learned(one) -> list[tuple]:
        return [(u["seq"], u["decision_id"], u["value"], u["feedback_ids"]) for u in one.updates()]

    assert learned(first) == learned(late)
    assert_exact(late.database, "late")


def test_beside_writers(database, make_decision, small):
    """Decisions, outcomes and feedback that come in while a label inherits leave every decision with one true place."""
    store, _ = DecisionStore(database, label="main"), register(database, "main")
    store.add_decisions([make_decision(f"old-{n:03}") for n in range(60)])
    stop, failed = threading.Event(), []

    def write(worker: int) -> None:
        number = 0
        try:
            while not stop.is_set() and number < 60:
                store.add_decisions([make_decision(f"new-{worker}-{number:03}")])
                some = f"old-{number:03}" if worker else f"new-{worker}-{number:03}"
                kind, value = ("reward", 0.5) if number % 2 else ("rating", 1.0)
                given = {"decision_id": some, "kind": kind, "value": value, "source": "human", "received_at": 2.0}
                store.add_feedback([Feedback(id=f"f-{worker}-{number}", **given)])
                number += 1
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.02)
    second = register(database, "second")
    inherit_all(second, pause_s=0.005)
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert places(database, "second") == places(database, "main")
    assert_exact(database, "second")


def test_a_decision_begun_before_the_label(postgres_url, make_decision):
    """A decision whose transaction has not seen the new label, and ends later, is inherited and not missed."""
    database = Database(postgres_url)
    store, _ = DecisionStore(database, label="main"), register(database, "main")
    store.add_decisions([make_decision("d0")])
    second = None
    with WriteTransaction(store.database) as (connection, tally):
        connection.execute(insert(decisions), [decision_row(make_decision("d1"))])
        tally.add("decided")
        second = register(database, "second")
        assert second.acquire(holder=HOLDER, lease_s=60.0)
        assert [inherit(second, holder=HOLDER) for _ in range(3)] == ["batch", "wait", "wait"]
    inherit_all(second)
    assert set(places(database, "second")) == {"d0", "d1"}
    database.close()


def test_it_goes_on_where_it_was(database, make_decision, small):
    """Another process goes on after the last batch that was committed; the lease keeps two from doing it at once."""
    store, _ = DecisionStore(database, label="main"), register(database, "main")
    store.add_decisions([make_decision(f"d{n}") for n in range(8)])
    second = register(database, "second")
    assert second.acquire(holder="dies", lease_s=60.0)
    for _ in range(3):
        inherit(second, holder="dies")
    assert len(places(database, "second")) == 6
    assert not second.acquire(holder=HOLDER, lease_s=60.0)
    with pytest.raises(Conflict, match="lease"):
        inherit(second, holder=HOLDER)
    second.release(holder="dies")
    inherit_all(second)
    assert not is_inheriting(second)
    assert_exact(database, "second")


def test_an_import_inherits_first(make_world, database_url, small):
    """A log is taken into a new label of a store that has decisions, some of the log among them."""
    world = make_world(database_url=database_url)
    world.judged(4)
    world.learn()
    log = list(ledger_rows(world.ledger))
    taken = Ledger(world.database, label="taken")
    assert import_rows(taken, lambda: log, origin="jsonl").added == 4
    assert_exact(world.database, "taken")


def test_retired(make_world, database_url, small):
    """No decision waits for a retired label, its ledger stays readable, and a router brings it back by inheriting."""
    world = make_world(database_url=database_url)
    other = make_world(database_url=database_url, policy={"label": "second"})
    world.judged(4)
    assert other.learn() == 4
    world.judged(5)
    retire_all(other.ledger)
    world.judged(2)
    assert places(world.database, "second") == {}
    assert len(list(other.ledger.read(after=0))) == 4
    found = other.counters()
    assert (found.balanced, found.unseen, found.learned, found.waiting) == (True, 7, 4, 0)
    with pytest.raises(NotReady, match="retired"):
        other.learn()
    with world.database.read() as connection:
        assert stored_counts(connection, label="second") == row_counts(connection, label="second")
    again = make_world(database_url=database_url, policy={"label": "second"})
    assert again.learn() == 7
    assert_exact(world.database, "second")
    assert again.router.verify(deep=True).ok
