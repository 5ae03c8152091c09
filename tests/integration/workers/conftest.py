"""Workers on a database of their own, and jobs delivered in threads."""

import shutil
import threading

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.sql.database import Database
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.workers.running.context import Context
from ragbandit.workers.running.event_loop import EventLoop
from tests.support.arms.answer_jobs import Redis, answer_next, decision_for
from tests.support.arms.loaded_arms import loaded_arms


@pytest.fixture
def work(tmp_path, sqlite_template):
    """A function that makes a worker with one decision, this Redis and these parts; gives its context."""
    contexts = []

    def make(*, redis=None, generator=None, retriever=None, arm="single_step"):
        file = tmp_path / f"worker-{len(contexts)}.db"
        shutil.copyfile(sqlite_template, file)
        store = DecisionStore(Database(f"sqlite:///{file}"), label="main")
        store.add_decisions([decision_for(arm)])
        generator = generator or ScriptedGenerator({"": "So the answer is: Bram Stoker."})
        context = Context(
            settings=Settings(budget={"seconds": 20}, workers={"sweep_interval_s": 0.05}),
            store=store,
            ledger=None,
            jobs=redis or Redis(),
            arms=loaded_arms({"single_step": {"passages": 2}}, generator=generator, retriever=retriever),
            loop=EventLoop(),
        )
        contexts.append(context)
        return context

    yield make
    for context in contexts:
        context.close()
        context.store.database.close()


@pytest.fixture
def together():
    """A function that answers so many decisions at once, a thread each; they are joined at the end."""
    threads = []

    def start(context, count=1):
        made = [threading.Thread(target=answer_next, args=(context,)) for _ in range(count)]
        threads.extend(made)
        for thread in made:
            thread.start()
        return made

    yield start
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
