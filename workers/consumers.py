"""Consumers: the threads that take jobs from Redis, one RQ worker each, so that a process works on several at once.

Of RQ's worker the loop, the registration and the heartbeat are used. It never loads a job: what is in a queue is read
by router/jobs/records.py, which takes our own jobs alone. RQ's maintenance, commands and callbacks are left out, since
they import and call what a record names.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError
from rq import SimpleWorker
from rq.exceptions import StopRequested
from rq.serializers import JSONSerializer
from rq.utils import now
from rq.worker_registration import clean_worker_registry

from ragbandit.router.jobs.foreign_data import OwnKeys
from ragbandit.router.jobs.outage import Outage
from ragbandit.router.jobs.records import REFUSED_KEY, RefusedJob, TakenJob, queue_on, take
from ragbandit.router.jobs.worker_registry import count_job
from ragbandit.router.process_identity import this_process
from ragbandit.router.telemetry.throttle import Throttle

if TYPE_CHECKING:
    import redis

__all__ = ["LOOK_S", "REPLY_S", "Consumers", "JobFunctions", "Signals"]

log = logging.getLogger("ragbandit.worker")

#: job name -> its function, called with the arguments of the job
JobFunctions = Mapping[str, Callable[[str], object]]

#: between two attempts to reach Redis, seconds
REDIS_PAUSE_S = 0.5
#: Redis is given up when a reply is so late, whole seconds
REPLY_S = 2
#: how often a thread that has no job looks whether to end, whole seconds
LOOK_S = 1
#: RQ waits for a job so much shorter than its workers' time to live
RQ_SPARE_S = 15
#: longest job, seconds: for so long a worker that has one counts as alive
JOB_S = 900
#: least time between two log lines about refused jobs of one thread, seconds
QUIET_S = 10.0
#: a second signal within that long is the first one again, sent to the whole group of processes
SAME_SIGNAL_S = 1.0
#: threads whose runs were cut off get that long to end
FAREWELL_S = 2.0


class _Worker(SimpleWorker):  # type: ignore[misc] # RQ has no types
    """RQ's worker for a thread: it neither forks nor has signals, and between two jobs it sees that it should end."""

    def __init__(
        self,
        queue: str,
        *,
        client: "redis.Redis",
        functions: JobFunctions,
        stopping: threading.Event,
        outage: Outage,
    ) -> None:
        super().__init__(
            [queue_on(client, queue)], connection=client, worker_ttl=LOOK_S + RQ_SPARE_S, serializer=JSONSerializer
        )
        self._queue = queue
        self._functions = functions
        self._stopping = stopping
        self._outage = outage
        self._refused, self._throttle = 0, Throttle(QUIET_S)

    @property
    def connection_timeout(self) -> int:
        """Seconds to wait for any reply, the one that no job has come among them; RQ's own is 10 s more than that."""
        return LOOK_S + REPLY_S

    def _install_signal_handlers(self) -> None:
        """The main thread has them."""

    def subscribe(self) -> None:
        """Nobody sends RQ's commands to our workers."""

    def run_maintenance_tasks(self) -> None:
        """Forget workers that have died. The rest of RQ's own would call the callbacks that strange records name."""
        self.last_cleaned_at = now()
        try:
            for queue in self.queues:
                clean_worker_registry(queue)
        except ValueError as error:  # a name that is not UTF-8, which RQ's own workers do not outlive
            self._outage.foreign.add("workers", f"RQ's set of workers: {error}; it is made anew")
            self.connection.delete(*registry_types(self._queue))

    def dequeue_job_and_maintain_ttl(self, timeout: int | None, max_idle_time: int | None = None) -> Any:
        """The next job; None to end: in a burst for want of jobs, when told to, and when Redis cannot be reached."""
        del max_idle_time
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self.heartbeat()
                self._outage.reached(began=began)
                if self.should_run_maintenance_tasks:
                    self.run_maintenance_tasks()
                taken = self._take(timeout)
            except RedisError as error:
                self._outage.failed(error)
                return None  # whoever started this worker tries again
            if isinstance(taken, TakenJob):
                return taken, self.queues[0]
            if isinstance(taken, RefusedJob):
                self._refuse(taken)
            elif timeout is None:
                return None
        return None

    def _take(self, timeout: int | None) -> TakenJob | RefusedJob | None:
        foreign = self._outage.foreign
        return take(self.connection, self._queue, timeout_s=timeout, process=this_process().key, foreign=foreign)

    def execute_job(self, job: TakenJob, queue: object) -> None:
        """Call the function of this job's name.

        RQ's records of results, tries and failures are not kept: the database has the outcomes, and two deliveries of
        one decision would trip over each other's records. RQ's time limit is a signal, which a thread cannot have:
        our jobs have limits of their own.
        """
        del queue
        try:
            self.heartbeat(JOB_S)
            self.connection.hset(self.key, "state", "busy")
        except RedisError as error:
            self._outage.failed(error)  # the job is at hand all the same
        began, failed = time.monotonic(), True
        try:
            self._functions[job.name](job.argument)
            failed = False
        except Exception:
            facts = {"action": "job", "job": job.name, "id": job.id}
            log.exception("a job failed; what it left undone is found in the database and tried again", extra=facts)
        try:
            self.heartbeat()
            took_s = time.monotonic() - began
            count_job(self.connection, self._queue, seconds=took_s, failed=failed, worker_key=self.key)
        except RedisError as error:
            self._outage.failed(error)
            raise StopRequested from error  # RQ's way to end without a traceback

    def _refuse(self, refused: RefusedJob) -> None:
        """Count and log what is none of our jobs; it has been removed, and nothing of it was loaded."""
        self._refused += 1
        try:
            self.connection.incr(REFUSED_KEY)
        except RedisError as error:
            self._outage.failed(error)
        if not self._throttle.lets_pass():
            return
        facts = {"action": "job_refused", "queue": refused.queue, "id": refused.id, "reason": refused.reason}
        log.error(
            "refused a job that is none of ours, and removed it unread; who else can write to this Redis?",
            extra=facts | {"times": self._refused},
        )


