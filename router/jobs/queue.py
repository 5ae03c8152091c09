"""Job queue: notifications of workers and learner through Redis and RQ. Losing Redis makes things late, not lost.

`Jobs` is the protocol, `RedisJobs` the real queue, `MemoryJobs` the public test double. A job carries the id of a
decision or the label of a ledger, never data. Workers are reached by job name, so that the router need not import them;
what a job may be is said in records.py, how decisions wait in answer_queue.py.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

import redis
from redis.exceptions import RedisError, ResponseError

from ragbandit.router.errors import QueueError
from ragbandit.router.jobs.answer_queue import MAX_QUEUED, AnswerQueue
from ragbandit.router.jobs.foreign_data import is_foreign
from ragbandit.router.jobs.judge_queue import JudgeQueue
from ragbandit.router.jobs.learn_queue import LearnQueue
from ragbandit.router.jobs.listener import CHANNEL, Listener
from ragbandit.router.jobs.outage import Outage
from ragbandit.router.jobs.records import (
    ANSWER_JOB,
    ANSWER_QUEUE,
    JUDGE_QUEUE,
    LEARN_JOB,
    LEARN_QUEUE,
    ORDER_KEY,
    REFUSED_KEY,
    queue_on,
)
from ragbandit.router.jobs.run_leases import RunLeases
from ragbandit.router.jobs.worker_registry import QueueWork, WorkerState, work_of, workers_of
from ragbandit.router.types import DecisionId, PolicyLabel

Reply = TypeVar("Reply")

__all__ = ["ANSWER_JOB", "ANSWER_QUEUE", "LEARN_JOB", "LEARN_QUEUE", "Jobs", "RedisJobs", "Subscription", "connect"]

#: what Redis says of the end of a key that has none
NO_END: Final = -1
#: KEYS[1]: a count of tries. ARGV[1]: seconds that it is kept. The tries, this one included; without a count it is the
#: first
_COUNT_TRY = """
local tries = redis.pcall('INCR', KEYS[1])
if type(tries) ~= 'number' or tries < 1 then
    tries = 1
    redis.call('SET', KEYS[1], tries)
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return tries
"""
#: KEYS[1]: a count of tries; one step, so that a try that begins meanwhile is not taken away with it
_TAKE_BACK = """
local tries = redis.pcall('DECR', KEYS[1])
if type(tries) ~= 'number' or tries <= 0 then
    redis.call('DEL', KEYS[1])
