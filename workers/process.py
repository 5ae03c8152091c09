"""A worker process: load everything once, take jobs, drain on SIGTERM."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ragbandit.router.config.settings import Settings
from ragbandit.router.jobs.listener import Listener
from ragbandit.router.jobs.processes import die_with_parent
from ragbandit.router.jobs.queue import ANSWER_QUEUE, LEARN_QUEUE, RedisJobs, connect
from ragbandit.router.jobs.redis_server import redis_url
from ragbandit.router.policies.checks import check_policy
from ragbandit.router.serving.bootstrap import make_learner, open_database
from ragbandit.router.storage.decisions import DecisionStore
from ragbandit.router.storage.ledger import Ledger
from ragbandit.router.types import PolicyLabel
from ragbandit.strategies.registry import make_arms
from ragbandit.workers import tasks
from ragbandit.workers.consumers import LOOK_S, REPLY_S, Signals, Takers
from ragbandit.workers.event_loop import LoopThread
from ragbandit.workers.wiring.arms import arm_params, check_arms
from ragbandit.workers.wiring.generators import _GENERATORS, _behind_cache, at_once
from ragbandit.workers.wiring.retrievers import RETRIEVERS, index_folder, make_retriever

__all__ = ["QUEUES", "RETRIEVERS", "die_with_parent", "index_folder", "make_retriever", "run_worker"]

log = logging.getLogger("ragbandit.worker")

QUEUES = {"answer": ANSWER_QUEUE, "learn": LEARN_QUEUE}
#: what a keeper is at is waited for that long
KEEPER_S = 5.0


def run_worker(settings: Settings, *, queues: Sequence[str], burst: bool = False) -> None:
    """Take jobs from these queues until SIGTERM or SIGINT; with burst, until they are empty.

    Several threads take questions, one takes what there is to learn. Raises ConfigError or StoreError before the
    first job if something is missing.
    """
    die_with_parent()
    check_arms(settings)
    check_policy(settings)
    label = PolicyLabel(settings.policy.label)
    database = open_database(settings)
    reach = partial(connect, redis_url(settings), timeout_s=float(LOOK_S + REPLY_S))
    jobs = RedisJobs(reach())
    context = tasks.Context(
        settings=settings, store=DecisionStore(database, label=label), ledger=Ledger(database, label=label), jobs=jobs
    )
    threads = _load_arms(context) if "answer" in queues and settings.worker_arms else 1
    if "learn" in queues:
        context.learner = make_learner(settings, database=database, jobs=jobs)
    tasks.bind(context)
    stop = threading.Event()
    keepers = [_started(keep, context, stop) for keep in (tasks.housekeeping, tasks.keep_marked)]
    listener = None if context.loop is None else Listener(reach(), partial(tasks.hear, context))
    log.info("ready", extra={"action": "ready", "queues": ",".join(queues), "at_once": threads})
    try:
        takers = Takers(reach, stopping=context.ending)
        _work(takers, context, threads={"answer": threads, "learn": 1}, queues=queues, burst=burst)
    finally:
        stop.set()
        if listener is not None:
            listener.close()
        for keeper in keepers:
            keeper.join(KEEPER_S)
        context.close()
        if context.learner is not None:
            context.learner.close()
        database.close()


def _load_arms(context: tasks.Context) -> int:
    """Everything that answering needs; the number of questions to work on at once."""
    settings = context.settings
    generator = _GENERATORS[settings.generator.name](settings.generator)
    context.retriever = make_retriever(settings)
    context.generator = _behind_cache(generator, settings=settings.generator)
    context.arms = make_arms(arm_params(settings), capabilities=context.generator.capabilities)
    context.loop = LoopThread()
    return at_once(settings, generator=generator)


def _started(
    keep: Callable[[tasks.Context, threading.Event], None], context: tasks.Context, stop: threading.Event
) -> threading.Thread:
    thread = threading.Thread(target=keep, args=(context, stop), name=f"ragbandit-{keep.__name__}", daemon=True)
    thread.start()
    return thread


def _work(
    takers: Takers, context: tasks.Context, *, threads: Mapping[str, int], queues: Sequence[str], burst: bool
) -> None:
    signals = Signals()

    def cut_off() -> None:
        if context.loop is not None:
            context.loop.interrupt()

    # In a burst one after the other, as what is answered is then to be learned.
    names = [name for name in QUEUES if name in queues]
    for group in [[name] for name in names] if burst else [names]:
        for name in group:
            takers.start(QUEUES[name], threads=threads[name], burst=burst)
        takers.wait_for_signal(signals, cut_off=cut_off)
