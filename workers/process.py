"""Worker process: loads everything once, takes jobs, and finishes what it has taken on SIGTERM."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ragbandit.router.config.settings import Settings
from ragbandit.router.jobs.judge_queue import MAX_JUDGE_JOBS
from ragbandit.router.jobs.presence import Presence, card_of
from ragbandit.router.jobs.processes import die_with_parent
from ragbandit.router.jobs.queue import RedisJobs, connect
from ragbandit.router.jobs.records import ANSWER_JOB, ANSWER_QUEUE, JUDGE_JOB, JUDGE_QUEUE, LEARN_JOB, LEARN_QUEUE
from ragbandit.router.jobs.redis_server import redis_url
from ragbandit.router.jobs.streams.keys import STREAM_SECRET
from ragbandit.router.jobs.streams.writer import StreamWriter
from ragbandit.router.policies.checks import check_policy
from ragbandit.router.serving.setup.bootstrap import judge_sample, make_learner, open_database
from ragbandit.router.storage import judgements
from ragbandit.router.storage.access.service_secrets import shared_secret
from ragbandit.router.storage.decisions import DecisionStore
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.telemetry.tracing import make_tracing
from ragbandit.router.types import PolicyLabel
from ragbandit.strategies.registry import make_arms
from ragbandit.workers import housekeeping, tasks
from ragbandit.workers.consumers import LOOK_S, REPLY_S, Consumers, JobFunctions, Signals
from ragbandit.workers.event_loop import EventLoop
from ragbandit.workers.heartbeat import beating
from ragbandit.workers.judge.job import judge
from ragbandit.workers.judge.loading import make_judging
from ragbandit.workers.version_learners import learn_versions
from ragbandit.workers.wiring.arms import arm_params, check_arms
from ragbandit.workers.wiring.generators import generator_and_concurrency
from ragbandit.workers.wiring.retrievers import retriever_of

__all__ = ["QUEUES", "job_functions", "run_worker"]

log = logging.getLogger("ragbandit.worker")

QUEUES = {"answer": ANSWER_QUEUE, "judge": JUDGE_QUEUE, "learn": LEARN_QUEUE}
#: a thread beside the jobs that is to end is waited for that long
JOIN_S = 5.0


def run_worker(
    settings: Settings, *, queues: Sequence[str], burst: bool = False, heartbeat: Path | None = None
) -> None:
    """Take jobs from these queues until SIGTERM or SIGINT; with burst, until they are empty.

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
    context = tasks.Context(
        settings=settings,
        store=DecisionStore(database, label=label, text=settings.log.text, judge=judge_sample(settings)),
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
    chores = [housekeeping.keep_house, housekeeping.keep_leases]
    if "learn" in queues:
        context.learner = make_learner(settings, database=database, jobs=jobs)
        chores += [housekeeping.learn_without_redis, housekeeping.keep_totals]
        chores += [learn_versions, housekeeping.watch_rollouts]
    stop = threading.Event()
    beside = [_started(chore, context, stop) for chore in chores]
    listener = None if context.loop is None else jobs.listen(partial(housekeeping.handle_notification, context))
    at_once = {name: count for name, count in threads.items() if name in queues}
    named = "" if context.retriever is None else context.retriever.name
    presence = Presence(client=jobs.client, card=card_of(role="worker", queues=tuple(queues), retriever=named)).start()
    log.info("worker ready", extra={"action": "ready", "queues": ",".join(queues), "at_once": at_once})
    try:
        consumers = Consumers(
            reach, functions=job_functions(context), stopping=context.ending, outage=context.jobs.outage
        )
        with beating(heartbeat):
            _work(consumers, context, threads=threads, queues=queues, burst=burst)
    finally:
        stop.set()
        presence.close()
        if listener is not None:
            listener.close()
        for thread in beside:
            thread.join(JOIN_S)
        context.close()
        if context.streams is not None:
            context.streams.close()
        if context.learner is not None:
            context.learner.close()
        jobs.close()
        database.close()
        context.tracing.close()


def job_functions(context: tasks.Context) -> JobFunctions:
    """Job name -> the function that does it with these parts."""
    return {
        ANSWER_JOB: partial(tasks.answer, context),
        JUDGE_JOB: partial(judge, context),
        LEARN_JOB: partial(tasks.learn, context),
    }


def _load_arms(context: tasks.Context) -> int:
    """Load all that answering needs; the number of questions to work on at once."""
    settings = context.settings
    context.generator, threads = generator_and_concurrency(settings)
    context.arms = make_arms(arm_params(settings), capabilities=context.generator.capabilities)
    context.retriever = retriever_of(settings, arms=context.arms.values())
    context.loop = EventLoop()
    return threads


def _load_judge(context: tasks.Context) -> int:
    """Load the judge; the number of answers to work on at once."""
    context.judging, threads = make_judging(context.settings, store=context.store, generator=context.generator)
    context.loop = context.loop or EventLoop()
    context.judging.store.new_budget(now=time.time())
    return threads


def _ring_for_judgements(context: tasks.Context) -> None:
    """Queue what is to be judged: a burst does not wait for the recovery loop."""
    due = judgements.due(context.store.database, now=time.time(), limit=MAX_JUDGE_JOBS)
    if due:
        context.notifier.attempt(lambda: context.jobs.enqueue_judge(due))


def _started(
    chore: Callable[[tasks.Context, threading.Event], None], context: tasks.Context, stop: threading.Event
) -> threading.Thread:
    thread = threading.Thread(target=chore, args=(context, stop), name=f"ragbandit-{chore.__name__}", daemon=True)
    thread.start()
    return thread


def _work(
    consumers: Consumers, context: tasks.Context, *, threads: Mapping[str, int], queues: Sequence[str], burst: bool
) -> None:
    signals = Signals()

    def cut_off() -> None:
        if context.loop is not None:
            context.loop.interrupt()

    # In a burst one after the other, as what is answered is then to be learned.
    names = [name for name in QUEUES if name in queues]
    for group in [[name] for name in names] if burst else [names]:
        if burst and "judge" in group:
            _ring_for_judgements(context)
        for name in group:
            consumers.start(QUEUES[name], threads=threads[name], burst=burst)
        consumers.wait_for_signal(signals, cut_off=cut_off)
