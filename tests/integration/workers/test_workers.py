"""Worker threads over a real Redis and SQLite: several questions at once, budgets, and an arm that blocks them all."""

import asyncio
import signal
import threading
from functools import partial
from pathlib import Path

import pytest
import yaml

from benchmarks.service_process import environment
from ragbandit.router.queue.jobs import RedisJobs, connect_redis
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.jobs.answers import waiting_ids
from ragbandit.shared.types import Query
from ragbandit.strategies.base import Passage
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.retrievers.bm25 import build_index
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.workers.chores import start_chores
from ragbandit.workers.chores.blocked_loop import BlockedLoop
from ragbandit.workers.processes.consumers import LOOK_S, REPLY_S
from ragbandit.workers.processes.worker import handle_notification, make_consumer
from ragbandit.workers.running.context import Context
from ragbandit.workers.running.event_loop import EventLoop
from tests.support.arms.loaded_arms import loaded_arms
from tests.support.forked import Forked
from tests.support.waiting import until
from tests.unit.router.cli.test_cli import free_port

ROOT = Path(__file__).parents[3]
PASSAGES = [
    Passage(id="stoker", title="Dracula", text="Bram Stoker wrote Dracula."),
    Passage(id="shelley", title="Frankenstein", text="Mary Shelley wrote Frankenstein, not Dracula."),
]


class Worker:
    """The threads of a worker process within this one, with a generator and a retriever of the test's own."""

    def __init__(self, router, url, *, arms, generator, retriever):
        self.router, self.url = router, url
        self.client = connect_redis(url, timeout_s=LOOK_S + REPLY_S)
        self.context = Context(
            settings=router.settings,
            store=router.store,
            ledger=router.ledger,
            jobs=RedisJobs(self.client),
            arms=loaded_arms(arms, generator=generator, retriever=retriever),
            loop=EventLoop(),
        )
        self.consumer = None
        self._routines = start_chores(self.context)
        self._listener = None

    def start(self, *, threads, burst=False, often=True):
        """Answer in this many threads, like a process. often: poll many times a second."""
        self.consumer = make_consumer("answer", self.context, jobs=self.context.jobs, threads=threads)
        if often:
            self.consumer.every_s = 0.05
        self.consumer.start(burst=burst)

    def stop(self):
        self.context.ending.set()

    def listen(self):
        """To the news of cancellations, as a process does from its start."""
        self._listener = self.context.jobs.listen(partial(handle_notification, self.context))

    def close(self):
        self.stop()
        self.context.loop.interrupt()
        assert self.consumer.wait(20)
        for routine in self._routines:
            routine.close()
        if self._listener is not None:
            self._listener.close()
        self.context.close()
        self.client.close()


@pytest.fixture
def make_worker(settings, redis_server, redis_client):
    """A factory of a router and the worker that answers for it."""
    made = []

    def make(*, arms, generator, passages=PASSAGES, url=redis_server, **given):
        given["arms"], given["redis_url"] = arms, url
        given["policy"] = {"name": "uniform", "fallback": next(iter(arms))}
        given["workers"] = {"sweep_interval_s": 0.2}
        router = Router.open(settings(**given))
        worker = Worker(router, url, arms=arms, generator=generator, retriever=MemoryRetriever(passages))
        made.append(worker)
        return worker

    yield make
    for worker in made:
        worker.close()
        worker.router.close()
        worker.router.process.jobs.client.close()


class Gathering(ScriptedGenerator):
    """Replies after `n` concurrent calls have arrived; records the maximum concurrency."""

    def __init__(self, together):
        super().__init__({"": "So the answer is: Bram Stoker."})
        self.together, self.inside, self.most, self.full = together, 0, 0, False

    async def complete(self, request):
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.full = self.full or self.inside >= self.together
        while not self.full:
            await asyncio.sleep(0.005)
        done = await super().complete(request)
        self.inside -= 1
        return done


def ask(worker, count):
    """Queue this many questions."""
    decisions = [
        worker.router.submit(Query(text=f"Who wrote Dracula {n}?"), run_by="worker").result(20) for n in range(count)
    ]
    for decision in decisions:
        worker.router.process.notifier.request_answers([decision.id])
    return [decision.id for decision in decisions]


@pytest.mark.parametrize("threads", [1, 4])
def test_questions_overlap(make_worker, threads):
    """Threads run as many calls in parallel as configured, never more, and every question gets one outcome."""
    generator = Gathering(threads)
    worker = make_worker(arms={"single_step": {}}, generator=generator)
    keys = ask(worker, 2 * threads)
    worker.start(threads=threads, burst=True)
    assert worker.consumer.wait(30)
    found = worker.router.store.outcomes_by_id(keys)
    assert generator.most == threads
    assert [found[key].status for key in keys] == ["answered"] * len(keys)
    assert len(generator.requests) == len(keys)
    assert worker.context.active_runs.running_ids() == []


