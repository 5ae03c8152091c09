"""Wakes workers and learners through Redis, and publishes notifications.

All work is stored in the database, which workers and learners also poll every second or two. So without Redis work is
delayed, but not lost. A wake-up is an RQ job without content. Each idle thread of a worker takes one wake-up, so the
length of RQ's list is the number of wake-ups not taken yet. Import this module only if redis and RQ are installed.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from ragbandit.router.queue.listener import Listener
from ragbandit.router.queue.outage import Outage, redis_call
from ragbandit.router.queue.presence import QueueWork, WorkerState, running_processes, worker_threads
from ragbandit.router.queue.refusals import CHANNEL, try_commands
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import DecisionId

#: queue of work -> name of the RQ queue with the wake-ups for this work
WAKE_UPS: Final = {"answer": "ragbandit-answer", "learn": "ragbandit-learn"}
#: maximum number of queued wake-ups for answer workers; without this limit, repeated questions would fill Redis
MAX_WAKE_UPS: Final = 10_000
_WORK_KEY: Final = "ragbandit:work"


def connect_redis(url: str, *, timeout_s: float = 10.0) -> "redis.Redis":
    """A client that connects at its first command. Raises ConfigError for an option that redis-py does not have."""
    timeouts = {"socket_connect_timeout": min(3.0, timeout_s), "socket_timeout": timeout_s}
    try:
        client = redis.Redis.from_url(url, **timeouts, health_check_interval=30, retry_on_timeout=False)
        client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)  # only checks the options
    except (TypeError, ValueError, redis.RedisError) as error:
        remedy = "correct the part behind the ? in REDIS_URL: it takes options of redis-py"
        raise ConfigError(f"an option of the URL cannot be used: {error}", field="redis_url", remedy=remedy) from error
    return client


class RedisJobs:
    """Wake-ups and notifications in Redis. Every call of Redis may raise QueueError. expected: see `Outage`."""

    def __init__(self, client: "redis.Redis", *, expected: bool = True) -> None:
        self.client = client
        self.outage = Outage(expected=expected)
        self._queues = {
            name: Queue(queue, connection=client, serializer=JSONSerializer) for name, queue in WAKE_UPS.items()
        }

    def enqueue_learn(self) -> None:
        """Wake the learners, unless a wake-up is queued already."""
        with redis_call(self.outage):
            if not self._queues["learn"].count:
                self._wake("learn", count=1)

    def enqueue_answers(self, ids: Sequence[DecisionId]) -> None:
        """Send a wake-up for each of these decisions, as long as at most MAX_WAKE_UPS wake-ups are queued."""
        with redis_call(self.outage):
            count = min(len(ids), MAX_WAKE_UPS - self._queues["answer"].count)
            if count > 0:
                self._wake("answer", count=count)

    def take_wake_up(self, queue: str, *, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for a wake-up of this queue, and take it. Returns whether there was one."""
        with redis_call(self.outage):
            popped: Any = self.client.blpop([self._queues[queue].key], max(0.01, timeout_s))
            if popped is not None:
                self.client.unlink(Job.key_for(popped[1].decode()))
        return popped is not None

    def _wake(self, name: str, *, count: int) -> None:
        wake_up = Queue.prepare_data(name, timeout=-1, result_ttl=0, ttl=86_400)  # RQ drops the wake-up after a day
        self._queues[name].enqueue_many([wake_up] * count)

    def count_job(self, queue: str, *, seconds: float, failed: bool) -> None:
        with redis_call(self.outage), self.client.pipeline(transaction=False) as pipeline:
            pipeline.hincrby(_WORK_KEY, f"{queue}:{'failed' if failed else 'done'}", 1)
            pipeline.hincrbyfloat(_WORK_KEY, f"{queue}:seconds", seconds)
            pipeline.execute()

    def publish(self, notification: str) -> None:
        """Send a notification to every listener: "outcome:<id>", "cancel:<id>", "stream:<id>" or "snapshot"."""
        with redis_call(self.outage):
            self.client.publish(CHANNEL, notification)

    def listen(self, handle: Callable[[str], None]) -> Listener:
        return Listener(self.client, handle, outage=self.outage)

    def depth(self) -> dict[str, int]:
        """Number of queued wake-ups by queue: about one per decision to answer, and at most one for the learners."""
        with redis_call(self.outage):
            return {name: queue.count for name, queue in self._queues.items()}

    def workers(self) -> list[WorkerState]:
        with redis_call(self.outage):
            return worker_threads(running_processes(self.client))

    def work(self) -> dict[str, QueueWork]:
        """Queue -> counts of its ended jobs."""
        with redis_call(self.outage):
            work_by_key: Any = self.client.hgetall(_WORK_KEY)
        work = {}
        kinds = ("done", "failed", "seconds")
        for queue in ("answer", "judge", "learn"):
            done, failed, seconds = (work_by_key.get(f"{queue}:{kind}".encode(), 0) for kind in kinds)
            work[queue] = QueueWork(done=int(done), failed=int(failed), seconds=float(seconds))
        return work

    def ping(self) -> None:
        """Try the commands on a new connection, since an open one may lead to a replaced server. Raises QueueError."""
        pool = self.client.connection_pool
        new_pool = type(pool)(pool.connection_class, **pool.connection_kwargs)
        try:
            try_commands(redis.Redis(connection_pool=new_pool))
        finally:
            new_pool.disconnect()

    def close(self) -> None:
        self.client.close()
