"""Worker process, which finishes its running jobs on SIGTERM; supervisor of `ragbandit up`."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Final

import yaml

from ragbandit.client import Client
from ragbandit.router.config.loading import CLASS_FOLDER, LoadedSettings, class_folder
from ragbandit.router.config.named_sections import errors_of, section_of
from ragbandit.router.config.settings import DEFAULT, Settings
from ragbandit.router.policies.settings_check import check_policy
from ragbandit.router.queue.jobs import RedisJobs, connect
from ragbandit.router.queue.presence import card_of, keep_present
from ragbandit.router.queue.redis_server import RedisServer, redis_url
from ragbandit.router.queue.streams import StreamWriter
from ragbandit.router.serving.setup.bootstrap import judge_sample, make_learner, open_database
from ragbandit.router.serving.setup.requirements import check_port, hold, hold_store, prepare_data_dir
from ragbandit.router.storage.access.shared_secrets import shared_secret
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.judgements import DayBudget, ScoreQueue
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.telemetry import make_tracing
from ragbandit.router.telemetry.routines import Routine
from ragbandit.shared.child_process import Child, die_with_parent, end
from ragbandit.shared.errors import ConfigError, NotReady, StoreError
from ragbandit.shared.files import private_folder, write_file
from ragbandit.shared.types import PolicyLabel
from ragbandit.strategies.base import Retriever
from ragbandit.strategies.retrievers.reranking import NoRetriever
from ragbandit.workers import housekeeping, tasks
from ragbandit.workers.context import Context, Judging
from ragbandit.workers.housekeeping import next_learn
from ragbandit.workers.judge.checks import check_room, judge_template
from ragbandit.workers.judge.judge import Judge
from ragbandit.workers.scoring import next_score
from ragbandit.workers.threads import LOOK_S, REPLY_S, Consumer, EventLoop, Job, Signals, wait_for_signal
from ragbandit.workers.wiring.generators import (
    check_arms,
    concurrency_of,
    model_name,
    names_in_use,
    needs_workers,
    worker_arms,
)
from ragbandit.workers.wiring.loading import runs_at_once
from ragbandit.workers.wiring.retrievers import kind_of, with_retriever


def load_judge(context: Context) -> int:
    """Load the judge. Returns how many answers it scores at the same time. Raises ConfigError."""
    settings, store = context.settings, context.store
    chosen = settings.judge
    if chosen.generator is None:
        raise ConfigError("there is no judge", field="judge.generator", remedy="set it, or leave out --queue judge")
    template = judge_template(chosen.templates)
    arms_use_local = any(settings.named_generators[name].name == "local" for name in names_in_use(settings)[0])
    model = context.loader.generator(chosen.generator, section="judge.generator", models=2 if arms_use_local else 1)
    at_once = concurrency_of(chosen.generator, wanted=chosen.concurrency, generator=model)
    check_room(settings, template=template, generator=model)
    judge = Judge(
        chosen,
        generator=model,
        template=template,
        retriever=_judge_retriever(settings),
        model=model_name(chosen.generator),
        secret=shared_secret(store.database, name="judge", now=time.time()),
    )
    budget = DayBudget(
        judgements=chosen.judgements_per_day, tokens=chosen.tokens_per_day, dollars=chosen.dollars_per_day
    )
    queue = ScoreQueue(store, kind="judge", budget=budget, expire_s=chosen.expire_s, attempts=chosen.attempts)
    queue.new_budget(now=time.time())
    context.judging = Judging(judge, queue=queue)
    context.loop = context.loop or EventLoop()
    return at_once


def _judge_retriever(settings: Settings) -> Retriever:
    """A retriever that arms use, without its reranker: the default one if an arm uses it, else the first by name."""
    name = min(names_in_use(settings)[1], key=lambda name: (name != DEFAULT, name), default=None)
    if name is None:
        return NoRetriever()
    with errors_of(section_of("retriever", name), kind="retriever"):
        return kind_of(with_retriever(settings, name)).open()


log = logging.getLogger("ragbandit.worker")

BEAT_S: Final = 5.0
QUEUES = ("answer", "judge", "learn")


def run_worker(
    settings: Settings, *, queues: Sequence[str], burst: bool = False, heartbeat: Path | None = None
) -> None:
    """Do the jobs of these queues until SIGTERM or SIGINT, or with `burst` until they are empty."""
    die_with_parent()
    check_arms(settings)
    check_policy(settings)
    label = PolicyLabel(settings.policy.label)
    database = open_database(settings, make=False)
    jobs = RedisJobs(connect(redis_url(settings), timeout_s=LOOK_S + REPLY_S))
    has_check = settings.reward.check is not None
    store = DecisionStore(database, label=label, text=settings.log.text, judge=judge_sample(settings), check=has_check)
    telemetry = settings.telemetry
    tracing = make_tracing(enabled=telemetry.enabled, service=telemetry.service_name, process="worker")
    context = Context(settings=settings, store=store, ledger=Ledger(database, label=label), jobs=jobs, tracing=tracing)
    threads = {"answer": 1, "judge": 1, "learn": 1}
    if "answer" in queues and settings.worker_arms:
        context.arms = context.loader.load(worker_arms(settings))
        context.loop = EventLoop()
        threads["answer"] = runs_at_once(context.arms.values())
        context.streams = StreamWriter(jobs.client, outage=jobs.outage)
    if "judge" in queues:
        threads["judge"] = load_judge(context)
    at_once = {name: count for name, count in threads.items() if name in queues}
    consumers = [consumer_of(name, context, threads=count) for name, count in at_once.items()]
    with contextlib.ExitStack() as running:
        running.callback(tracing.close)
        running.callback(database.close)
        running.callback(jobs.close)
        if context.streams is not None:
            running.callback(context.streams.close)
        running.callback(context.close)
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
        running.callback(
            keep_present(jobs.client, card, busy=lambda: {each.name: each.busy for each in consumers}).close
        )
        for routine in routines:  # ExitStack calls `stop` of all before the first `close`, which waits
            running.callback(routine.stop)
        log.info("worker ready", extra={"action": "ready", "queues": ",".join(queues), "at_once": at_once})
        running.enter_context(beating(heartbeat))
        running.enter_context(store_watched(database, end=lambda: os.kill(os.getpid(), signal.SIGTERM)))
        _work(consumers, context, burst=burst)


@contextlib.contextmanager
def store_watched(database: Database, *, end: Callable[[], object]) -> Iterator[None]:
    """During the block, call `end` every second while the database's path does not name the open file; then raise."""
    faults: list[StoreError] = []

    def look() -> None:
        try:
            database.check_file()
        except StoreError as error:
            if not faults:
                log.critical("%s", error, extra={"action": "store_lost"})
            faults.append(error)
            end()

    watch = Routine("compare the database's file with its path", look, every_s=1.0).start()
    try:
        yield
    finally:
        watch.close()
    if faults:
        raise faults[0]


