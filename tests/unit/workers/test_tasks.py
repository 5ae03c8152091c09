"""Worker parts around an arm: its event loop, its clients, and questions that kill workers."""

import asyncio
import io
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import delete

from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import ConfigError, QueueError, StoreError
from ragbandit.router.jobs.outage import Outage
from ragbandit.router.serving import cancellation
from ragbandit.router.storage.database import Database
from ragbandit.router.storage.decisions import DecisionStore
from ragbandit.router.storage.tables import outcomes
from ragbandit.router.types import CallFailed, Cost, Decision, DecisionId, Query
from ragbandit.strategies.generators.local import LocalGenerator
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.registry import make_arms
from ragbandit.strategies.retrievers.memory import MemoryRetriever
from ragbandit.workers import housekeeping, tasks
from ragbandit.workers.active_runs import ActiveRuns
from ragbandit.workers.consumers import Signals
from ragbandit.workers.event_loop import EventLoop
from ragbandit.workers.log_setup import _Plain
from ragbandit.workers.wiring.arms import check_arms
from ragbandit.workers.wiring.generators import check_generator, concurrency, make_generator, offered
from ragbandit.workers.wiring.retrievers import make_retriever


@pytest.fixture
def loop():
    made = EventLoop()
    yield made
    made.close()


def test_all_jobs_share_one_loop(loop):
    """Every job's coroutine runs on the same loop, in a thread that is not the caller's."""

    async def where():
        return asyncio.get_running_loop(), threading.current_thread()

    assert loop.run(where()) == loop.run(where())
    assert loop.run(where())[1] is not threading.current_thread()


def test_what_a_coroutine_raises_reaches_the_job(loop):
    """An error comes out of `run`, and the next coroutine is served."""

    async def fail():
        raise KeyError("k")

    with pytest.raises(KeyError):
        loop.run(fail())
    assert loop.run(asyncio.sleep(0, "next")) == "next"


def test_an_interrupted_wait_cancels_the_coroutine(loop):
    """RQ's timeout is a signal that raises in the main thread: the coroutine it waited for is cancelled."""
    cancelled = threading.Event()

    async def hang():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupt(*_):
        raise InterruptedError("RQ's timeout")

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(InterruptedError):
            loop.run(hang())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert cancelled.wait(5)


def test_closing_cancels_what_still_runs():
    """A coroutine left behind is cancelled, the thread ends, and closing again does nothing."""
    loop, cancelled = EventLoop(), threading.Event()

    async def hang():
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    kept = []

    async def leave_behind():
        kept.append(asyncio.create_task(hang()))
        await asyncio.sleep(0)

    loop.run(leave_behind())
    loop.close()
    loop.close()
    assert cancelled.is_set()
    assert "ragbandit-loop" not in {thread.name for thread in threading.enumerate()}


def test_the_scripted_generator_has_the_room_that_is_configured():
    """What an error about a prompt that is too long advises, helps: more context_tokens."""
    for room in (300, 9000):
        settings = Settings(generator={"name": "scripted", "context_tokens": room}).generator
        assert make_generator(settings).context_tokens == room


def test_a_bare_arm_check_loads_no_model():
    """What a generator can do is read from its class; an arm that needs more is refused before anything is loaded."""
    settings = Settings(generator={"name": "local", "model": "no/such-model"})

    check_arms(settings)
    assert offered(settings.generator) == LocalGenerator.capabilities
    assert offered(Settings(generator={"name": "scripted"}).generator) == ScriptedGenerator.capabilities
    needy = {"needy": {"class": f"{__name__}:NeedyArm"}}
    with pytest.raises(ConfigError, match="needs trained_tokens"):
        check_arms(settings.model_copy(update={"arms": needy}))


PROGRAM = """
import sys
from ragbandit.router.errors import ConfigError
from ragbandit.router.config.settings import Settings
from ragbandit.workers.wiring.generators import check_generator
if __name__ == "__main__":
    try:
        check_generator(Settings(generator={"model": sys.argv[1]}), fetch=True)
    except ConfigError as error:
        print(error)
    print("torch" in sys.modules)
"""


