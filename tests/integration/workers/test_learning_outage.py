"""A learner whose store cannot be written: one line, a bounded retry, and nothing lost."""

import contextlib
import logging
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event

from ragbandit.router.queue.jobs import RedisJobs
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.workers.running import learning
from ragbandit.workers.running.context import Context

#: what they teach needs more pages than are half empty
DECISIONS = 60


class Disk:
    """The disk of a router's SQLite: `fill` leaves no page to grow by."""

    def __init__(self, database):
        self._database, self._most = database, 1 << 30
        event.listen(database.engine, "connect", self._cap)
        self._cap_all()

    def _cap(self, connection, _record):
        connection.execute(f"PRAGMA max_page_count = {self._most}")

    def _cap_all(self):
        self._database.close()  # the next connections have the new limit

    def fill(self):
        with contextlib.closing(sqlite3.connect(self._database.url.database)) as connection:
            connection.execute("CREATE TABLE filler (bytes BLOB)")
            connection.commit()
            (self._most,) = connection.execute("PRAGMA page_count").fetchone()
            self._cap(connection, None)
            with contextlib.suppress(sqlite3.OperationalError):  # database or disk is full
                while True:
                    connection.execute("INSERT INTO filler VALUES (zeroblob(100))")
                    connection.commit()
        self._cap_all()

    def empty(self):
        self._most = 1 << 30
        self._cap_all()


@pytest.fixture
def full(settings, redis_server, redis_client, monkeypatch):
    """(router, its context of a learning worker, disk): decisions with ratings wait, and the disk is full."""
    monkeypatch.setattr(learning, "LEARN_S", 0.3)
    monkeypatch.setattr("ragbandit.router.serving.health.readiness.RETRY_S", 0.05)
    configuration = settings(
        redis_url=redis_server, arms={"fast": {"run_by": "caller"}}, policy={"name": "linucb", "fallback": "fast"}
    )
    with Router.open(configuration, jobs=MemoryJobs()) as router:

        def rate(number):
            decision = router.route(f"Who wrote book {number}?")
            router.outcome(decision.id, answer="x", steps=1)
            router.feedback(decision.id, rating=True)

        with ThreadPoolExecutor(16) as together:
            list(together.map(rate, range(DECISIONS)))
        jobs = RedisJobs(redis_client)
        context = Context(
            settings=configuration,
            store=router.store,
            ledger=router.ledger,
            jobs=jobs,
            learner=make_learner(configuration, router.ledger, jobs=jobs),
        )
        disk = Disk(router.database)
        disk.fill()
        yield router, context, disk
        disk.empty()


def test_a_full_disk_is_one_line(full, caplog, monkeypatch):
    """Learning on a full disk logs one line without a traceback, then one every QUIET_S, and one when there is room."""
    _, context, disk = full
    for _ in range(2):
        learning.next_learn(context, False)()
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.exc_info is None
    assert "cannot learn, since the store fails" in record.message
    assert "full" in record.reason
    attempts = record.attempts
    monkeypatch.setattr(context.learning_outage.throttle, "every_s", 0.0)
    monkeypatch.setattr(learning, "LEARN_S", 0.0)
    learning.learn(context)
    assert caplog.records[-1].attempts > attempts
    disk.empty()
    caplog.set_level(logging.INFO, "ragbandit")
    learning.next_learn(context, False)()
    assert [record for record in caplog.records if record.message == "the store works again: learning goes on"]
    assert context.learner.last_seq == DECISIONS


def test_a_job_tries_again(full, monkeypatch):
    """A learn job that finds the disk full learns within the same job when there is room."""
    monkeypatch.setattr(learning, "LEARN_S", 20.0)
    _, context, disk = full
    threading.Timer(0.3, disk.empty).start()
    assert learning.learn(context) == DECISIONS