end
"""
#: a count of tries is kept that long, seconds
TRIES_S = 86_400


class Subscription(Protocol):
    """Notifications that arrive until it is closed."""

    def fault(self) -> str | None:
        """Why they do not arrive now; None: they do."""
        ...

    def close(self) -> None:
        """Receive nothing more."""
        ...


class Jobs(Protocol):
    """The queue as the router needs it. All but `listen` and `close` raise QueueError if it cannot be reached."""

    #: whether it could be reached last
    outage: Outage

    def enqueue_learn(self, label: PolicyLabel) -> None:
        """Have the learner of this ledger learn."""
        ...

    def learner_fault(self, label: PolicyLabel) -> str | None:
        """Why the learner of this ledger cannot learn, as it said within LEARNER_FAULT_S; None: it said nothing."""
        ...

    def enqueue_answer(self, decision_id: DecisionId, *, tenant: str, timeout_s: float, front: bool = False) -> None:
        """Have a worker answer this decision when it is its tenant's turn; front: next."""
        ...

    def enqueue_judge(self, ids: Sequence[DecisionId]) -> None:
        """Have these decisions judged, as far as there is room."""
        ...

    def missing(self, ids: Iterable[DecisionId]) -> list[DecisionId]:
        """The decisions among these that are neither queued nor being run."""
        ...

    def publish(self, notification: str) -> None:
        """Send a line to every listener: "outcome:<id>", "cancel:<id>", "stream:<id>" or "snapshot"."""
        ...

    def listen(self, handle: Callable[[str], None]) -> Subscription:
        """Call `handle` with every line that is published from now on, in a thread of its own."""
        ...

    def depth(self) -> dict[str, int]:
        """Jobs waiting, by queue. Costs the same however many wait."""
        ...

    def refused(self) -> int:
        """What workers found in the queues that is none of our jobs, and have removed."""
        ...

    def workers(self) -> list[WorkerState]:
        """The registered workers, MOST_WORKERS at most."""
        ...

    def work(self) -> dict[str, QueueWork]:
        """What all workers have done, by queue."""
        ...

    def ping(self) -> None:
        """Do nothing but reach the queue, over a new connection."""
        ...

    def close(self) -> None:
        """Close all connections."""
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
    """Jobs over Redis, in RQ's layout. expected: as of Outage. max_queued: decisions that may wait in the list."""

    def __init__(self, client: "redis.Redis", *, expected: bool = True, max_queued: int = MAX_QUEUED) -> None:
        self.client = client
        self.outage = Outage(expected=expected)
        foreign = self.outage.foreign
        self._answers = AnswerQueue(client, foreign=foreign, max_queued=max_queued)
        self._leases = RunLeases(client, foreign=foreign)
        self._judge = JudgeQueue(client, foreign=foreign)
        self._learn = LearnQueue(client, foreign=foreign)

    def enqueue_learn(self, label: PolicyLabel) -> None:
        """Queue one learn job unless one is queued: feedback by the thousand makes one."""
        self._reached(lambda: self._learn.enqueue(label))

    def clear_notification(self, label: PolicyLabel) -> None:
        """Have the next `enqueue_learn` queue a job again: what comes in from now on is not seen by this one."""
        self._reached(lambda: self._learn.clear_notification(label))

    def set_learner_fault(self, label: PolicyLabel, reason: str | None) -> None:
        """Tell the routers why this ledger cannot be learned; None: it can. Forgotten after LEARNER_FAULT_S."""
        self._reached(lambda: self._learn.set_fault(label, reason))

    def learner_fault(self, label: PolicyLabel) -> str | None:
        """What its learner said within LEARNER_FAULT_S; None: nothing."""
        return self._reached(lambda: self._learn.fault(label))

    def enqueue_answer(self, decision_id: DecisionId, *, tenant: str, timeout_s: float, front: bool = False) -> None:
        """Queue the answer job under the decision's own id, unless it is queued or being run already.

        A full queue is no error: the recovery loop queues the decision when there is room.
        """
        self._reached(lambda: self._answers.enqueue(decision_id, tenant=tenant, timeout_s=timeout_s, front=front))

    def missing(self, ids: Iterable[DecisionId]) -> list[DecisionId]:
        """Those that are neither queued nor run by anybody."""
        wanted = list(ids)
        return self._reached(lambda: self._answers.missing(wanted))

    def enqueue_judge(self, ids: Sequence[DecisionId]) -> None:
        """Queue those that are not queued, as far as there is room; the recovery loop repeats it."""
        self._reached(lambda: self._judge.enqueue(ids))

    def begin_run(self, decision_id: DecisionId) -> int:
        """This process holds the decision's lease from now on; how many runs of it have begun before."""

        def work() -> int:
            self._leases.renew([decision_id])
            return self._counter(_tries_key(decision_id))

        return self._reached(work)

    def end_run(self, decision_id: DecisionId, *, kept: bool) -> None:
        """Drop the lease. kept: its outcome is in the store, so its tries are forgotten and listeners notified."""

        def work() -> None:
            self._leases.drop([decision_id])
            if kept:
                with self.client.pipeline(transaction=False) as pipeline:
                    pipeline.delete(_tries_key(decision_id))
                    pipeline.publish(CHANNEL, f"outcome:{decision_id}")
                    pipeline.execute()

        self._reached(work)

    def mark_running(self, *ids: DecisionId) -> None:
        """This process lives, and runs these: to be repeated within run_leases.PROCESS_S."""
        self._reached(lambda: self._leases.renew(ids))

    def unmark_running(self, *ids: DecisionId) -> None:
        """This process does not run these."""
        self._reached(lambda: self._leases.drop(ids))

    def runs_elsewhere(self, decision_id: DecisionId) -> bool:
        """True if a process other than this one runs it, as far as is known."""
        return self._reached(lambda: self._leases.runs_elsewhere(decision_id))

    def requeue_lost(self, *, held: Collection[DecisionId], timeout_s: float) -> list[DecisionId]:
        """Queue again, in front, what dead processes were running. held: what this process has in hand."""

        def work() -> list[DecisionId]:
            lost = self._leases.lost(held=held)
            for decision_id, key in lost.items():
                # It has had its turn, so whose turn it was does not matter.
                self._answers.enqueue(decision_id, tenant="", timeout_s=timeout_s, front=True, lost_by=key)
            return list(lost)

        return self._reached(work)

    def claim_recovery(self, label: PolicyLabel, *, for_s: float) -> bool:
        """True if this process is the first to claim a pass of the recovery loop within so many seconds."""
        key, milliseconds = f"ragbandit:recovery:{label}", max(1, int(1000 * for_s))

        def work() -> bool:
            if self.client.set(key, 1, nx=True, px=milliseconds):
                return True
            if self.client.pttl(key) != NO_END:
                return False
            self.outage.foreign.add("claims", f"{key} has no end")  # nobody would recover anything any more
            return bool(self.client.set(key, 1, px=milliseconds))

        return self._reached(work)

    def count_try(self, decision_id: DecisionId) -> int:
        """A worker begins: how many have begun so far, this one included. Kept for TRIES_S."""
        tries: Any = self._reached(lambda: self.client.eval(_COUNT_TRY, 1, _tries_key(decision_id), TRIES_S))
        return int(tries)

    def uncount_try(self, decision_id: DecisionId) -> None:
        """Take one try back: its end says nothing against the question."""
        self._reached(lambda: self.client.eval(_TAKE_BACK, 1, _tries_key(decision_id)))

    def publish(self, notification: str) -> None:
        """Publish on the one channel."""
        self._reached(lambda: self.client.publish(CHANNEL, notification))

    def listen(self, handle: Callable[[str], None]) -> Listener:
        """A thread that listens on the one channel."""
        return Listener(self.client, handle, outage=self.outage)

    def depth(self) -> dict[str, int]:
        """Jobs that wait, in one step; at the same cost whatever their number."""

        def work() -> dict[str, int]:
            with self.client.pipeline(transaction=False) as pipeline:
                pipeline.zcard(ORDER_KEY)
                pipeline.llen(queue_on(self.client, JUDGE_QUEUE).key)
                pipeline.llen(queue_on(self.client, LEARN_QUEUE).key)
                lengths = pipeline.execute(raise_on_error=False)
            numbers = [int(self.outage.foreign.number("queues", length)) for length in lengths]
            return dict(zip(("answer", "judge", "learn"), numbers, strict=True))

        return self._reached(work)

    def refused(self) -> int:
        """What workers found in the queues that is none of our jobs, since this Redis has been counting."""
        return self._reached(lambda: self._counter(REFUSED_KEY))

    def workers(self) -> list[WorkerState]:
        """As RQ has them registered."""
        return self._reached(lambda: workers_of(self.client, foreign=self.outage.foreign))

    def work(self) -> dict[str, QueueWork]:
        """Since this Redis has been counting."""
        return self._reached(lambda: work_of(self.client, foreign=self.outage.foreign))

    def ping(self) -> None:
        """Raises QueueError if Redis does not answer on a new connection.

        One that is open already may lead to a server whose address is gone, or belongs to another server by now.
        """
        pool = self.client.connection_pool
        fresh = type(pool)(pool.connection_class, **pool.connection_kwargs)
        try:
            redis.Redis(connection_pool=fresh).ping()
        except (RedisError, OSError) as error:
            raise _unreachable(error) from error
        finally:
            fresh.disconnect()

    def close(self) -> None:
        """Close all connections."""
        self.client.close()

    def _counter(self, key: str) -> int:
        """A count that we keep; 0 where something else stands there."""
        try:
            return int(self.outage.foreign.number("counters", self.client.get(key)))
        except ResponseError as error:
            self.outage.foreign.add_error("counters", error)
            return 0

    def _reached(self, work: Callable[[], Reply]) -> Reply:
        began = time.monotonic()
        try:
            reply = work()
        except (RedisError, OSError) as error:
            if is_foreign(error):  # it can be reached: nothing else is to wait for this
                self.outage.reached(began=began)
                self.outage.foreign.add("keys", str(error))
                raise _foreign(error) from error
            self.outage.failed(error)
            raise _unreachable(error) from error
        self.outage.reached(began=began)
        return reply


def _foreign(error: Exception) -> QueueError:
    """The error of a key of ours that holds something else."""
    return QueueError(
        f"a key in Redis holds something that is not ours: {error}",
        field="redis_url",
        remedy="let only ragbandit write to this Redis, or give it a database of its own (redis://host/1)",
    )


def _unreachable(error: Exception) -> QueueError:
    """The error of a Redis that cannot be reached."""
    return QueueError(
        f"Redis is not reachable: {error}",
        field="redis_url",
        remedy="start it, or correct redis_url; answers are delayed until then, nothing is lost",
    )


def _tries_key(decision_id: str) -> str:
    return f"ragbandit:tries:{decision_id}"