FETCHING = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from ragbandit.workers.wiring.generators import _begin_fetching
if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_fetching) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 60).result()
"""


def test_no_model_is_loaded_to_check_it(tmp_path):
    """Weights are looked for, and the hub is asked, in a process of its own; what was wrong there is said here."""
    (tmp_path / "program.py").write_text(PROGRAM)
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    here = {"XDG_CACHE_HOME": str(tmp_path), "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"} | here

    def said(model):
        command = [sys.executable, str(tmp_path / "program.py"), model]
        environ = environment | {"PYTHONPATH": str(Path(__file__).parents[3])}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert said(str(folder)) == ["False"]
    (word, torch) = said("no/such-model")
    assert word.startswith("generator.model: found no weights for 'no/such-model'")
    assert "http://127.0.0.1:9 did not answer" in word
    assert torch == "False"


def test_weights_that_cannot_be_read_are_said_with_their_setting(tmp_path):
    """A file that only looks like a model is a wrong setting, not a traceback of whatever reads it."""
    (tmp_path / "x.gguf").write_bytes(b"GGUFxxxx")
    with pytest.raises(ConfigError, match=r"x\.gguf' cannot be made ready: .*give another file") as caught:
        check_generator(Settings(generator={"model": str(tmp_path / "x.gguf")}), fetch=True)
    assert caught.value.field == "generator.model"


def lives(pid):
    """Whether the process runs; one that has ended may stand there until somebody asks how."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return said.rpartition(")")[2].split()[0] != "Z"


