"""A worker process: load everything once, take jobs, drain on SIGTERM."""

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from redis.exceptions import RedisError
from rq import Queue, SimpleWorker

from router.bootstrap import make_learner, open_database
from router.config import GeneratorSettings, Settings
from router.embedded import redis_url
from router.errors import ConfigError
from router.jobs import ANSWER_QUEUE, LEARN_QUEUE, RedisJobs, connect
from router.ledger import Ledger
from router.store import Store
from router.types import PolicyLabel
from router.weights import resolve
from strategies import make_arms
from strategies.base import Generator, Retriever
from workers import tasks

if TYPE_CHECKING:
    import redis

__all__ = ["QUEUES", "check_arms", "die_with_parent", "make_generator", "make_retriever", "run_worker", "set_up_log"]

log = logging.getLogger("ragbandit.worker")

QUEUES = {"answer": ANSWER_QUEUE, "learn": LEARN_QUEUE}
#: between two attempts to reach Redis, seconds
REDIS_PAUSE_S = 0.5
#: set by the supervisor for its children; outside the prefix, since it is no setting
PARENT_VARIABLE = "_RAGBANDIT_PARENT"


class _Worker(SimpleWorker):  # type: ignore[misc] # RQ has no types
    """RQ's worker without forking (a fork would load the models for every job), patient for seconds, not minutes."""

    max_connection_wait_time = 2.0


def make_generator(settings: GeneratorSettings) -> Generator:
    """The configured generator, loaded. Raises ConfigError."""
    if settings.name == "scripted":
        from strategies.scripted import ScriptedGenerator

        return ScriptedGenerator(settings.script, seconds=settings.script_s)
    from strategies.local import LocalGenerator

    weights = resolve(settings.model, setting="generator.model")
    return LocalGenerator(
        weights.folder,
        name=settings.model,
        precision=settings.precision,
        device=settings.device,
        threads=settings.threads,
        context_tokens=settings.context_tokens,
    )


def index_folder(settings: Settings, *, name: str | None = None) -> Path:
    """Where an index lies: the configured one, or another by name or absolute path."""
    given = Path(name or settings.retriever.index)
    return given if given.is_absolute() else Path(settings.data_dir) / "indexes" / given


def make_retriever(settings: Settings) -> Retriever:
    """The configured retriever, opened. Raises ConfigError if its index is missing."""
    from strategies.retrievers.bm25 import Bm25Retriever

    return Bm25Retriever(index_folder(settings))


def arm_params(settings: Settings) -> dict[str, dict[str, object]]:
    """The arms that our workers run, without the router's own keys."""
    return {
        name: {key: value for key, value in params.items() if key != "run_by"}
        for name, params in settings.worker_arms.items()
    }


def check_arms(settings: Settings) -> None:
    """Refuse unknown arms, wrong params and unmet needs, without loading a model. Raises ConfigError."""
    for name, params in settings.arms.items():
        if params.get("run_by", "worker") not in ("worker", "caller"):
            raise ConfigError(
                f"{params['run_by']!r} is unknown", field=f"arms.{name}.run_by", remedy="worker or caller"
            )
    if settings.worker_arms:
        # Both generators offer the same today; one that offers more will say so without being loaded.
        make_arms(arm_params(settings), capabilities=frozenset({"completion", "stop"}))


def run_worker(settings: Settings, *, queues: Sequence[str], burst: bool = False) -> None:
    """Take jobs from these queues until SIGTERM or SIGINT; with burst, until they are empty.

    Raises ConfigError or StoreError before the first job if something is missing.
    """
    die_with_parent()
    check_arms(settings)
    label = PolicyLabel(settings.policy.label)
    database = open_database(settings)
    client = connect(redis_url(settings))
    jobs = RedisJobs(client)
    context = tasks.Context(
        settings=settings, store=Store(database, label=label), ledger=Ledger(database, label=label), jobs=jobs
    )
    if "answer" in queues:
        context.retriever = make_retriever(settings)
        context.generator = make_generator(settings.generator)
        context.arms = make_arms(arm_params(settings), capabilities=context.generator.capabilities)
    if "learn" in queues:
        context.learner = make_learner(settings, database=database, jobs=jobs)
    tasks.bind(context)
    stop = threading.Event()
    keeper = threading.Thread(target=tasks.housekeeping, args=(context, stop), name="ragbandit-keeper", daemon=True)
    keeper.start()
    log.info("ready", extra={"action": "ready", "queues": ",".join(queues)})
    try:
        _work(client, queues=queues, burst=burst)
    finally:
        stop.set()
        keeper.join(5)
        if context.learner is not None:
            context.learner.close()
        database.close()


def _work(client: "redis.Redis", *, queues: Sequence[str], burst: bool) -> None:
    """Take jobs until told to stop. RQ's worker gives up when Redis goes; ours has models loaded, and waits for it."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # RQ puts its own in place while it works
        signal.signal(number, lambda *_: stopping.set())
    while not stopping.is_set():
        worker = None
        try:
            worker = _Worker([Queue(QUEUES[name], connection=client) for name in queues], connection=client)
            worker.work(burst=burst, logging_level="WARNING")
            return
        except RedisError as error:
            if worker is not None and worker._stop_requested:  # noqa: SLF001 - RQ says it nowhere else
                return
            log.warning("Redis is gone: trying again", extra={"action": "redis", "reason": str(error)})
            stopping.wait(REDIS_PAUSE_S)


def die_with_parent() -> None:
    """On Linux, a child of `ragbandit up` is told to end when the supervisor is gone, however it went."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or not sys.platform.startswith("linux"):
        return
    parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before we asked
        raise SystemExit(0)


class _Plain(logging.Formatter):
    """time level logger: message, then action and the other facts as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        known = logging.LogRecord("", 0, "", 0, "", (), None).__dict__.keys() | {"message", "asctime"}
        facts = " ".join(
            f"{k}={v!r}" if " " in str(v) else f"{k}={v}" for k, v in vars(record).items() if k not in known
        )
        return f"{line} {facts}" if facts else line


def set_up_log(level: str = "INFO") -> None:
    """Our log to standard error; other libraries' from WARNING on."""
    handler = logging.StreamHandler()
    formatter = _Plain("%(asctime)s %(levelname)s %(name)s: %(message)s")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("ragbandit").setLevel(level)
