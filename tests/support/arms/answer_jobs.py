"""Parts of a worker that answers one decision, with a Redis that the test directs."""

import asyncio
import threading
import time

from sqlalchemy import select, update

from ragbandit.router.queue.outage import Outage
from ragbandit.router.storage import cancellations
from ragbandit.router.storage.sql.tables import jobs
from ragbandit.shared.errors import QueueError
from ragbandit.shared.types import Decision, DecisionId, Query
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.workers.running.queued import next_answer


def decision_for(arm):
    return Decision(
        id=DecisionId("d1"),
        query=Query(text="Who wrote Dracula?"),
        arm=arm,
        arms=(arm,),
        pmf=(1.0,),
        propensity=1.0,
        scores=None,
        policy="main",
        version="main-0-none",
        encoder_hash="e" * 64,
        seed=1,
        floor=0.0,
        explored=False,
        fault=None,
        facts={},
        run_by="worker",
        features=None,
        made_at=0.0,
    )


class Redis:
    """Redis, as far as a worker sees it. broken: it cannot be reached."""

    def __init__(self, *, broken=False):
        self.broken, self.outage = broken, Outage()
        self.calls, self.published, self.queued = 0, [], []

    def _check(self):
        self.calls += 1
        if self.broken:
            error = QueueError("Redis is down")
            self.outage.note_failure(error)
            raise error

    def publish(self, notification):
        self._check()
        self.published.append(notification)

    def enqueue_answers(self, ids):
        self._check()
        self.queued.extend(ids)

    def enqueue_learn(self):
        self._check()


def answer_next(context):
    """Claim the next decision and run it, as a thread of a worker does; False if none waits."""
    job = next_answer(context)
    if job is not None:
        job()
    return job is not None


def set_tries(context, tries):
    """Record this many earlier runs of every decision."""
    with context.store.database.write() as connection:
        connection.execute(update(jobs).values(tries=tries))


def tries_of(context):
    """Decision -> runs that count, of those that wait or are run."""
    with context.store.database.read() as connection:
        return dict(connection.execute(select(jobs.c.decision_id, jobs.c.tries).where(jobs.c.kind == "answer")).all())


def outcome_in(context):
    return context.store.outcomes_by_id(["d1"]).get("d1")


def cancel(context):
    return cancellations.cancel(context.store.database, decision_id=DecisionId("d1"), now=time.time())


class Held(ScriptedGenerator):
    """Holds every call until the test lets go, and counts how many it holds at most."""

    def __init__(self):
        super().__init__({"": "So the answer is: Bram Stoker."})
        self.inside, self.most, self.entered, self.free = 0, 0, threading.Event(), threading.Event()

    async def complete(self, request):
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.set()
        try:
            while not self.free.is_set():
                await asyncio.sleep(0.005)
            return await super().complete(request)
        finally:
            self.inside -= 1
