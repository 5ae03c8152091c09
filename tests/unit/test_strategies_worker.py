"""What a worker does around an arm: its event loop, its clients, and questions that kill workers."""

import asyncio
import signal
import threading

import pytest

from router.errors import ConfigError, QueueError
from router.settings import Settings
from router.types import Cost, Decision, DecisionId, Query
from strategies import make_arms
from strategies.local import LocalGenerator
from strategies.scripted import MemoryRetriever, ScriptedGenerator
from workers import tasks
from workers.main import check_arms, make_retriever, offered


@pytest.fixture
def loop():
    made = tasks.LoopThread()
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
    loop, cancelled = tasks.LoopThread(), threading.Event()

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


def test_a_bare_arm_check_loads_no_model():
    """What a generator can do is read from its class; an arm that needs more is refused before anything is loaded."""
    settings = Settings(generator={"name": "local", "model": "no/such-model"})

    check_arms(settings)
    assert offered(settings.generator) == LocalGenerator.capabilities
    assert offered(Settings(generator={"name": "scripted"}).generator) == ScriptedGenerator.capabilities
    needy = {"needy": {"class": f"{__name__}:NeedyArm"}}
    with pytest.raises(ConfigError, match="needs trained_tokens"):
        check_arms(settings.model_copy(update={"arms": needy}))


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


class Shelf:
    """The store, as far as a worker sees it."""

    def __init__(self, decision):
        self.label, self.decision, self.outcomes = "main", decision, {}

    def decisions_by_id(self, keys):
        return {key: (self.decision, None) for key in keys if key == self.decision.id}

    def outcomes_by_id(self, keys):
        return {key: self.outcomes[key] for key in keys if key in self.outcomes}

    def add_outcome(self, outcome):
        return self.outcomes.setdefault(outcome.decision_id, outcome) is outcome


class Bell:
    """Redis, as far as a worker sees it. broken: it cannot be reached."""

    def __init__(self, *, tries=0, broken=False):
        self.tries, self.broken, self.forgotten, self.told = tries, broken, [], []

    def _check(self):
        if self.broken:
            raise QueueError("Redis is down")

    def mark_running(self, key):
        self._check()

    def unmark_running(self, key):
        self._check()

    def count_try(self, key):
        self._check()
        self.tries += 1
        return self.tries

    def forget_tries(self, key):
        self._check()
        self.forgotten.append(key)

    def tell(self, news):
        self._check()
        self.told.append(news)

    def ring(self, label):
        self._check()


@pytest.fixture
def serve():
    """A function that delivers a decision to a worker with this bell and these parts; gives outcome and context."""
    contexts = []

    def deliver(*, bell=None, generator=None, arm="single_step", deliveries=1):
        decision = decision_for(arm)
        generator = generator or ScriptedGenerator({"": "So the answer is: Bram Stoker."})
        context = tasks.Context(
            settings=Settings(budget={"seconds": 20}),
            store=Shelf(decision),
            ledger=None,
            jobs=bell or Bell(),
            arms=make_arms({"single_step": {"passages": 2}}, capabilities=generator.capabilities),
            retriever=MemoryRetriever([]),
            generator=generator,
            loop=tasks.LoopThread(),
        )
        contexts.append(context)
        tasks.bind(context)
        for _ in range(deliveries):
            tasks.answer("d1")
        return context.store.outcomes.get("d1"), context

    yield deliver
    for context in contexts:
        context.close()
    tasks._bound.clear()


def test_an_answered_question_is_forgotten_by_the_count(serve):
    """A job runs the arm with the caps in force, keeps one outcome, and takes the count of tries back."""
    outcome, context = serve(deliveries=2)

    assert (outcome.status, outcome.answer, outcome.run_by) == ("answered", "Bram Stoker", "worker")
    assert (outcome.made_by["params"]["passages"], outcome.made_by["budget"]) == (2, {"seconds": 20})
    assert (context.jobs.tries, context.jobs.forgotten, context.jobs.told) == (1, ["d1"], ["outcome:d1"])


@pytest.mark.parametrize("tries", [0, tasks.MAX_TRIES - 1])
def test_a_question_is_tried_again_after_a_death(serve, tries):
    """Up to three tries in all are made."""
    assert serve(bell=Bell(tries=tries))[0].status == "answered"


def test_a_question_that_kills_its_workers_is_given_up(serve):
    """After three tries without an outcome it is failed as worker_died, at no cost, and the model is not asked."""
    bell = Bell(tries=tasks.MAX_TRIES)
    outcome, context = serve(bell=bell)

    assert (outcome.status, outcome.stop_reason, outcome.answer) == ("failed", "worker_died", None)
    assert (outcome.cost, outcome.steps, outcome.trace) == (Cost(), 0.0, ())
    assert "3 workers died" in outcome.error
    assert outcome.made_by["arm"] == "strategies.basic:SingleStep"
    assert context.generator.requests == []
    assert (bell.forgotten, bell.told) == (["d1"], ["outcome:d1"])


def test_without_redis_nothing_is_counted(serve):
    """With Redis down the question is answered all the same."""
    assert serve(bell=Bell(broken=True))[0].status == "answered"


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
    context.store.outcomes.clear()
    tasks.answer("d1")
    context.close()

    assert len(loops) == 3
    assert len(set(loops)) == 1
    assert context.retriever.closed