def consumer_of(name: str, context: Context, *, threads: int) -> Consumer:
    sweep_s = context.settings.workers.sweep_interval_s
    looks: dict[str, tuple[Callable[[bool], Job | None], float]] = {
        "answer": (lambda _woken: tasks.next_answer(context), LOOK_S),
        "judge": (lambda _woken: next_score(context, context.judging), min(LOOK_S, sweep_s)),
        "learn": (partial(next_learn, context), sweep_s),
    }
    look, every_s = looks[name]
    return Consumer(name=name, threads=threads, look=look, jobs=context.jobs, stopping=context.ending, every_s=every_s)


def _work(consumers: Sequence[Consumer], context: Context, *, burst: bool) -> None:
    signals = Signals()

    def cut_off() -> None:
        if context.loop is not None:
            context.loop.interrupt()

    # In a burst the queues run one after another, so that the answers of this burst are judged and learned too.
    groups = [[consumer] for consumer in consumers] if burst else [consumers]
    for group in groups:
        for consumer in group:
            consumer.start(burst=burst)
        wait_for_signal(group, signals, cut_off=cut_off)


@contextlib.contextmanager
def beating(file: Path | None) -> Iterator[None]:
    """Touch the file every BEAT_S seconds during the block, and remove it at the end. Raises ConfigError.

    The age of the file shows a supervisor whether the worker runs. Database and Redis are not tried, because a worker
    survives their outages. A worker whose event loop is blocked ends by itself (docs/operations.md).
    """
    if file is None:
        yield
        return
    try:
        file.touch()
    except OSError as error:
        remedy = "name a file in a writable folder"
        raise ConfigError(f"{file} cannot be written: {error.strerror}", field="heartbeat", remedy=remedy) from error

    def beat() -> None:
        with contextlib.suppress(OSError):  # for example a full disk: the next touch may succeed
            file.touch()

    beats = Routine("touch the heartbeat file", beat, every_s=BEAT_S).start()
    try:
        yield
    finally:
        beats.close()
        file.unlink(missing_ok=True)


