"""Worker process: loads everything once, does jobs, and finishes what it has begun on SIGTERM."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.checks import check_policy
from ragbandit.router.queue.jobs import BELLS, RedisJobs, connect
from ragbandit.router.queue.presence import Presence, card_of
from ragbandit.router.queue.redis_server import redis_url
from ragbandit.router.queue.stream_writer import STREAM_SECRET, StreamWriter
from ragbandit.router.serving.setup.bootstrap import judge_sample, make_learner, open_database
from ragbandit.router.storage.access.service_secrets import shared_secret
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.telemetry.tracing import make_tracing
from ragbandit.shared.child_process import die_with_parent
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import PolicyLabel
from ragbandit.workers import housekeeping, tasks
from ragbandit.workers.consumers import LOOK_S, REPLY_S, BellTaker, Consumer, Job, Signals, wait_for_signal
from ragbandit.workers.context import Context
from ragbandit.workers.event_loop import EventLoop
from ragbandit.workers.judge.job import DueJudgements
from ragbandit.workers.judge.loading import make_judging
from ragbandit.workers.learning import next_learn
from ragbandit.workers.wiring.arms import check_arms, worker_arms
from ragbandit.workers.wiring.loading import ArmLoader, runs_at_once

log = logging.getLogger("ragbandit.worker")

#: how often the heartbeat file is touched, seconds
BEAT_S: Final = 5.0
QUEUES = ("answer", "judge", "learn")


def run_worker(
    settings: Settings, *, queues: Sequence[str], burst: bool = False, heartbeat: Path | None = None
) -> None:
    """Do the jobs of these queues until SIGTERM or SIGINT; with burst, until there are none.

    Several threads take questions and answers to judge, one takes what there is to learn. heartbeat: a file that is
    touched every few seconds from when everything is loaded. Raises ConfigError or
    StoreError before the first job if something is missing.
    """
    die_with_parent()
    check_arms(settings)
    check_policy(settings)
    label = PolicyLabel(settings.policy.label)
    database = open_database(settings)
    reach = partial(connect, redis_url(settings), timeout_s=float(LOOK_S + REPLY_S))
    jobs = RedisJobs(reach(), max_queued=settings.workers.max_queued)
    context = Context(
        settings=settings,
        store=DecisionStore(
            database,
            label=label,
            text=settings.log.text,
            judge=judge_sample(settings),
            check=settings.reward.check is not None,
        ),
        ledger=Ledger(database, label=label),
        jobs=jobs,
        tracing=make_tracing(
            enabled=settings.telemetry.enabled, service=settings.telemetry.service_name, process="worker"
        ),
    )
    threads = {"answer": 1, "judge": 1, "learn": 1}
    if "answer" in queues and settings.worker_arms:
        threads["answer"] = _load_arms(context)
        secret = shared_secret(database, name=STREAM_SECRET, now=time.time())
        context.streams = StreamWriter(jobs.client, outage=jobs.outage, secret=secret)
    if "judge" in queues:
        threads["judge"] = _load_judge(context)
    at_once = {name: count for name, count in threads.items() if name in queues}
    consumers = [consumer_of(name, context, threads=count) for name, count in at_once.items()]
    with contextlib.ExitStack() as running:
        running.callback(_close, context, database)
        running.callback(context.ending.set)
        if "learn" in queues:
            context.learner = make_learner(settings, database=database, jobs=jobs)
        routines = housekeeping.routines_of(context)
        for routine in routines:
            running.callback(routine.close)
        if context.loop is not None:
            running.callback(jobs.listen(partial(housekeeping.handle_notification, context)).close)
        retrievers = ", ".join(sorted({arm.retriever.name for arm in context.arms.values()}))
        card = card_of(role="worker", threads=at_once, retriever=retrievers)
        busy = lambda: {one.name: one.busy for one in consumers}  # noqa: E731
        running.callback(Presence(client=jobs.client, card=card, busy=busy).start().close)
        for routine in routines:  # all at once; `close` waits for them one after the other
            running.callback(routine.stop)
        log.info("worker ready", extra={"action": "ready", "queues": ",".join(queues), "at_once": at_once})
        if not burst:
            for consumer in consumers:
                if consumer.name in BELLS:
                    BellTaker(consumer.name, connect=reach, jobs=jobs, consumer=consumer)
        running.enter_context(beating(heartbeat))
        _work(consumers, context, burst=burst)


def _close(context: Context, database: Database) -> None:
    context.close()
    if context.streams is not None:
        context.streams.close()
    if context.learner is not None:
        context.learner.close()
    context.jobs.close()
    database.close()
    context.tracing.close()


def consumer_of(name: str, context: Context, *, threads: int) -> Consumer:
    """The threads that do the jobs of this queue, not started yet."""
    sweep_s = context.settings.workers.sweep_interval_s
    looks: dict[str, tuple[Callable[[bool], Job | None], float]] = {
        "answer": (partial(tasks.next_answer, context), LOOK_S),
        "judge": (DueJudgements(context).look, min(LOOK_S, sweep_s)),
        "learn": (partial(next_learn, context), sweep_s),
    }
    look, every_s = looks[name]
    return Consumer(name=name, threads=threads, look=look, jobs=context.jobs, stopping=context.ending, every_s=every_s)


def _load_arms(context: Context) -> int:
    """Load all that answering needs; the number of questions to work on at once."""
    context.loader = ArmLoader(context.settings)
    context.arms = context.loader.load(worker_arms(context.settings))
    context.loop = EventLoop()
    return runs_at_once(context.arms.values())


def _load_judge(context: Context) -> int:
    """Load the judge; the number of answers to work on at once."""
    loaded = None if context.loader is None else context.loader.generator_of
    context.judging, threads = make_judging(context.settings, store=context.store, loaded=loaded)
    context.loop = context.loop or EventLoop()
    context.judging.store.new_budget(now=time.time())
    return threads


def _work(consumers: Sequence[Consumer], context: Context, *, burst: bool) -> None:
    signals = Signals()

    def cut_off() -> None:
        if context.loop is not None:
            context.loop.interrupt()

    # In a burst one after the other, as what is answered is then to be learned.
    for group in [[one] for one in consumers] if burst else [consumers]:
        for consumer in group:
            consumer.start(burst=burst)
        wait_for_signal(group, signals, cut_off=cut_off)


@contextlib.contextmanager
def beating(file: Path | None) -> Iterator[None]:
    """Touch the file every BEAT_S within the block, and remove it at its end; None does nothing. Raises ConfigError.

    Its age tells a supervisor that a worker has loaded everything and still runs. It asks neither SQL nor Redis: a
    worker outlasts both, and to restart it while one of them is down would only cost its models' loading. A worker that
    blocks its event loop ends by itself (docs/operations.md).
    """
    if file is None:
        yield
        return
    try:
        file.touch()
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}", field="heartbeat", remedy="name a file in a writable folder"
        ) from error
    stop = threading.Event()
    thread = threading.Thread(target=_beat, args=(file, stop), name="ragbandit-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(BEAT_S)
        file.unlink(missing_ok=True)


def _beat(file: Path, stop: threading.Event) -> None:
    while not stop.wait(BEAT_S):
        with contextlib.suppress(OSError):  # a full disk: the next one may succeed
            file.touch()
