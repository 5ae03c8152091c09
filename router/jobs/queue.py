"""Job queue: notifications of workers and learner through Redis and RQ. Losing Redis makes things late, not lost.

`Jobs` is the protocol, `RedisJobs` the real queue, `MemoryJobs` the public test double. A job carries the id of a
decision or the label of a ledger, never data. Workers are reached by job name, so that the router need not import them;
what a job may be is said in records.py, how decisions wait in answer_queue.py.
"""

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeVar

import redis
from redis.exceptions import RedisError
from rq.job import Job

from ragbandit.router.errors import QueueError
from ragbandit.router.jobs.answer_queue import MAX_QUEUED, AnswerQueue
from ragbandit.router.jobs.judge_queue import JudgeQueue
from ragbandit.router.jobs.listener import CHANNEL, Listener
from ragbandit.router.jobs.outage import Outage
from ragbandit.router.jobs.records import (
    ANSWER_JOB,
    ANSWER_QUEUE,
    JUDGE_QUEUE,
    LEARN_JOB,
    LEARN_QUEUE,
    REFUSED_KEY,
    queue_on,
    record_of,
)
from ragbandit.router.jobs.run_leases import RunLeases
from ragbandit.router.jobs.worker_registry import QueueWork, WorkerState, work_of, workers_of
from ragbandit.router.types import DecisionId, PolicyLabel

Reply = TypeVar("Reply")

__all__ = ["ANSWER_JOB", "ANSWER_QUEUE", "LEARN_JOB", "LEARN_QUEUE", "Jobs", "RedisJobs", "Subscription", "connect"]

#: a notification of the learner that nobody has taken may be repeated after this long
NOTIFICATION_MS = 2_000
#: learn jobs that may wait: one for every ledger
MAX_LEARN_JOBS = 1000
#: what a learner said of a store that fails is known that long, seconds; it tries more often than that
LEARNER_FAULT_S = 60
#: longest text of that, characters
MAX_FAULT_CHARS = 1000
#: the record of a learn job is kept that long, seconds
LEARN_RECORD_S = 3600
#: KEYS: notification, list, record, RQ's set of queues. ARGV: how long the notification stands, prefix of the ledger's
#: jobs, MAX_LEARN_JOBS, id, seconds that the record is kept, fields and values of the record
_ENQUEUE_LEARN = """
if not redis.call('SET', KEYS[1], 1, 'NX', 'PX', ARGV[1]) then
    return
end
local waiting = redis.call('LRANGE', KEYS[2], 0, ARGV[3] - 1)
for _, id in ipairs(waiting) do
    if string.sub(id, 1, #ARGV[2]) == ARGV[2] then
        return
    end
end
if #waiting < tonumber(ARGV[3]) then
    redis.call('HSET', KEYS[3], unpack(ARGV, 6))
    redis.call('EXPIRE', KEYS[3], ARGV[5])
    redis.call('SADD', KEYS[4], KEYS[2])
    redis.call('RPUSH', KEYS[2], ARGV[4])
end
"""
#: KEYS[1]: a count of tries; one step, so that a try that begins meanwhile is not taken away with it
_TAKE_BACK = """
if redis.call('DECR', KEYS[1]) <= 0 then
    redis.call('DEL', KEYS[1])
end
"""


