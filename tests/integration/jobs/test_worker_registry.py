"""Workers in Redis: those that are registered, and what all of them have done."""

import threading

from ragbandit.router.jobs.queue import RedisJobs
from ragbandit.router.jobs.records import ANSWER_JOB, ANSWER_QUEUE
from ragbandit.router.jobs.worker_registry import QueueWork
from ragbandit.router.types import DecisionId
from ragbandit.workers.consumers import _Worker


def test_workers_are_told_with_what_they_did(redis_client):
    """A worker at work is busy on its queue; its jobs are counted, those that failed apart; gone, it is not listed."""
    jobs = RedisJobs(redis_client)
    seen = []

    def answer(decision):
        seen.extend(jobs.workers())
        if decision == "bad":
            raise ValueError("cannot")

    worker = _Worker(
        ANSWER_QUEUE,
        client=redis_client,
        functions={ANSWER_JOB: answer},
        stopping=threading.Event(),
        outage=jobs.outage,
    )
    for decision in ("one", "bad", "two"):
        jobs.enqueue_answer(DecisionId(decision), tenant="default", timeout_s=60.0)
    worker.work(burst=True, logging_level="CRITICAL")
    assert [(one.queue, one.state) for one in seen] == [("answer", "busy")] * 3
    assert seen[0].heard_at is not None
    work = jobs.work()
    assert (work["answer"].done, work["answer"].failed) == (2, 1)
    assert work["answer"].seconds > 0.0
    assert work["learn"] == QueueWork()
    assert jobs.workers() == []
