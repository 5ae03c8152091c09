"""A worker process: load everything once, take jobs, drain on SIGTERM."""

import asyncio
import importlib.util
import logging
import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from types import MappingProxyType

from ragbandit.router.config.settings import GeneratorSettings, Settings
from ragbandit.router.encoders.weights import at_hand, resolve
from ragbandit.router.errors import ConfigError, RagBanditError
from ragbandit.router.jobs.queue import ANSWER_QUEUE, LEARN_QUEUE, Listener, RedisJobs, connect
from ragbandit.router.jobs.redis_server import die_with_parent, end_with_parent, redis_url
from ragbandit.router.serving.bootstrap import check_policy, make_learner, open_database
from ragbandit.router.storage.decisions import Store
from ragbandit.router.storage.ledger import Ledger
from ragbandit.router.types import PolicyLabel
from ragbandit.strategies.base import Generator, Need
from ragbandit.strategies.generators.local import LocalGenerator
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator
from ragbandit.strategies.generators.openai_protocol import OpenAiOptions
from ragbandit.strategies.generators.response_cache import CachedGenerator
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.registry import make_arms
from ragbandit.workers import tasks
from ragbandit.workers.consumers import LOOK_S, REPLY_S, Signals, Takers
from ragbandit.workers.event_loop import LoopThread
from ragbandit.workers.wiring.retrievers import RETRIEVERS, check_reranker, index_folder, make_retriever

__all__ = [
    "QUEUES",
    "RETRIEVERS",
    "at_once",
    "check_arms",
    "check_generator",
    "die_with_parent",
    "generator_version",
    "index_folder",
    "make_generator",
    "make_retriever",
    "offered",
    "run_worker",
    "set_up_log",
]

log = logging.getLogger("ragbandit.worker")

QUEUES = {"answer": ANSWER_QUEUE, "learn": LEARN_QUEUE}
#: questions at once where the generator is scripted and nobody said how many
SCRIPTED_AT_ONCE = 8
#: settings of a server that change only whether and when it answers
_PATIENCE = {
    "attempt_s",
    "concurrency",
    "connect_s",
    "longest_pause_s",
    "pause_s",
    "probe",
    "read_s",
    "requests_per_minute",
    "retries",
    "tokens_per_minute",
}
#: generator.name -> the packages that it cannot do without; another name needs none
_PACKAGES: Mapping[str, tuple[str, ...]] = MappingProxyType({"local": ("torch", "transformers"), "openai": ("openai",)})
#: what a keeper is at is waited for that long
KEEPER_S = 5.0


def offered(settings: GeneratorSettings) -> frozenset[Need]:
    """What the configured generator can do, said by its class: nothing is loaded."""
    if settings.name == "scripted":
        return ScriptedGenerator.capabilities
    if settings.name == "openai":
        return OpenAiGenerator.capabilities | ({"logprobs"} if settings.openai.logprobs else set())
    return LocalGenerator.capabilities | ({"trained_tokens"} if settings.trained_tokens else set())


def make_generator(settings: GeneratorSettings) -> Generator:
    """The configured generator, loaded, behind its cache if it has one. Raises ConfigError.

    With generator.openai.probe it waits for the server, and not inside an event loop.
    """
    return _behind_cache(_GENERATORS[settings.name](settings), settings=settings)


def _behind_cache(generator: Generator, *, settings: GeneratorSettings) -> Generator:
    if settings.cache is None:
        return generator
    return CachedGenerator(generator, folder=settings.cache, version=generator_version(settings))


def generator_version(settings: GeneratorSettings) -> str:
    """The settings that decide what is answered at what price, as JSON: those of speed and patience are not in it."""
    beside: dict[str, bool | set[str]] = dict.fromkeys(("cache", "threads", "max_batch", "prefix_mb"), True)
    return settings.model_dump_json(exclude=beside | {"openai": _PATIENCE})


def _make_scripted(settings: GeneratorSettings) -> Generator:
    return ScriptedGenerator(settings.script, seconds=settings.script_s, context_tokens=settings.context_tokens)


def _make_local(settings: GeneratorSettings) -> Generator:
    weights = resolve(settings.model, setting="generator.model")
    return LocalGenerator(
        weights.folder,
        name=settings.model,
        precision=settings.precision,
        device=settings.device,
        threads=settings.threads,
        context_tokens=settings.context_tokens,
        trained_tokens=settings.trained_tokens,
        max_batch=settings.max_batch,
        prefix_mb=settings.prefix_mb,
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
    """Refuse unknown arms, wrong params, unmet needs and a reranker that is not there, without loading a model.

    Raises ConfigError.
    """
    for name, params in settings.arms.items():
        if params.get("run_by", "worker") not in ("worker", "caller"):
            raise ConfigError(
                f"{params['run_by']!r} is unknown", field=f"arms.{name}.run_by", remedy="worker or caller"
            )
    if settings.worker_arms:
        make_arms(arm_params(settings), capabilities=offered(settings.generator))
        check_reranker(settings)


def check_generator(settings: Settings, *, fetch: bool) -> None:
    """Refuse a generator that no worker here could make, without loading a model. Raises ConfigError.

    fetch: weights that are not at hand are fetched and converted, and generator.openai.probe asks the server. Without,
    nobody is asked, and nothing is said of a machine that has not got the generator's packages: no worker runs there.
    """
    chosen = settings.generator
    missing = [name for name in _PACKAGES.get(chosen.name, ()) if importlib.util.find_spec(name) is None]
    if not settings.worker_arms or (missing and not fetch):
        return
    if missing:
        extra = "models" if chosen.name == "local" else chosen.name
        raise ConfigError(f"the package {missing[0]} is missing", remedy=f"pip install 'ragbandit[{extra}]'")
    if chosen.name != "local":
        quiet = chosen.openai.model_copy(update={"probe": chosen.openai.probe and fetch})
        _GENERATORS[chosen.name](chosen.model_copy(update={"openai": quiet}))
    elif not at_hand(chosen.model, setting="generator.model") and fetch:
        # In a process of its own: what conversion takes of memory goes with it.
        spawned = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawned, initializer=_begin_fetching) as fetching:
            try:
                fetching.submit(resolve, chosen.model, setting="generator.model").result()
            except RagBanditError:
                raise
            except BrokenProcessPool as error:
                raise ConfigError(
                    f"the process that made {chosen.model!r} ready was killed",
                    field="generator.model",
                    remedy="most often memory ran out: give a model that is in safetensors already, or a smaller one",
                ) from error
            except Exception as error:  # of whatever reads a file that somebody made
                raise ConfigError(
                    f"{chosen.model!r} cannot be made ready: {type(error).__name__}: {error}",
                    field="generator.model",
                    remedy="give another file or folder",
                ) from error


def _begin_fetching() -> None:
    """Of the process that fetches weights: it does not outlive `up`."""
    end_with_parent()
    set_up_log()


def at_once(settings: Settings, *, generator: Generator) -> int:
    """How many questions one worker process works on: as configured, else as many as its generator takes at once."""
    if settings.workers.concurrency is not None:
        return settings.workers.concurrency
    if settings.generator.name == "scripted":
        return SCRIPTED_AT_ONCE
    if settings.generator.name == "openai":
        return settings.generator.openai.concurrency
    return int(getattr(generator, "max_batch", 1))


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
        settings=settings, store=Store(database, label=label), ledger=Ledger(database, label=label), jobs=jobs
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


class _Plain(logging.Formatter):
    """time level logger: message, then action and the other facts as key=value."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The line without the traceback, which comes below it."""
        line = super().formatMessage(record)
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