def test_questions_without_a_wake_up(make_worker, redis_client):
    """Where Redis has forgotten all wake-ups, threads find within a second or two what waits, and go on without."""
    worker = make_worker(arms={"single_step": {}}, generator=Gathering(1))
    worker.start(threads=2, often=False)
    (first,) = ask(worker, 1)
    assert until(lambda: worker.router.store.outcomes_by_id([first]))
    decisions = [worker.router.submit(Query(text=f"Who wrote {n}?"), run_by="worker").result(20).id for n in range(20)]
    assert until(lambda: len(worker.router.store.outcomes_by_id(decisions)) == 20, seconds=6)


def test_learning_needs_no_redis(tmp_path, settings):
    """`ragbandit worker --queue learn` without Redis learns by polling the database, and misses Redis once."""
    configuration = settings(
        arms={"single_step": {"run_by": "caller"}}, policy={"name": "uniform", "fallback": "single_step"}
    )
    configuration = configuration.model_copy(
        update={"workers": configuration.workers.model_copy(update={"sweep_interval_s": 0.2})}
    )
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(configuration.model_dump(exclude_none=True)))
    command = ["worker", "--queue", "learn", "--config", file]
    with Router.open(configuration) as router:
        for number in range(3):
            decision = router.route(f"Who wrote book {number}?")
            router.outcome(decision.id, answer="x", steps=1)
            router.feedback(decision.id, rating=True)
        process = Forked(command, environment=environment(), log=tmp_path / "log")
        try:
            assert until(lambda: router.status().counters.learned == 3), (tmp_path / "log").read_text()
            decision = router.route("Who wrote another book?")
            router.feedback(decision.id, reward=1.0)
            assert until(lambda: router.status().counters.learned == 4)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait(10)
    lines = (tmp_path / "log").read_text().splitlines()
    assert sum("WARNING" in line for line in lines) == 1
    assert any("cannot reach Redis; retrying (answers are delayed, nothing is lost)" in line for line in lines)


def test_a_worker_that_is_stopped_finishes_what_it_has_taken(make_worker):
    """After `stop` the questions under way are answered, and those that wait stay in the queue."""
    generator = Gathering(99)
    worker = make_worker(arms={"single_step": {}}, generator=generator)
    keys = ask(worker, 6)
    worker.start(threads=4)
    assert until(lambda: generator.inside == 4)
    worker.stop()
    assert not worker.consumer.wait(0.3)
    generator.full = True
    assert worker.consumer.wait(20)
    assert len(worker.router.store.outcomes_by_id(keys)) == 4
    assert len(waiting_ids(worker.router.database, limit=9)) == 2


def written(made, folder):
    """The path of a configuration with an index."""
    build_index(PASSAGES, Path(made.data_dir) / "indexes" / "default")
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(made.model_dump(exclude_none=True)))
    return str(file)


# ------------------------------------------------------------------------------------------ an arm that blocks


def test_a_blocked_service_that_runs_arms_ends_itself(tmp_path, settings):
    """If a call blocks the event loop of a service that answers inline, the process ends with code 1 and a message."""
    configuration = settings(
        arms={"only": {"class": "model"}},
        policy={"name": "uniform", "fallback": "only"},
        generator={"name": "openai", "model": "m", "openai": {"base_url": "http://127.0.0.1:9/v1"}},
        server={"port": free_port()},
    )
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(configuration.model_dump(exclude_none=True)))
    block = (
        "import asyncio, time; from ragbandit.workers.processes import inline; inline.BLOCKED_S = 1.0\n"
        "start = inline.InlineAnswers.start\n"
        "def blocked(self, tracing): start(self, tracing); asyncio.get_running_loop().call_later(2, time.sleep, 60)\n"
        "inline.InlineAnswers.start = blocked"
    )
    log = tmp_path / "serve.log"
    process = Forked(
        ["serve", "--config", str(tmp_path / "config.yaml")], environment=environment(), log=log, first=block
    )
    assert process.wait(60) == 1, log.read_text()
    assert "blocks the event loop" in log.read_text()


def test_a_worker_whose_event_loop_is_blocked_ends_itself(tmp_path, settings, monkeypatch, caplog):
    """If code on the event loop never awaits, the chore that watches the loop logs its line and ends the process."""
    ended, freed = [], threading.Event()
    with Router.open(
        settings(arms={"single_step": {}}, policy={"name": "uniform", "fallback": "single_step"})
    ) as router:
        context = Context(settings=router.settings, store=router.store, ledger=router.ledger, jobs=router.process.jobs)
        loop = context.open_loop()
        assert loop.watch.blocked_s == router.settings.budget.seconds + 10
        loop.watch.blocked_s = 0.1
        monkeypatch.setattr("os._exit", ended.append)
        chore = BlockedLoop(context)
        chore.do()
        assert ended == []

        async def block_the_loop():
            freed.wait(20)

        thread = threading.Thread(target=lambda: loop.run(block_the_loop()))
        thread.start()
        assert until(lambda: chore.do() or ended)
        freed.set()
        thread.join(20)
        context.close()
    assert ended[0] == 1
    assert "blocks the event loop" in caplog.text