#: name of the configuration file of the child processes, in data_dir
ACCEPTED = "accepted.yaml"


class Supervisor:
    """Runs the whole service on one machine: Redis, the HTTP service, and workers as child processes."""

    def __init__(self, loaded: LoadedSettings, *, database: Database | None = None) -> None:
        """database: the run ends if the file of this store is removed. None if no file should be watched."""
        self._database = database
        self.settings = settings = loaded.settings
        data = Path(settings.data_dir)
        folder = data / "logs"
        prepare_data_dir(settings)
        private_folder(folder)
        self.redis = RedisServer(settings) if settings.redis_url is None else None
        self._loaded = loaded
        self._accepted = data / ACCEPTED
        config = ["--config", str(self._accepted)]
        commands = [("api", ["serve", *config])]
        count = settings.workers.answer if needs_workers(settings) else 0
        commands += [(f"answer-{number}", ["worker", "--queue", "answer", *config]) for number in range(1, count + 1)]
        if settings.judge.generator is not None:
            commands.append(("judge", ["worker", "--queue", "judge", *config]))
        commands.append(("learn", ["worker", "--queue", "learn", *config]))
        # The children read a copy of the configuration in another folder, but import classes from the user's folder.
        environment = {} if loaded.file is None else {CLASS_FOLDER: class_folder(loaded.file)}
        self.children = [
            Child(name, arguments=arguments, log_folder=folder, environment=environment) for name, arguments in commands
        ]
        self._stop = threading.Event()
        self._lock: IO[bytes] | None = None

    def start(self) -> None:
        for name in ("port", "admin_port"):
            if getattr(self.settings.server, name) == 0:
                message = "port 0 lets the system choose one, and clients would not know it"
                raise ConfigError(message, field=f"server.{name}", remedy="set a port from 1 to 65535")
        lock = Path(self.settings.data_dir) / "up.lock"
        self._lock = hold(lock, process="ragbandit up", at=self.settings.server.url, field="data_dir")
        with hold_store(self.settings, at=self.settings.server.url) or contextlib.nullcontext():
            pass  # if a `serve` without `up` holds the store, this fails here and not in the log of a child
        check_port(self.settings.server)
        self._write_config()
        if self.redis is not None:
            self.redis.start()
        for child in self.children:
            child.start()

    def wait_ready(self, *, timeout_s: float = 120.0) -> None:
        give_up = time.monotonic() + timeout_s
        with Client(self.settings.server.admin_url, timeout_s=5) as client:
            while not client.ready():
                api = self.children[0]
                if api.restarts >= 3 or time.monotonic() > give_up:
                    reason = api.death or f"its last log lines: {api.last_lines()}"
                    raise NotReady(f"the service did not start: {reason}", remedy=f"see {api.log_file}")
                self._tend()
                self._stop.wait(0.2)

    def run(self) -> None:
        """Keep the children and Redis running until `stop` or a signal."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stop.set())
        while not self._stop.wait(0.2):
            self._tend()

    def _write_config(self) -> None:
        """Write the configuration file of the children, without values from the environment, which they inherit."""
        file = self._loaded.file
        origin = "no file" if file is None else ascii(str(file.absolute()))
        head = f"# `ragbandit up` took this over from {origin}: edit that.\n"
        # In ASCII, because PyYAML cannot read some letters that it writes.
        text = (head + yaml.safe_dump(dict(self._loaded.tree), sort_keys=False)).encode("ascii")
        try:
            write_file(self._accepted, text, durable=False)
        except OSError as error:
            message = f"{self._accepted} cannot be written: {error.strerror}"
            raise ConfigError(message, field="data_dir", remedy="give a folder that can be written") from error

    def stop(self) -> None:
        self._stop.set()
        api, *workers = self.children
        end([api])
        end(workers)
        if self.redis is not None:
            self.redis.stop()
        if self._lock is not None:
            self._lock.close()

    def _tend(self) -> None:
        if self._database is not None:
            self._database.check_file(every_s=1.0)
        if self.redis is not None and not self._stop.is_set():
            self.redis.tend()
        for child in self.children:
            child.tend()
