"""The answer queue by its length: one request, eight callers at once, a move to the front, and one look of the sweep.

The list is filled by Redis itself, with a record for every entry, as a long queue has them. "lost" asks for 1,000
decisions that are not queued, which is one pass of the recovery loop.
"""

import inspect
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import redis

from ragbandit.router.config.settings import Settings
from ragbandit.router.jobs.queue import ANSWER_QUEUE, RedisJobs, connect
from ragbandit.router.jobs.redis_server import RedisServer, redis_url
from ragbandit.router.types import DecisionId

LENGTHS = (0, 1_000, 10_000, 100_000)
CALLERS = 8
EACH = 100
#: the sorted set is of the newer queue alone, whose tenants take turns; an older release does not look at it
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


def enqueue(jobs: Any, decision_id: DecisionId, **how: Any) -> None:
    """As this revision does it: an older queue knows no tenants."""
    if "tenant" in inspect.signature(jobs.enqueue_answer).parameters:
        how["tenant"] = "default"
    jobs.enqueue_answer(decision_id, timeout_s=120, **how)


def move_to_front(jobs: Any, decision_id: DecisionId) -> None:
    if hasattr(jobs, "move_to_front"):
        jobs.move_to_front(decision_id)
    else:
        enqueue(jobs, decision_id, front=True)


def fill(client: redis.Redis, *, upto: int) -> None:
    for mark in range(5_000, upto + 5_000, 5_000):
        client.eval(FILL, 1, f"rq:queue:{ANSWER_QUEUE}", min(mark, upto), "x" * 90)


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
            enqueue(jobs, new_id())

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


def at(length: int, url: str) -> dict[str, float]:
    client = connect(url)
    jobs = RedisJobs(client)
    fill(client, upto=length)
    queued = f"{length:,} queued"
    found = {
        f"enqueue p50, {queued} [ms]": median_ms(lambda: enqueue(jobs, new_id()), times=200),
        f"enqueue, {CALLERS} callers, {queued} [/s]": together(url),
    }
    last = new_id()
    enqueue(jobs, last)
    found[f"move to front, {queued} [ms]"] = median_ms(lambda: move_to_front(jobs, last), times=1)
    lost = [new_id() for _ in range(1000)]
    found[f"lost(1000), {queued} [ms]"] = median_ms(lambda: jobs.missing(lost), times=5)
    client.close()
    return found


def measure() -> dict[str, float]:
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=folder)
        server = RedisServer(settings)
        server.start()
        try:
            for length in LENGTHS:
                found |= at(length, redis_url(settings))
        finally:
            server.stop()
    return found
