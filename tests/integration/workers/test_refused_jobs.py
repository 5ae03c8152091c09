"""A worker on a Redis that others can write to runs its own jobs alone, in both queues; it refuses all else."""

import os
import pickle
import threading
import time
import zlib
from functools import partial

import pytest
from rq import Callback, Queue
from rq.job import Job
from rq.serializers import DefaultSerializer, JSONSerializer

from ragbandit.router.jobs.outage import Outage
from ragbandit.router.jobs.queue import ANSWER_JOB, ANSWER_QUEUE, LEARN_JOB, LEARN_QUEUE, RedisJobs, connect
from ragbandit.workers.consumers import LOOK_S, REPLY_S, Consumers
from tests.unit.router.jobs.test_records import Bomb

QUEUES = {ANSWER_QUEUE: ANSWER_JOB, LEARN_QUEUE: LEARN_JOB}


@pytest.fixture
def jobs(redis_client):
    return RedisJobs(redis_client)


@pytest.fixture
def run(redis_server):
    """Have one thread a queue take all there is; returns what the functions of our jobs were called with."""

    def run(*queues):
        called = []
        functions = {
            name: partial(lambda name, argument: called.append((name, argument)), name) for name in QUEUES.values()
        }
        consumers = Consumers(
            partial(connect, redis_server, timeout_s=float(LOOK_S + REPLY_S)),
            functions=functions,
            stopping=threading.Event(),
            outage=Outage(),
        )
        for queue in queues or QUEUES:
            consumers.start(queue, threads=1, burst=True)
        assert consumers.wait(20)
        return called

    return run


def ask_for_both(jobs):
    jobs.enqueue_answer("d1", tenant="default", timeout_s=5.0)
    jobs.enqueue_learn("main")


BOTH = {(ANSWER_JOB, "d1"), (LEARN_JOB, "main")}


@pytest.mark.parametrize("serializer", [DefaultSerializer, JSONSerializer])
def test_a_command_in_the_queue(jobs, redis_client, run, tmp_path, caplog, serializer):
    """`os.system` in both queues runs nothing, is removed, counted and logged, and the worker takes its own jobs."""
    file = tmp_path / "file"
    for queue in QUEUES:
        Queue(queue, connection=redis_client, serializer=serializer).enqueue(
            "os.system", f"touch {file}", job_id=f"evil-{queue}"
        )
    ask_for_both(jobs)
    assert set(run()) == BOTH
    assert not file.exists()
    assert jobs.refused() == 2
    assert redis_client.keys("rq:job:*") == []
    assert jobs.depth() == {"answer": 0, "judge": 0, "learn": 0}
    refused = [record for record in caplog.records if getattr(record, "action", "") == "job_refused"]
    assert {(record.queue, record.id) for record in refused} == {(queue, f"evil-{queue}") for queue in QUEUES}
    assert all(record.levelname == "ERROR" and record.reason for record in refused)


def test_pickles_in_every_field(jobs, redis_client, run, tmp_path):
    """Records whose fields hold pickles that run a command when opened run nothing, whatever the field and the id."""
    file = tmp_path / "file"
    bomb = pickle.dumps(Bomb(file))
    ours = Job.create("workers.tasks.answer", args=("d2",), connection=redis_client).to_dict()
    for queue in QUEUES:
        key = Queue(queue, connection=redis_client).key
        for number, fields in enumerate(
            [
                {"data": bomb},
                {"data": zlib.compress(bomb)},
                {"data": zlib.compress(pickle.dumps(("workers.tasks.answer", None, (Bomb(file),), {})))},
                {"meta": bomb, "result": bomb},
                dict.fromkeys(ours, bomb),
            ]
        ):
            redis_client.hset(f"rq:job:bomb-{number}-{queue}", mapping=fields)
            redis_client.rpush(key, f"bomb-{number}-{queue}")
        redis_client.set(b"rq:job:\xff" + bomb, "no record")
        redis_client.rpush(key, b"\xff" + bomb, "no-record-at-all")
    ask_for_both(jobs)
    assert set(run()) == BOTH
    assert not file.exists()
    assert jobs.refused() == 11  # the odd id had one record, which the first queue removed
    assert redis_client.keys("rq:job:*") == []


def test_callbacks_of_strange_records_are_not_called(jobs, redis_client, run, tmp_path):
    """A record that RQ's own maintenance would end by calling its callback is left alone."""
    file = tmp_path / "file"
    for queue in QUEUES:
        strange = Queue(queue, connection=redis_client).enqueue(
            "os.system", f"touch {file}", on_failure=Callback("os.system"), on_stopped=Callback("os.system")
        )
        redis_client.zadd(f"rq:wip:{queue}", {f"{strange.id}:execution": time.time() - 1000})
    ask_for_both(jobs)
    assert set(run()) == BOTH
    assert not file.exists()
    assert redis_client.zcard(f"rq:wip:{ANSWER_QUEUE}") == 1


def test_a_flood_of_strange_jobs_is_logged_seldom(jobs, redis_client, run, caplog):
    """A thousand strange jobs are all removed and counted, and are a few lines in the log."""
    queue = Queue(ANSWER_QUEUE, connection=redis_client)
    with redis_client.pipeline() as pipeline:
        for number in range(1000):
            pipeline.hset(f"rq:job:evil-{number}", "data", "os.system")
            pipeline.rpush(queue.key, f"evil-{number}")
        pipeline.execute()
    jobs.enqueue_answer("d1", tenant="default", timeout_s=5.0)
    assert run(ANSWER_QUEUE) == [(ANSWER_JOB, "d1")]
    assert jobs.refused() == 1000
    assert len([record for record in caplog.records if getattr(record, "action", "") == "job_refused"]) <= 3


def test_record_that_is_too_large_is_not_fetched(jobs, redis_client, run):
    """A record of megabytes is removed by Redis itself."""
    redis_client.hset("rq:job:large", "data", os.urandom(5_000_000))
    redis_client.rpush(Queue(ANSWER_QUEUE, connection=redis_client).key, "large")
    before = redis_client.info("stats")["total_net_output_bytes"]
    assert run(ANSWER_QUEUE) == []
    assert redis_client.info("stats")["total_net_output_bytes"] - before < 1_000_000
    assert (jobs.refused(), redis_client.exists("rq:job:large")) == (1, 0)


def test_the_next_worker_forgets_those_that_died(redis_client, run):
    """The names of workers that were killed leave RQ's registry when another one starts."""
    redis_client.sadd(f"rq:workers:{ANSWER_QUEUE}", "rq:worker:killed")
    redis_client.sadd("rq:workers", "rq:worker:killed")
    run(ANSWER_QUEUE)
    assert redis_client.smembers("rq:workers") == set()
    assert redis_client.smembers(f"rq:workers:{ANSWER_QUEUE}") == set()


@pytest.mark.parametrize(
    "write",
    [
        lambda client: client.sadd(f"rq:workers:{ANSWER_QUEUE}", b"\xff"),
        lambda client: client.set("rq:workers", "x"),
        lambda client: client.set(f"rq:workers:{ANSWER_QUEUE}", "x"),
    ],
)
def test_registrations_that_rq_cannot_read(jobs, redis_client, run, write):
    """RQ's sets of workers, with bytes or of a type that RQ's own worker does not outlive, are made anew."""
    write(redis_client)
    jobs.enqueue_answer("d1", tenant="default", timeout_s=5.0)
    assert run(ANSWER_QUEUE) == [(ANSWER_JOB, "d1")]
