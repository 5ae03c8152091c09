"""The bell: Redis and RQ carry "look there", never data. Losing all of Redis makes things late, not lost.

`Jobs` is what the router needs of a queue; `RedisJobs` is the real one, `MemoryJobs` the public test double.
Workers are reached by job name, so that the router need not import them.
"""

import logging
import uuid
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import redis
from redis.exceptions import RedisError
from rq import Queue

from ragbandit.router.errors import QueueError
from ragbandit.router.types import DecisionId, PolicyLabel

Reply = TypeVar("Reply")

__all__ = ["ANSWER_JOB", "ANSWER_QUEUE", "LEARN_JOB", "LEARN_QUEUE", "Jobs", "MemoryJobs", "RedisJobs", "connect"]

log = logging.getLogger("ragbandit.jobs")

ANSWER_QUEUE = "ragbandit-answer"
LEARN_QUEUE = "ragbandit-learn"
#: names of the jobs, not paths of functions: what is queued outlives a release
ANSWER_JOB = "workers.tasks.answer"
LEARN_JOB = "workers.tasks.learn"
CHANNEL = "ragbandit:news"
#: a bell that was rung and not heard rings again after this long
BELL_MS = 2_000
#: a worker says at least this often that it is still running a decision
RUNNING_S = 15
#: KEYS[1]: a queue, ARGV[1]: a job; one step, so that a worker takes it before or after, and never misses it
_TO_FRONT = """
if redis.call('LREM', KEYS[1], 0, ARGV[1]) > 0 then
    redis.call('LPUSH', KEYS[1], ARGV[1])
end
"""
#: KEYS[1]: a count of tries; one step, so that a try that begins meanwhile is not taken away with it
_TAKE_BACK = """
if redis.call('DECR', KEYS[1]) <= 0 then
    redis.call('DEL', KEYS[1])
end
"""


class Jobs(Protocol):
    """What the router asks of a queue. Every method raises QueueError if the queue cannot be reached."""

    #: logging level of that
    alarm: int

    def ring(self, label: PolicyLabel) -> None:
        """There is something to learn for this ledger."""
        ...

    def ask_answer(self, decision_id: DecisionId, *, timeout_s: float) -> None:
        """Have a worker answer this decision."""
        ...

    def hurry(self, decision_id: DecisionId) -> None:
        """Put the decision at the front of its queue, if it is in there."""
        ...

    def lost(self, ids: Iterable[DecisionId]) -> list[DecisionId]:
        """The decisions among these that are neither queued nor being run."""
        ...

    def tell(self, news: str) -> None:
        """Send a line to every listener: "outcome:<id>", "cancel:<id>" or "snapshot"."""
        ...

    def depth(self) -> dict[str, int]:
        """Jobs waiting, by queue."""
        ...


def connect(url: str, *, timeout_s: float = 10.0) -> "redis.Redis":
    """A client that waits timeout_s at most for any reply."""
    return redis.Redis.from_url(
        url,
        socket_connect_timeout=min(3.0, timeout_s),
        socket_timeout=timeout_s,
        health_check_interval=30,
        retry_on_timeout=False,
    )