class Subscription(Protocol):
    """Notifications that arrive until it is closed."""

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
        self._answers = AnswerQueue(client, max_queued=max_queued)
        self._leases = RunLeases(client)
        self._judge = JudgeQueue(client)
        self._learn = queue_on(client, LEARN_QUEUE)

    def enqueue_learn(self, label: PolicyLabel) -> None:
        """Queue one learn job unless one is queued: feedback by the thousand makes one."""

        def work() -> None:
            # The notification expires, a job that nobody has taken yet stays: one is enough.
            prefix = f"learn-{label}-"
            job_id = f"{prefix}{uuid.uuid4().hex}"
            record = record_of(self._learn, job_id=job_id, argument=label, timeout_s=600)
            keys = [_notification_key(label), self._learn.key, Job.key_for(job_id), self._learn.redis_queues_keys]
            fields = [part for pair in record.items() for part in pair]
            given = [NOTIFICATION_MS, prefix, MAX_LEARN_JOBS, job_id, LEARN_RECORD_S, *fields]
            self.client.eval(_ENQUEUE_LEARN, len(keys), *keys, *given)

        self._reached(work)

    def clear_notification(self, label: PolicyLabel) -> None:
        """Have the next `enqueue_learn` queue a job again: what comes in from now on is not seen by this one."""
        self._reached(lambda: self.client.delete(_notification_key(label)))

    def set_learner_fault(self, label: PolicyLabel, reason: str | None) -> None:
        """Tell the routers why this ledger cannot be learned; None: it can. Forgotten after LEARNER_FAULT_S."""
        key = _learner_fault_key(label)
        if reason is None:
            self._reached(lambda: self.client.delete(key))
        else:
            self._reached(lambda: self.client.set(key, reason[:MAX_FAULT_CHARS], ex=LEARNER_FAULT_S))

    def learner_fault(self, label: PolicyLabel) -> str | None:
        """What its learner said within LEARNER_FAULT_S; None: nothing."""
        found = self._reached(lambda: self.client.get(_learner_fault_key(label)))
        return found.decode(errors="replace") if isinstance(found, bytes) else found

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
            return _count(self.client.get(_tries_key(decision_id)))

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
        """Nobody runs these."""
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
        return self._reached(lambda: bool(self.client.set(key, 1, nx=True, px=milliseconds)))

    def count_try(self, decision_id: DecisionId) -> int:
        """A worker begins: how many have begun so far, this one included. Kept for a day."""

        def work() -> int:
            with self.client.pipeline() as pipeline:
                pipeline.incr(_tries_key(decision_id))
                pipeline.expire(_tries_key(decision_id), 86_400)
                tries, _ = pipeline.execute()
            return int(tries)

        return self._reached(work)

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
        """Jobs that wait, whatever their number at the same cost."""

        def work() -> dict[str, int]:
            with self.client.pipeline(transaction=False) as pipeline:
                pipeline.llen(queue_on(self.client, JUDGE_QUEUE).key)
                pipeline.llen(self._learn.key)
                judge, learn = pipeline.execute()
            return {"answer": self._answers.depth(), "judge": int(judge), "learn": int(learn)}

        return self._reached(work)

    def refused(self) -> int:
        """What workers found in the queues that is none of our jobs, since this Redis has been counting."""
        return self._reached(lambda: int(self.client.get(REFUSED_KEY) or 0))

    def workers(self) -> list[WorkerState]:
        """As RQ has them registered."""
        return self._reached(lambda: workers_of(self.client))

    def work(self) -> dict[str, QueueWork]:
        """Since this Redis has been counting."""
        return self._reached(lambda: work_of(self.client))

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

    def _reached(self, work: Callable[[], Reply]) -> Reply:
        began = time.monotonic()
        try:
            reply = work()
        except (RedisError, OSError) as error:
            self.outage.failed(error)
            raise _unreachable(error) from error
        self.outage.reached(began=began)
        return reply


def _unreachable(error: Exception) -> QueueError:
    """The error of a Redis that cannot be reached."""
    return QueueError(
        f"Redis is not reachable: {error}",
        field="redis_url",
        remedy="start it, or correct redis_url; answers are delayed until then, nothing is lost",
    )


def _notification_key(label: str) -> str:
    return f"ragbandit:bell:{label}"


def _learner_fault_key(label: str) -> str:
    return f"ragbandit:learner_fault:{label}"


def _tries_key(decision_id: str) -> str:
    return f"ragbandit:tries:{decision_id}"


def _count(raw: object) -> int:
    """A count that Redis holds; 0 where somebody else wrote there."""
    return int(raw) if isinstance(raw, bytes) and raw.isdigit() and len(raw) < 10 else 0