def registry_types(queue: str) -> dict[str, str]:
    """RQ's sets of the workers that there are, in all and of this queue, and their types."""
    return {"rq:workers": "set", f"rq:workers:{queue}": "set"}


class Consumers:
    """Threads that take jobs from queues until told to stop, or until a queue is empty.

    connect: makes a client of Redis; every thread has one of its own. functions: what a job of each name calls.
    stopping: set by `stop`.
    """

    def __init__(
        self,
        connect: "Callable[[], redis.Redis]",
        *,
        functions: JobFunctions,
        stopping: threading.Event,
        outage: Outage,
    ) -> None:
        self._connect = connect
        self._functions = functions
        self._stopping = stopping
        self._outage = outage
        self._threads: list[threading.Thread] = []

    def start(self, queue: str, *, threads: int, burst: bool = False) -> None:
        """Take jobs from this queue in so many threads; with burst each ends when it finds the queue empty."""
        for number in range(1, threads + 1):
            take = partial(self._take, queue, burst=burst)
            thread = threading.Thread(target=take, name=f"{queue}-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Take nothing new; what was taken is finished."""
        self._stopping.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until all threads have ended, for timeout_s at most; whether they have."""
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if give_up is None else max(0.0, give_up - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def wait_for_signal(self, signals: "Signals", *, cut_off: Callable[[], None]) -> None:
        """Until all threads have ended. The first signal stops them, a second one also calls cut_off."""
        while not self.wait(0.1):
            if signals.first:
                self.stop()
            if signals.second:
                log.warning("second signal: runs under way are cut off", extra={"action": "cut_off"})
                give_up = time.monotonic() + FAREWELL_S
                cut_off()
                while not self.wait(0.1) and time.monotonic() < give_up:
                    cut_off()  # a thread may have begun something just then
                return

    def _take(self, queue: str, *, burst: bool) -> None:
        """RQ's worker gives up when Redis goes; this process has models loaded, and waits for it."""
        client = self._connect()
        try:
            while not self._stopping.is_set():
                try:
                    OwnKeys(client, registry_types(queue), foreign=self._outage.foreign).clear()
                    worker = _Worker(
                        queue,
                        client=client,
                        functions=self._functions,
                        stopping=self._stopping,
                        outage=self._outage,
                    )
                    worker.work(burst=burst, logging_level="WARNING")
                    if burst:
                        return
                except RedisError as error:
                    self._outage.failed(error)
                except Exception:
                    log.exception("a thread of this worker failed and starts again", extra={"action": "thread"})
                self._stopping.wait(REDIS_PAUSE_S)
        finally:
            client.close()


class Signals:
    """SIGINT and SIGTERM as they come in, from now on. Only the main thread may make this."""

    def __init__(self) -> None:
        self._came: list[float] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            # No more than this: whatever takes a lock could wait for the very thread that the signal interrupted.
            signal.signal(number, lambda *_: self._came.append(time.monotonic()))

    @property
    def first(self) -> bool:
        """One came."""
        return bool(self._came)

    @property
    def second(self) -> bool:
        """Another one came that is not the same sent twice."""
        return bool(self._came) and self._came[-1] - self._came[0] > SAME_SIGNAL_S