class RedisJobs:
    """Jobs over RQ.

    alarm: logging level of not reaching Redis; once reached, it is missed, and that is a warning.
    """

    def __init__(self, client: "redis.Redis", *, alarm: int = logging.WARNING) -> None:
        self.client = client
        self.alarm = alarm
        self._answer = Queue(ANSWER_QUEUE, connection=client)
        self._learn = Queue(LEARN_QUEUE, connection=client)

    def ring(self, label: PolicyLabel) -> None:
        """Queue one learn job unless one is on its way: feedback by the thousand rings one bell."""

        def work() -> None:
            # The bell fades, a job that nobody has taken yet stays: one is enough. Each has an id of its own, since
            # RQ forgets a job under its id when it ends, also one that was queued under the same id meanwhile.
            if self.client.set(f"ragbandit:bell:{label}", 1, nx=True, px=BELL_MS):
                prefix = f"learn-{label}-"
                if not any(name.startswith(prefix) for name in self._learn.job_ids):
                    self._learn.enqueue(
                        LEARN_JOB,
                        label,
                        job_id=f"{prefix}{uuid.uuid4().hex}",
                        result_ttl=0,
                        failure_ttl=60,
                        job_timeout=600,
                    )

        self._reached(work)

    def hush(self, label: PolicyLabel) -> None:
        """Take the bell down: what comes in from now on must ring again."""
        self._reached(lambda: self.client.delete(f"ragbandit:bell:{label}"))

    def ask_answer(self, decision_id: DecisionId, *, timeout_s: float) -> None:
        """Queue the answer job under the decision's own id, unless it is queued or being run already."""

        def work() -> None:
            if (
                self.client.exists(_running_key(decision_id))
                or self.client.lpos(self._answer.key, decision_id) is not None
            ):
                return
            self._answer.enqueue(
                ANSWER_JOB,
                decision_id,
                job_id=decision_id,
                result_ttl=0,
                failure_ttl=3600,
                job_timeout=int(timeout_s) + 30,
            )

        self._reached(work)

    def hurry(self, decision_id: DecisionId) -> None:
        """Move its job to where workers take the next one, unless one has taken it already."""
        self._reached(lambda: self.client.eval(_TO_FRONT, 1, self._answer.key, decision_id))

    def lost(self, ids: Iterable[DecisionId]) -> list[DecisionId]:
        """Neither waiting in RQ's list nor marked as running by a live worker."""

        def work() -> list[DecisionId]:
            wanted = list(ids)
            if not wanted:
                return []
            queued = set(self._answer.job_ids)
            running = self.client.mget([_running_key(i) for i in wanted])
            return [i for i, mark in zip(wanted, running, strict=True) if mark is None and i not in queued]

        return self._reached(work)

    def mark_running(self, decision_id: DecisionId) -> None:
        """A worker is on it; the mark fades after RUNNING_S unless renewed."""
        self._reached(lambda: self.client.set(_running_key(decision_id), 1, ex=RUNNING_S))

    def unmark_running(self, decision_id: DecisionId) -> None:
        """The worker is done."""
        self._reached(lambda: self.client.delete(_running_key(decision_id)))

    def is_running(self, decision_id: DecisionId) -> bool:
        """Whether a worker said within RUNNING_S that it is on it."""
        return self._reached(lambda: bool(self.client.exists(_running_key(decision_id))))

    def count_try(self, decision_id: DecisionId) -> int:
        """A worker begins: how many have begun so far, this one included. Kept for a day."""

        def work() -> int:
            key = _tries_key(decision_id)
            tries = int(self.client.incr(key))
            self.client.expire(key, 86_400)
            return tries

        return self._reached(work)

    def uncount_try(self, decision_id: DecisionId) -> None:
        """Take one try back: its end says nothing against the question."""
        self._reached(lambda: self.client.eval(_TAKE_BACK, 1, _tries_key(decision_id)))

    def tries(self, decision_id: DecisionId) -> int:
        """How many workers have begun so far."""
        return self._reached(lambda: int(self.client.get(_tries_key(decision_id)) or 0))

    def forget_tries(self, decision_id: DecisionId) -> None:
        """The answer is there."""
        self._reached(lambda: self.client.delete(_tries_key(decision_id)))

    def tell(self, news: str) -> None:
        """Publish on the one channel."""
        self._reached(lambda: self.client.publish(CHANNEL, news))

    def depth(self) -> dict[str, int]:
        """Length of the two lists."""
        return self._reached(lambda: {"answer": self._answer.count, "learn": self._learn.count})

    def ping(self) -> None:
        """Raises QueueError if Redis does not answer."""
        self._reached(self.client.ping)

    def _reached(self, work: Callable[[], Reply]) -> Reply:
        try:
            reply = work()
        except (RedisError, OSError) as error:
            raise QueueError(f"Redis: {error}", field="redis_url", remedy="is it running?") from error
        self.alarm = logging.WARNING
        return reply


def _running_key(decision_id: str) -> str:
    return f"ragbandit:running:{decision_id}"


def _tries_key(decision_id: str) -> str:
    return f"ragbandit:tries:{decision_id}"


class MemoryJobs:
    """A queue in this process that only remembers what it was asked: for tests and for use without Redis."""

    alarm = logging.WARNING

    def __init__(self) -> None:
        self.rung: list[PolicyLabel] = []
        self.asked: list[DecisionId] = []
        self.hurried: list[DecisionId] = []
        self.told: list[str] = []
        #: True: every call raises QueueError, as with Redis down
        self.broken = False

    def ring(self, label: PolicyLabel) -> None:
        """Remember the label."""
        self._check()
        self.rung.append(label)

    def ask_answer(self, decision_id: DecisionId, *, timeout_s: float) -> None:
        """Remember the decision."""
        del timeout_s
        self._check()
        self.asked.append(decision_id)

    def hurry(self, decision_id: DecisionId) -> None:
        """Remember the decision."""
        self._check()
        self.hurried.append(decision_id)

    def lost(self, ids: Iterable[DecisionId]) -> list[DecisionId]:
        """Those that were never asked for."""
        self._check()
        return [i for i in ids if i not in self.asked]

    def tell(self, news: str) -> None:
        """Remember the line."""
        self._check()
        self.told.append(news)

    def depth(self) -> dict[str, int]:
        """How much was asked."""
        self._check()
        return {"answer": len(self.asked), "learn": len(self.rung)}

    def _check(self) -> None:
        if self.broken:
            raise QueueError("the queue is down (MemoryJobs.broken)")
