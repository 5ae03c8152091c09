"""The answer queue by its length: one request, eight callers at once, and a worker that takes one.

"enqueue" is what a request does for its decision beside storing it: the bell in Redis. "store" is the transaction of a
decision that waits for a worker, and "claim" what a worker does to take it. The queue is filled with decisions of
another tenant. An older release, whose queue was in Redis alone, has its list filled by Redis, with a record for every
entry, and takes from there. "accept" is what /v1/answer does until a worker can take the question: it is decided,
stored and queued.
"""

import importlib
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import redis

from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.jobs import RedisJobs, connect
from ragbandit.router.queue.redis_server import RedisServer, redis_url
from ragbandit.router.storage.sql.database import Database, migrate
from ragbandit.shared.types import DecisionId

LENGTHS = (0, 1_000, 10_000, 100_000)
CALLERS = 8
EACH = 100
LIST = "rq:queue:ragbandit-answer"
#: the queue of older releases
FILL = """
for number = redis.call('LLEN', KEYS[1]) + 1, ARGV[1] do
    local order = redis.call('INCR', 'ragbandit:answer-order')
    redis.call('HSET', 'rq:job:filled-' .. number, 'data', ARGV[2], 'order', order, 'tenant', 'filler')
    redis.call('RPUSH', KEYS[1], 'filled-' .. number)
    redis.call('ZADD', 'ragbandit:answer-turns', number, 'filled-' .. number)
end
"""


def new_id() -> DecisionId:
    return DecisionId(str(uuid.uuid4()))


def enqueue(jobs: Any) -> None:
    """As this revision does it."""
    if hasattr(jobs, "enqueue_answers"):
        jobs.enqueue_answers([new_id()])
    else:
        jobs.enqueue_answer(new_id(), timeout_s=120)


def fill(client: redis.Redis, *, upto: int) -> None:
    for mark in range(5_000, upto + 5_000, 5_000):
        client.eval(FILL, 1, LIST, min(mark, upto), "x" * 90)


def median_ms(work: Callable[[], object], *, times: int) -> float:
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        spent.append(1000 * (time.perf_counter() - began))
    return statistics.median(spent)


def together(url: str) -> float:
    """Requests per second of CALLERS threads, each with a connection of its own."""
    clients = [connect(url) for _ in range(CALLERS)]

    def ask(client: redis.Redis) -> None:
        jobs = RedisJobs(client)
        for _ in range(EACH):
            enqueue(jobs)

    threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    for client in clients:
        client.close()
    return CALLERS * EACH / seconds


def in_redis(length: int, url: str) -> dict[str, float]:
    client = connect(url)
    jobs = RedisJobs(client)
    fill(client, upto=length)
    queued = f"{length:,} queued"
    measured = {
        f"enqueue p50, {queued} [ms]": median_ms(lambda: enqueue(jobs), times=200),
        f"enqueue, {CALLERS} callers, {queued} [/s]": together(url),
    }
    client.close()
    return measured


def in_database(settings: Settings) -> dict[str, float]:
    """Nothing for a release whose queue is not in the database."""
    try:
        from ragbandit.router.storage.answer_queue import AnswerQueue
    except ImportError:
        return {}
    from ragbandit.router.queue.notifier import MemoryJobs
    from ragbandit.router.serving.router import Router
    from ragbandit.router.storage.sql.tables import answer_queue

    measured: dict[str, float] = {}
    with Router.open(settings, jobs=MemoryJobs()) as router:
        decision = router.submit("Who wrote Emma?", run_by="worker").result()
        row = {"tenant": "filler", "queued_at": 0.0, "tries": 0}
        queue, filled = AnswerQueue(router.database), 0
        for length in LENGTHS:
            with router.database.write() as connection:
                rows = [row | {"decision_id": f"filled-{n}", "turn": n} for n in range(filled, length)]
                if rows:
                    connection.execute(answer_queue.insert(), rows)
            filled = length
            queued = f"{length:,} queued"
            store = partial(_store_copy, router, decision)
            measured[f"store p50, {queued} [ms]"] = median_ms(store, times=200)
            measured[f"claim p50, {queued} [ms]"] = median_ms(queue.claim, times=200)
    return measured


def migrate_store(url: str) -> None:
    database = Database(url)
    migrate(database)
    database.close()


def _store_copy(router: Any, decision: Any) -> None:
    router.store.add_decisions([replace(decision, id=new_id())])


def accept(settings: Settings, *, store: str) -> dict[str, float]:
    """One caller, then CALLERS at once; nobody takes what they queue."""
    from ragbandit.router.serving.router import Router

    with Router.open(settings) as router:

        def ask() -> None:
            router.answer("Who wrote Emma?", wait_s=0)

        def caller() -> None:
            for _ in range(EACH):
                ask()

        median_ms(ask, times=50)  # statements are compiled once
        began_cpu = time.process_time()
        alone = median_ms(ask, times=300)
        cpu = 1000 * (time.process_time() - began_cpu) / 300
        threads = [threading.Thread(target=caller) for _ in range(CALLERS)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rate = CALLERS * EACH / (time.perf_counter() - began)
    return {
        f"accept p50, {store} [ms]": alone,
        f"accept, {store} [ms of CPU]": cpu,
        f"accept, {CALLERS} callers, {store} [/s]": rate,
    }


def measure() -> dict[str, float]:
    measured: dict[str, float] = {}
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        settings = Settings.model_validate(
            {
                "data_dir": folder,
                "encoder": {"model": "hashing"},
                "arms": {"single_step": {}},
                "policy": {"name": "uniform", "fallback": "single_step"},
                "server": {"tenant_unanswered": 10_000},
            }
        )
        server = RedisServer(settings)
        server.start()
        opened.callback(server.stop)
        reached = settings.model_copy(update={"redis_url": redis_url(settings)})
        postgres = importlib.import_module("tests.conftest").PostgresServer()  # a real one, from the wheel of the tests
        postgres.start()
        opened.callback(postgres.stop)
        postgres.execute("CREATE DATABASE accept")
        migrate_store(postgres.url("accept"))
        measured |= accept(reached, store="SQLite")
        measured |= accept(reached.model_copy(update={"database_url": postgres.url("accept")}), store="PostgreSQL")
        for length in LENGTHS:
            measured |= in_redis(length, redis_url(settings))
        measured |= in_database(settings)
    return measured
