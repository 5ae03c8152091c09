"""A worker process: it does the jobs of its queues until a signal, and finishes the running ones."""

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.settings_check import check_policy
from ragbandit.router.queue.jobs import RedisJobs, connect_redis
from ragbandit.router.queue.presence import make_card, start_presence
from ragbandit.router.queue.stream_writer import StreamWriter
from ragbandit.router.queue.streams import STREAM_NEWS
from ragbandit.router.serving.setup.bootstrap import make_decision_store, make_learner, open_database
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.telemetry import make_tracing
from ragbandit.shared.processes.this_process import die_with_parent
from ragbandit.shared.types import DecisionId, PolicyLabel
from ragbandit.workers.chores import start_chores
from ragbandit.workers.chores.exchanges import stop_cancelled_runs
from ragbandit.workers.processes.consumers import LOOK_S, REPLY_S, Consumer, Job, Signals, wait_for_signal
from ragbandit.workers.processes.watches import touch_heartbeat, watch_store
from ragbandit.workers.running.answer_job import MARGIN_S
from ragbandit.workers.running.context import Context
from ragbandit.workers.running.learning import next_learn
from ragbandit.workers.running.queued import next_answer
from ragbandit.workers.scoring.jobs import next_score
from ragbandit.workers.scoring.judge_loading import load_judge
from ragbandit.workers.scoring.scorers import Judging
from ragbandit.workers.setup.generators import check_worker_arms, worker_arms
from ragbandit.workers.setup.loading import runs_at_once

log = logging.getLogger("ragbandit.worker")

QUEUES: Final = ("answer", "judge", "learn")
#: seconds over the time budget of a run after which a worker that is ending cuts the run off
MORE_S: Final = MARGIN_S + 5.0


def run_worker(
    settings: Settings, *, queues: Sequence[str], burst: bool = False, heartbeat: Path | None = None
) -> None:
    """Do the jobs of these queues until SIGTERM or SIGINT, or with `burst` until they are empty."""
    die_with_parent()
    check_worker_arms(settings)
    check_policy(settings)
    database = open_database(settings, make=False)
    jobs = RedisJobs(connect_redis(settings.redis, timeout_s=LOOK_S + REPLY_S))
    store, ledger = make_decision_store(settings, database), Ledger(database, label=PolicyLabel(settings.policy.label))
    tracing = make_tracing(enabled=settings.telemetry.enabled, process="worker")
    context = Context(settings=settings, store=store, ledger=ledger, jobs=jobs, tracing=tracing)
    threads, judging = {"answer": 1, "judge": 1, "learn": 1}, None
    if "answer" in queues and settings.worker_arms:
        context.arms = context.loader.load(worker_arms(settings))
        context.open_loop()
        threads["answer"] = runs_at_once(context.arms.values())
        context.streams = StreamWriter(jobs.client, outage=jobs.outage)
    if "judge" in queues:
        judging, threads["judge"] = load_judge(context)
    at_once = {name: count for name, count in threads.items() if name in queues}
    consumers = [
        make_consumer(name, context, jobs=jobs, threads=count, judging=judging) for name, count in at_once.items()
    ]
    with contextlib.ExitStack() as running:
        running.callback(tracing.close)
        running.callback(database.close)
        running.callback(jobs.close)
        if context.streams is not None:
            running.callback(context.streams.close)
        running.callback(context.close)
        running.callback(context.ending.set)
        if "learn" in queues:
            context.learner = make_learner(settings, ledger, jobs=jobs)
        routines = start_chores(context)
        for routine in routines:
            running.callback(routine.close)
        if context.loop is not None:
            running.callback(jobs.listen(partial(handle_notification, context)).close)
        retrievers = ", ".join(sorted({arm.retriever.name for arm in context.arms.values()}))
        card = make_card(role="worker", threads=at_once, retriever=retrievers)
        running.callback(
            start_presence(jobs.client, card, busy=lambda: {each.name: each.busy for each in consumers}).close
        )
        for routine in routines:  # ExitStack calls `stop` of all before the first `close`, which waits
            running.callback(routine.stop)
        log.info("worker ready", extra={"action": "ready", "queues": ",".join(queues), "at_once": at_once})
        running.enter_context(touch_heartbeat(heartbeat))
        running.enter_context(watch_store(database, end=lambda: os.kill(os.getpid(), signal.SIGTERM)))
        _run_consumers(consumers, context, burst=burst)


def handle_notification(context: Context, notification: str) -> None:
    """Handle "cancel:<id>", which stops a run, and "stream:<id>", which makes a run send its answer while it runs."""
    kind, _, key = notification.partition(":")
    if kind == STREAM_NEWS and context.streams is not None:
        context.streams.begin_writing(DecisionId(key))
    if kind == "cancel" and key in context.active_runs.running_ids():
        stop_cancelled_runs(context)


def make_consumer(
    name: str, context: Context, *, jobs: RedisJobs, threads: int, judging: Judging | None = None
) -> Consumer:
    sweep_s = context.settings.workers.sweep_interval_s
    looks: dict[str, tuple[Callable[[bool], Job | None], float]] = {
        "answer": (lambda _woken: next_answer(context), LOOK_S),
        "judge": (lambda _woken: next_score(context, judging), min(LOOK_S, sweep_s)),
        "learn": (partial(next_learn, context), sweep_s),
    }
    look, every_s = looks[name]
    return Consumer(name=name, threads=threads, claim_next=look, jobs=jobs, stopping=context.ending, every_s=every_s)


def _run_consumers(consumers: Sequence[Consumer], context: Context, *, burst: bool) -> None:
    signals = Signals()

    def cut_off() -> None:
        if context.loop is not None:
            context.loop.interrupt()

    # In a burst the queues run one after another, so that the answers of this burst are judged and learned too.
    groups = [[consumer] for consumer in consumers] if burst else [consumers]
    for group in groups:
        for consumer in group:
            consumer.start(burst=burst)
        wait_for_signal(group, signals, cut_off=cut_off, most_s=context.settings.budget.seconds + MORE_S)
