"""A worker process: load everything once, take jobs, drain on SIGTERM."""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from redis.exceptions import RedisError
from rq import Queue, SimpleWorker

from router.bootstrap import check_policy, make_learner, open_database
from router.embedded import die_with_parent, redis_url
from router.errors import ConfigError
from router.jobs import ANSWER_QUEUE, LEARN_QUEUE, RedisJobs, connect
from router.ledger import Ledger
from router.settings import GeneratorSettings, Settings
from router.store import Store
from router.types import PolicyLabel
from router.weights import resolve
from strategies import make_arms
from strategies.base import Generator, Need
from strategies.cached import CachedGenerator
from strategies.local import LocalGenerator
from strategies.openai_generator import OpenAiGenerator
from strategies.openai_wire import OpenAiOptions
from strategies.scripted import ScriptedGenerator
from workers import tasks
from workers.retrieval import RETRIEVERS, index_folder, make_retriever

if TYPE_CHECKING:
    import redis

__all__ = [
    "QUEUES",
    "RETRIEVERS",
    "check_arms",
    "die_with_parent",
    "index_folder",
    "make_generator",
    "make_retriever",
    "offered",
    "run_worker",
    "set_up_log",
]

log = logging.getLogger("ragbandit.worker")

QUEUES = {"answer": ANSWER_QUEUE, "learn": LEARN_QUEUE}
#: between two attempts to reach Redis, seconds
REDIS_PAUSE_S = 0.5


class _Worker(SimpleWorker):  # type: ignore[misc] # RQ has no types
    """RQ's worker without forking (a fork would load the models for every job), patient for seconds, not minutes."""

    max_connection_wait_time = 2.0


def offered(settings: GeneratorSettings) -> frozenset[Need]:
    """What the configured generator can do, said by its class: nothing is loaded."""
    if settings.name == "scripted":
        return ScriptedGenerator.capabilities
    if settings.name == "openai":
        return OpenAiGenerator.capabilities | ({"logprobs"} if settings.openai.logprobs else set())
    return LocalGenerator.capabilities


def make_generator(settings: GeneratorSettings) -> Generator:
    """The configured generator, loaded, behind its cache if it has one. Raises ConfigError.

    With generator.openai.probe it waits for the server, and not inside an event loop.
    """
    made = _GENERATORS[settings.name](settings)
    if settings.cache is None:
        return made
    return CachedGenerator(made, folder=settings.cache, version=settings.model_dump_json(exclude={"cache", "threads"}))


def _make_scripted(settings: GeneratorSettings) -> Generator:
    return ScriptedGenerator(settings.script, seconds=settings.script_s)


def _make_local(settings: GeneratorSettings) -> Generator:
    weights = resolve(settings.model, setting="generator.model")
    return LocalGenerator(
        weights.folder,
        name=settings.model,
        precision=settings.precision,
        device=settings.device,
        threads=settings.threads,
        context_tokens=settings.context_tokens,
    )


def _make_openai(settings: GeneratorSettings) -> Generator:
    given = settings.openai.model_dump(exclude={"probe", "prices"})
    prices = {model: (read, written) for model, (read, written) in settings.openai.prices.items()}
    generator = OpenAiGenerator(
        settings.model, options=OpenAiOptions(**given, prices=prices), context_tokens=settings.context_tokens
    )
    if settings.openai.probe:
        asyncio.run(generator.probe())
    return generator


#: generator.name -> its maker
_GENERATORS: Mapping[str, Callable[[GeneratorSettings], Generator]] = MappingProxyType(
    {"local": _make_local, "openai": _make_openai, "scripted": _make_scripted}
)


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
        make_arms(arm_params(settings), capabilities=offered(settings.generator))


def run_worker(settings: Settings, *, queues: Sequence[str], burst: bool = False) -> None:
    """Take jobs from these queues until SIGTERM or SIGINT; with burst, until they are empty.

    Raises ConfigError or StoreError before the first job if something is missing.
    """
    die_with_parent()
    check_arms(settings)
    check_policy(settings)
    label = PolicyLabel(settings.policy.label)
    database = open_database(settings)
    client = connect(redis_url(settings))
    jobs = RedisJobs(client)
    context = tasks.Context(
        settings=settings, store=Store(database, label=label), ledger=Ledger(database, label=label), jobs=jobs
    )
    if "answer" in queues and settings.worker_arms:
        context.retriever = make_retriever(settings)
        context.generator = make_generator(settings.generator)
        context.arms = make_arms(arm_params(settings), capabilities=context.generator.capabilities)
        context.loop = tasks.LoopThread()
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
        context.close()
        if context.learner is not None:
            context.learner.close()
        database.close()


def _work(client: "redis.Redis", *, queues: Sequence[str], burst: bool) -> None:
    """Take jobs until told to stop. RQ's worker gives up when Redis goes; ours has models loaded, and waits for it."""
    stopping = threading.Event()
    while not stopping.is_set():
        for number in (signal.SIGINT, signal.SIGTERM):  # RQ puts its own in place while it works, and leaves them
            signal.signal(number, lambda *_: stopping.set())
        worker = None
        try:
            worker = _Worker([Queue(QUEUES[name], connection=client) for name in queues], connection=client)
            worker.work(burst=burst, logging_level="WARNING")
            return
        except RedisError as error:
            if worker is not None and worker._shutdown_requested_date is not None:  # noqa: SLF001 - RQ says it nowhere else
                return
            log.warning("Redis is gone: trying again", extra={"action": "redis", "reason": str(error)})
            stopping.wait(REDIS_PAUSE_S)


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
