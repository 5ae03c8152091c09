"""A worker process that is told to end while arms hang."""

import signal
import time

import pytest
import yaml
from sqlalchemy import select

from benchmarks.service_process import environment
from ragbandit import Router
from ragbandit.router.storage.sql.tables import jobs
from ragbandit.shared.types import Query
from tests.support.forked import Forked
from tests.support.waiting import until

ARMS = """
import asyncio
import time
from types import MappingProxyType

from ragbandit.strategies import Answer


def hang(question):
    time.sleep(600)


class Arm:
    needs = frozenset()
    params = MappingProxyType({})
    retrieves = generates = False

    def __init__(self, *, name):
        self.name = name


class Threads(Arm):
    async def answer(self, question, *, run):
        await asyncio.to_thread(hang, question)


class Block(Arm):
    async def answer(self, question, *, run):
        hang(question)
"""
#: the worker cuts off its runs, and gives up what does not close, after less time than otherwise
HASTE = """
from ragbandit.shared.processes import hung_threads
from ragbandit.workers.processes import worker
from ragbandit.workers.running import context, event_loop
worker.MORE_S = context.CLOSE_S = event_loop.CLOSE_S = hung_threads.CLOSE_S = 0.3
"""


@pytest.fixture
def stuck(settings, tmp_path):
    """A worker with arms that hang in a function, in a thread of their own, and on the event loop. Gives (router,
    process, log).
    """
    (tmp_path / "stuck_arms.py").write_text(ARMS)
    arms = {
        "function": {"class": "callable", "object": "stuck_arms:hang"},
        "threads": {"class": "stuck_arms:Threads"},
        "block": {"class": "stuck_arms:Block"},
    }
    made = settings(arms=arms, policy={"name": "uniform"}, budget={"seconds": 0.5}, health={"failures": 0})
    file, log = tmp_path / "config.yaml", tmp_path / "log"
    file.write_text(yaml.safe_dump(made.model_dump(exclude_none=True)))
    with Router.open(made) as router:
        command = ["worker", "--queue", "answer", "--config", file]
        process = Forked(command, environment=environment(), log=log, first=HASTE)
        yield router, process, log
        process.kill()
        process.wait(10)


def ask(router, arm):
    return router.submit(Query(text="Who?", arms=(arm,)), run_by="worker").result(20).id


def is_claimed(router, key):
    with router.database.read() as connection:
        return bool(connection.execute(select(jobs.c.claimed_by).where(jobs.c.decision_id == key)).scalar())


def test_a_worker_ends_although_its_arms_hang(stuck):
    """After SIGTERM a worker waits for its runs as long as they may last and no longer, and logs which arms hang where,
    in functions, in threads of their own and on the event loop.
    """
    router, process, log = stuck
    ended = [ask(router, arm) for arm in ("function", "threads")]
    assert until(lambda: len(router.store.outcomes_by_id(ended)) == 2), log.read_text()
    blocked = ask(router, "block")
    assert until(lambda: is_claimed(router, blocked))
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert time.monotonic() - began < 20
    lines = log.read_text()
    assert "runs have not ended within 0.8 s: runs under way are cut off" in lines
    assert "arms=block" in lines
    assert "arm function at" in lines
    assert lines.count("stuck_arms.py:10 hang") >= 3
