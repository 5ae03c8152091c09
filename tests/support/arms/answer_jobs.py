"""Parts of a worker that answers one decision, with a Redis that the test directs."""

import asyncio
import threading
import time

from ragbandit.router.errors import QueueError
from ragbandit.router.jobs.outage import Outage
from ragbandit.router.serving import cancellation
from ragbandit.router.types import Decision, DecisionId, Query
from ragbandit.strategies.generators.scripted import ScriptedGenerator

__all__ = ["Held", "Redis", "cancel", "decision_for", "outcome_in", "until"]


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

    def __init__(self, *, tries=0, broken=False):
        self.counted, self.broken, self.kept, self.outage = tries, broken, [], Outage()
        self.begun, self.calls, self.marked, self.queued, self.elsewhere = 0, 0, [], [], False

    def _check(self):
        self.calls += 1
        if self.broken:
            error = QueueError("Redis is down")
            self.outage.failed(error)
            raise error

    def begin_run(self, key):
        self._check()
        self.marked.append(key)
        return self.counted

    def end_run(self, key, *, kept):
        self._check()
        if kept:
            self.kept.append(key)

    def mark_running(self, *keys):
        self._check()
        self.marked.extend(keys)

    def unmark_running(self, *keys):
        self._check()

    def requeue_lost(self, *, held, timeout_s):
        self._check()
        return []

    def runs_elsewhere(self, key):
        self._check()
        return self.elsewhere

    def count_try(self, key):
        self._check()
        self.counted += 1
        self.begun += 1
        return self.counted

    def uncount_try(self, key):
        self._check()
        self.counted -= 1

    def enqueue_answer(self, key, *, tenant, timeout_s, front):
        self._check()
        self.queued.append((key, front))

    def enqueue_learn(self, label):
        self._check()


def outcome_in(context):
    return context.store.outcomes_by_id(["d1"]).get("d1")


def cancel(context):
    return cancellation.request(context.store.database, decision_id=DecisionId("d1"), now=time.time())


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


def until(seen, *, seconds=10.0):
    give_up = time.monotonic() + seconds
    while not seen():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.005)
    return True