def test_what_fetches_weights_does_not_outlive_its_parent(tmp_path):
    """A parent that is killed while weights are fetched leaves no process behind."""
    (tmp_path / "program.py").write_text(FETCHING)
    command = [sys.executable, str(tmp_path / "program.py")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        fetching = int(parent.stdout.readline())
        parent.kill()
    give_up = time.monotonic() + 30
    while lives(fetching):
        assert time.monotonic() < give_up
        time.sleep(0.02)


@pytest.mark.parametrize("fetch", [False, True])
def test_a_missing_package_is_named(monkeypatch, fetch):
    """Where the generator's package is missing, check and start say what to install; callers' arms need none."""
    monkeypatch.setattr("ragbandit.workers.wiring.generators.importlib.util.find_spec", lambda name: None)
    settings = Settings(generator={"model": "/no/such/model"})
    with pytest.raises(ConfigError, match=r"torch is missing \(pip install 'ragbandit\[models\]'\)"):
        check_generator(settings, fetch=fetch)
    check_generator(settings.model_copy(update={"arms": {"mine": {"run_by": "caller"}}}), fetch=fetch)


def test_facts_come_before_the_traceback():
    """A line of the log with an exception has its facts in the line, and the traceback below it."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(_Plain("%(levelname)s: %(message)s"))
    log = logging.Logger("test", level=logging.INFO)
    log.addHandler(handler)
    try:
        raise ValueError("of mine")
    except ValueError:
        log.exception("it broke", extra={"action": "broke", "reason": "two words"})
    first, second, *_, last = said.getvalue().splitlines()
    assert first == "ERROR: it broke action=broke reason='two words'"
    assert second.startswith("Traceback")
    assert last == "ValueError: of mine"


class NeedyArm:
    needs = frozenset({"trained_tokens"})
    params = {}  # noqa: RUF012 - never written

    def __init__(self, *, name):
        self.name = name

    async def answer(self, question, *, run):
        raise AssertionError("never reached")


def test_the_retriever_is_made_by_its_name(tmp_path):
    """retriever.name picks the maker: bm25 looks for its index; an unknown name lists the known ones."""
    settings = Settings(data_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="holds no index"):
        make_retriever(settings)
    other = settings.model_copy(update={"retriever": settings.retriever.model_copy(update={"name": "web"})})
    with pytest.raises(ConfigError, match=r"'web' is unknown \(known: bm25, dense, elasticsearch, hybrid\)"):
        make_retriever(other)


# ------------------------------------------------------------------------------------------ the job "answer"


def decision_for(arm):
    return Decision(
        id=DecisionId("d1"),
        query=Query(text="Who wrote Dracula?"),
        arm=arm,
        arms=(arm,),
        pmf=(1.0,),
        propensity=1.0,
        scores=None,
        policy="main",
        version="main-0-none",
        encoder_hash="e" * 64,
        seed=1,
        floor=0.0,
        explored=False,
        fault=None,
        facts={},
        run_by="worker",
        features=None,
        made_at=0.0,
    )


class Redis:
    """Redis, as far as a worker sees it. broken: it cannot be reached."""

    def __init__(self, *, tries=0, broken=False):
        self.counted, self.broken, self.kept, self.outage = tries, broken, [], Outage()
        self.begun, self.calls, self.marked, self.elsewhere = 0, 0, [], False

    def _check(self):
        self.calls += 1
        if self.broken:
            error = QueueError("Redis is down")
            self.outage.failed(error)
            raise error

    def begin_run(self, key):
        self._check()
        self.marked.append(key)
        return self.counted

    def end_run(self, key, *, kept):
        self._check()
        if kept:
            self.kept.append(key)

    def mark_running(self, *keys):
        self._check()
        self.marked.extend(keys)

    def unmark_running(self, *keys):
        self._check()

    def is_running(self, key):
        self._check()
        return self.elsewhere

    def count_try(self, key):
        self._check()
        self.counted += 1
        self.begun += 1
        return self.counted

    def uncount_try(self, key):
        self._check()
        self.counted -= 1

    def enqueue_learn(self, label):
        self._check()


@pytest.fixture
def work(tmp_path, sqlite_template):
    """A function that makes a worker with one decision, this Redis and these parts; gives its context."""
    contexts = []

    def make(*, redis=None, generator=None, arm="single_step"):
        file = tmp_path / f"worker-{len(contexts)}.db"
        shutil.copyfile(sqlite_template, file)
        store = DecisionStore(Database(f"sqlite:///{file}"), label="main")
        store.add_decisions([decision_for(arm)])
        generator = generator or ScriptedGenerator({"": "So the answer is: Bram Stoker."})
        context = tasks.Context(
            settings=Settings(budget={"seconds": 20}, workers={"sweep_interval_s": 0.05}),
            store=store,
            ledger=None,
            jobs=redis or Redis(),
            arms=make_arms({"single_step": {"passages": 2}}, capabilities=generator.capabilities),
            retriever=MemoryRetriever([]),
            generator=generator,
            loop=EventLoop(),
        )
        contexts.append(context)
        return context

    yield make
    for context in contexts:
        context.close()
        context.store.database.close()


@pytest.fixture
def serve(work):
    """A function that delivers a decision to such a worker; gives outcome and context."""

    def deliver(*, deliveries=1, **parts):
        context = work(**parts)
        for _ in range(deliveries):
            tasks.answer(context, "d1")
        return outcome_in(context), context

    return deliver


def outcome_in(context):
    return context.store.outcomes_by_id(["d1"]).get("d1")


def forget_outcomes(context):
    with context.store.database.write() as connection:
        connection.execute(delete(outcomes))


def cancel(context):
    return cancellation.request(context.store.database, decision_id=DecisionId("d1"), now=time.time())


def test_an_answered_question_is_forgotten_by_the_count(serve):
    """A job runs the arm with the caps in force, keeps one outcome, and takes the count of tries back."""
    outcome, context = serve(deliveries=2)

    assert (outcome.status, outcome.answer, outcome.run_by) == ("answered", "Bram Stoker", "worker")
    assert (outcome.made_by["params"]["passages"], outcome.made_by["budget"]) == (2, {"seconds": 20})
    assert (context.jobs.begun, context.jobs.counted) == (1, 0)
    assert context.jobs.kept == ["d1"]


@pytest.mark.parametrize("tries", [0, tasks.MAX_TRIES - 1])
def test_a_question_is_tried_again_after_a_death(serve, tries):
    """Up to three tries in all are made."""
    assert serve(redis=Redis(tries=tries))[0].status == "answered"


def test_a_question_that_kills_its_workers_is_given_up(serve):
    """After three tries without an outcome it is failed as worker_died, at no cost, and the model is not asked."""
    redis = Redis(tries=tasks.MAX_TRIES)
    outcome, context = serve(redis=redis)

    assert (outcome.status, outcome.stop_reason, outcome.answer) == ("failed", "worker_died", None)
    assert (outcome.cost, outcome.steps, outcome.trace) == (Cost(), 0.0, ())
    assert "3 workers died" in outcome.error
    assert outcome.made_by["arm"] == "single_step"
    assert context.generator.requests == []
    assert redis.kept == ["d1"]


def test_without_redis_nothing_is_counted(serve):
    """With Redis down the question is answered all the same."""
    assert serve(redis=Redis(broken=True))[0].status == "answered"


def test_redis_is_left_alone_after_a_failure(serve):
    """Of all the calls around a question only the first waits for a Redis that hangs; later ones try again."""
    outcome, context = serve(redis=Redis(broken=True))
    assert (outcome.status, context.jobs.calls) == ("answered", 1)
    context.jobs.broken, context.jobs.outage._failed_at = False, 0.0
    forget_outcomes(context)
    tasks.answer(context, "d1")
    assert context.jobs.kept == ["d1"]


def test_an_arm_taken_out_of_the_configuration_is_a_failure(serve):
    """A decision for an arm that this worker does not have is failed as unknown_arm, by the worker, made by nothing."""
    outcome, _ = serve(arm="gone")

    assert (outcome.status, outcome.stop_reason, outcome.run_by, outcome.made_by) == (
        "failed",
        "unknown_arm",
        "worker",
        {},
    )


def test_clients_live_across_jobs_and_are_closed_on_their_loop(serve):
    """Generator and retriever see one loop in all jobs, and are closed on it once, even if one cannot be."""
    loops = []

    class Bound(ScriptedGenerator):
        async def complete(self, request):
            loops.append(asyncio.get_running_loop())
            return await super().complete(request)

        async def close(self):
            loops.append(asyncio.get_running_loop())
            raise OSError("the server is gone")

    generator = Bound({"": "x"})
    _, context = serve(generator=generator)
    forget_outcomes(context)
    tasks.answer(context, "d1")
    context.close()

    assert len(loops) == 3
    assert len(set(loops)) == 1
    assert context.retriever.closed


# ------------------------------------------------------------------------------------------ several at a time


class Held(ScriptedGenerator):
    """Holds every call until the test lets go, and counts how many it holds at most."""

    def __init__(self):
        super().__init__({"": "So the answer is: Bram Stoker."})
        self.inside, self.most, self.entered, self.free = 0, 0, threading.Event(), threading.Event()

    async def complete(self, request):
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.set()
        try:
            while not self.free.is_set():
                await asyncio.sleep(0.005)
            return await super().complete(request)
        finally:
            self.inside -= 1


@pytest.fixture
def together():
    """A function that calls `answer` for these decisions at once, a thread each; they are joined at the end."""
    threads = []

    def start(context, *keys):
        made = [threading.Thread(target=tasks.answer, args=(context, key)) for key in keys]
        threads.extend(made)
        for thread in made:
            thread.start()
        return made

    yield start
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_a_decision_delivered_twice_at_once_runs_once(work, together):
    """While one thread runs a decision, another one that gets it too leaves it alone."""
    generator = Held()
    context = work(generator=generator)
    first, *_ = together(context, "d1")
    assert generator.entered.wait(10)
    tasks.answer(context, "d1")
    assert outcome_in(context) is None
    generator.free.set()
    first.join(20)
    assert (outcome_in(context).status, len(generator.requests)) == ("answered", 1)


@pytest.mark.parametrize(("tries", "most"), [(0, 3), (1, 1)])
def test_questions_that_were_tried_before_run_one_at_a_time(work, together, tries, most):
    """First tries overlap; of those that may have killed a worker one runs at a time: it takes no others along."""
    generator = Held()
    context = work(generator=generator, redis=Redis(tries=tries))
    keys = ["d1", "d2", "d3"]
    context.store.add_decisions([replace(decision_for("single_step"), id=DecisionId(key)) for key in keys[1:]])
    context.jobs.count_try = lambda key: tries + 1
    threads = together(context, *keys)
    assert until(lambda: generator.inside == most)
    assert until(lambda: len(context.active_runs.ids()) == 3)
    generator.free.set()
    for thread in threads:
        thread.join(20)
    assert (generator.most, len(context.store.outcomes_by_id(keys))) == (most, 3)


def until(seen, *, seconds=10.0):
    give_up = time.monotonic() + seconds
    while not seen():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.005)
    return True


def test_a_blocked_loop_is_found(loop):
    """A loop answers at once while its coroutines await; code that does not await keeps it from that, and is named."""
    blocked = threading.Event()

    async def block_the_loop():
        blocked.set()
        time.sleep(0.5)

    assert loop.answers(within_s=5)
    with pytest.raises(TimeoutError):
        loop.run(block_the_loop(), timeout_s=0.1)
    assert blocked.is_set()
    assert not loop.answers(within_s=0.1)
    assert "block_the_loop" in loop.position()
    assert loop.answers(within_s=5)


@pytest.mark.parametrize(
    ("generator", "configured", "expected"),
    [
        ({"name": "scripted"}, None, 8),
        ({"name": "openai", "openai": {"concurrency": 5}}, None, 5),
        ({"name": "openai", "openai": {"concurrency": 5}}, 2, 2),
        ({"name": "local"}, None, 3),
    ],
)
def test_questions_at_once_follow_the_generator(generator, configured, expected):
    """As many questions at once as configured, else as the generator takes: its own batch where it has one."""
    settings = Settings(generator=generator, workers={"concurrency": configured})
    made = ScriptedGenerator({"": ""})
    made.max_batch = 3
    assert concurrency(settings, generator=made) == expected


# ------------------------------------------------------------------------------------------ cancelling


def test_what_was_cancelled_before_it_began_never_runs(work):
    """A worker that is brought a cancelled decision fails it as cancelled, at no cost, and says so."""
    context = work()
    assert cancel(context).cancelled is None
    tasks.answer(context, "d1")

    outcome = outcome_in(context)
    assert (outcome.status, outcome.stop_reason, outcome.error) == ("failed", "cancelled", "cancelled by the caller")
    assert (outcome.cost, outcome.trace, context.generator.requests) == (Cost(), (), [])
    assert context.jobs.kept == ["d1"]


@pytest.mark.parametrize("told", [True, False])
def test_a_run_that_is_cancelled_ends_within_a_second(work, together, told):
    """Told of it, or by looking when Redis says nothing, the worker cuts the arm off; the outcome has the true cost."""
    generator = Held()
    context = work(generator=generator, redis=Redis(broken=not told))
    thread, *_ = together(context, "d1")
    assert generator.entered.wait(10)
    began = time.monotonic()
    cancel(context)
    stop = threading.Event()
    if told:
        housekeeping.handle_notification(context, "cancel:another")
        housekeeping.handle_notification(context, "cancel:d1")
    else:
        keeper = threading.Thread(target=housekeeping.keep_house, args=(context, stop))
        keeper.start()
    thread.join(20)
    stop.set()

    outcome = outcome_in(context)
    assert time.monotonic() - began < 1
    assert (outcome.status, outcome.stop_reason) == ("failed", "cancelled")
    assert (outcome.cost.retriever_calls, outcome.cost.llm_calls) == (1, 1)
    assert outcome.cost.seconds_total >= outcome.cost.seconds_generate > 0
    assert isinstance(outcome.trace[-1], CallFailed)
    assert outcome.made_by["arm"] == "single_step"
    assert cancel(context).cancelled is True


def test_the_news_of_a_cancellation_is_checked(work, together):
    """News stops nothing that SQL does not say was cancelled."""
    generator = Held()
    context = work(generator=generator)
    thread, *_ = together(context, "d1")
    assert generator.entered.wait(10)
    housekeeping.handle_notification(context, "cancel:d1")
    generator.free.set()
    thread.join(20)
    assert outcome_in(context).status == "answered"


@pytest.mark.parametrize("ending", [True, False])
def test_a_run_that_is_cut_off_writes_no_outcome(work, ending):
    """A run cut off because its process ends has no outcome and was no try; an arm that cancels itself was one."""
    generator = Held()
    context = work(generator=generator, redis=Redis(tries=1))
    raised = []
    if ending:
        threading.Timer(0.1, context.ending.set).start()

    def deliver():
        try:
            tasks.answer(context, "d1")
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=deliver)
    thread.start()
    assert generator.entered.wait(10)
    assert not ending or context.ending.wait(10)
    context.loop.interrupt()
    thread.join(20)
    assert [type(error) for error in raised] == ([] if ending else [CancelledError])
    assert context.jobs.counted == (1 if ending else 2)
    assert outcome_in(context) is None
    assert context.active_runs.ids() == []


@pytest.mark.parametrize("ending", [True, False])
def test_a_question_that_waits_for_its_turn_can_be_ended(work, together, ending):
    """While one that was tried before runs, another one can be cancelled, and begins nothing once the worker ends."""
    generator = Held()
    context = work(generator=generator, redis=Redis(tries=1))
    context.store.add_decisions([replace(decision_for("single_step"), id=DecisionId("d2"))])
    first, *_ = together(context, "d1")
    assert generator.entered.wait(10)
    second, *_ = together(context, "d2")
    assert until(lambda: len(context.active_runs.ids()) == 2)
    if ending:
        context.ending.set()
    else:
        cancellation.request(context.store.database, decision_id=DecisionId("d2"), now=1.0)
        housekeeping.handle_notification(context, "cancel:d2")
    second.join(2)
    assert not second.is_alive()
    generator.free.set()
    first.join(20)
    found = context.store.outcomes_by_id(["d1", "d2"])
    assert {key: each.stop_reason for key, each in found.items() if key == "d2"} == (
        {} if ending else {"d2": "cancelled"}
    )
    assert (found["d1"].status, len(generator.requests), context.jobs.begun) == ("answered", 1, 1)


# ------------------------------------------------------------------------------------------ a database that is away


@pytest.fixture
def locked(work, monkeypatch):
    """A worker whose database somebody else is writing to, and that writer's connection."""
    monkeypatch.setattr("ragbandit.router.storage.database.LOCK_WAIT_S", 0.05)
    context = work()
    writer = sqlite3.connect(context.store.database.engine.url.database, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    yield context, writer
    writer.close()


def test_an_answer_waits_for_the_database(locked, together, caplog):
    """An answer that the database does not take at once is offered again, with a warning, and not made anew."""
    context, writer = locked
    thread, *_ = together(context, "d1")
    assert until(lambda: "cannot write an outcome" in caplog.text)
    assert context.active_runs.ids() == ["d1"]
    writer.execute("ROLLBACK")
    thread.join(10)
    assert (outcome_in(context).status, len(context.generator.requests)) == ("answered", 1)
    assert context.jobs.kept == ["d1"]


@pytest.mark.parametrize(("ending", "counted"), [(True, 0), (False, 1)])
def test_an_answer_waits_for_the_database_only_so_long(locked, monkeypatch, ending, counted):
    """After KEEP_S the answer is given up and was a try; when the process ends it is given up at once and was none."""
    context, _ = locked
    monkeypatch.setattr(tasks, "KEEP_S", 60.0 if ending else 0.1)
    threading.Timer(0.2, context.ending.set).start()
    if not ending:
        context.ending = threading.Event()
    began = time.monotonic()
    with pytest.raises(StoreError, match="locked"):
        tasks.answer(context, "d1")
    assert time.monotonic() - began < 2
    assert (context.jobs.counted, len(context.generator.requests)) == (counted, 1)


def test_marks_do_not_depend_on_the_database(work, monkeypatch):
    """What runs stays marked as running while the database is away."""
    context = work()
    context.active_runs.begin(decision_for("single_step"))
    monkeypatch.setattr(context, "store", None)
    stop = threading.Event()
    keeper = threading.Thread(target=housekeeping.keep_marked, args=(context, stop))
    keeper.start()
    context.jobs.broken = True
    time.sleep(0.1)
    context.jobs.broken, context.jobs.outage._failed_at = False, 0.0
    assert until(lambda: len(context.jobs.marked) >= 3)
    stop.set()
    keeper.join(10)
    monkeypatch.undo()
    context.active_runs.end(DecisionId("d1"))


def test_what_another_worker_runs_is_left_to_it(work):
    """A cancelled decision that another worker runs is not failed by whoever is brought it: its cost is not known."""
    context = work()
    cancel(context)
    context.jobs.elsewhere = True
    tasks.answer(context, "d1")
    assert outcome_in(context) is None
    context.jobs.elsewhere = False
    tasks.answer(context, "d1")
    assert outcome_in(context).stop_reason == "cancelled"


def test_news_of_a_cancellation_renews_the_mark(work):
    """Whoever runs a decision that is to be cancelled says so before anything else: Redis may have forgotten it."""
    context = work()
    context.active_runs.begin(decision_for("single_step"))
    housekeeping.handle_notification(context, "cancel:d1")
    assert context.jobs.marked == ["d1"]
    context.active_runs.end(DecisionId("d1"))


def test_only_what_is_under_way_can_be_stopped():
    """A stop comes once, to a run that is under way; a second delivery and a run that has ended have none."""
    running, decision = ActiveRuns(), decision_for("single_step")
    assert not running.stop(decision.id)
    assert running.claim(decision.id)
    assert not running.claim(decision.id)
    stop = running.begin(decision)
    assert (running.ids(), running.arms(), stop.done()) == ([decision.id], ["single_step"], False)
    assert running.stop(decision.id)
    assert stop.done()
    assert not running.stop(decision.id)
    running.end(decision.id)
    assert (running.ids(), running.stop(decision.id)) == ([], False)


def test_signals_are_counted():
    """The first signal is seen when it comes; one right after it is the same one, one a second later is another."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        signals = Signals()
        assert not signals.first
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
            assert (signals.first, signals.second) == (True, False)
        time.sleep(1.05)
        signal.raise_signal(signal.SIGTERM)
        assert signals.second
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
