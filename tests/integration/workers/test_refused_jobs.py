"""A worker on a Redis that others can write to hears its own bells alone, in both queues; all else is never run."""

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

from ragbandit.router.queue.jobs import ANSWER_QUEUE, BELLS, LEARN_QUEUE, RedisJobs, connect
from ragbandit.workers.consumers import LOOK_S, REPLY_S, BellTaker, Consumer
from tests.support.waiting import until

QUEUES = (ANSWER_QUEUE, LEARN_QUEUE)

pytestmark = pytest.mark.timeout(60)


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


@pytest.fixture
def jobs(redis_client):
    return RedisJobs(redis_client)


@pytest.fixture
def taker(redis_server, jobs, monkeypatch):
    """A function that has the bells of a queue taken until the end of the test; gives the list of those heard."""
    monkeypatch.setattr("ragbandit.workers.consumers.BELLS_LOOK_S", 1)
    consumers = []

    def start(name):
        heard = []
        consumer = Consumer(
            name=name,
            threads=1,
            look=lambda rang: heard.append(rang) if rang else None,
            jobs=jobs,
            stopping=threading.Event(),
            every_s=600.0,
        )
        assert consumer.doorbell.wait(1)  # the one that every process begins with
        consumer.start()
        reach = partial(connect, redis_server, timeout_s=LOOK_S + REPLY_S)
        consumers.append((consumer, BellTaker(name, connect=reach, jobs=jobs, consumer=consumer)))
        return heard

    yield start
    for consumer, _ in consumers:
        consumer.stopping.set()
        consumer.doorbell.ring()
    for consumer, bells in consumers:
        assert consumer.wait(5)
        bells.wait()


def ring_both(jobs):
    jobs.enqueue_answers(["d1"])
    jobs.enqueue_learn("main")


def heard_alone(jobs, taker):
    """Each queue's own bell is heard, once, and the lists are empty."""
    heard = [taker(name) for name in BELLS]
    until(lambda: heard == [[True], [True]])
    until(lambda: jobs.depth() == {"answer": 0, "learn": 0})
    time.sleep(0.1)
    return heard == [[True], [True]]


@pytest.mark.parametrize("serializer", [DefaultSerializer, JSONSerializer])
def test_a_command_in_the_queue(jobs, redis_client, taker, tmp_path, serializer):
    """`os.system` in both queues runs nothing, is removed and counted, and the worker hears its own bells."""
    file = tmp_path / "file"
    for queue in QUEUES:
        Queue(queue, connection=redis_client, serializer=serializer).enqueue(
            "os.system", f"touch {file}", job_id=f"evil-{queue}"
        )
    ring_both(jobs)
    if jobs.depth()["learn"] == 1:  # a bell waited, so none was rung
        redis_client.delete(f"rq:job:evil-{LEARN_QUEUE}", "rq:queue:" + LEARN_QUEUE)
        jobs.enqueue_learn("main")
    assert heard_alone(jobs, taker)
    assert not file.exists()
    assert jobs.refused() >= 1
    assert redis_client.keys("rq:job:evil*") == []


def test_pickles_in_every_field(jobs, redis_client, taker, tmp_path):
    """Records whose fields hold pickles that run a command when opened run nothing, whatever the field and the id."""
    file = tmp_path / "file"
    bomb = pickle.dumps(Bomb(file))
    ours = Job.create("answer", connection=redis_client, serializer=JSONSerializer).to_dict()
    ring_both(jobs)
    for queue in QUEUES:
        key = Queue(queue, connection=redis_client).key
        records = [
            {"data": bomb},
            {"data": zlib.compress(bomb)},
            {"data": zlib.compress(pickle.dumps(("answer", None, (Bomb(file),), {})))},
            {"meta": bomb, "result": bomb},
            dict.fromkeys(ours, bomb),
        ]
        for number, fields in enumerate(records):
            redis_client.hset(f"rq:job:bomb-{number}-{queue}", mapping=fields)
            redis_client.rpush(key, f"bomb-{number}-{queue}")
        redis_client.rpush(key, "no-record-at-all")
    assert heard_alone(jobs, taker)
    assert not file.exists()
    assert jobs.refused() == 10
    assert redis_client.keys("rq:job:bomb*") == []


def test_what_else_a_record_says_is_not_read(jobs, redis_client, taker, tmp_path):
    """Callbacks, web hooks, dependencies and arguments in a record with the name of a bell are never used."""
    file = tmp_path / "file"
    queue = Queue(ANSWER_QUEUE, connection=redis_client, serializer=JSONSerializer)
    job = queue.enqueue(
        "answer",
        args=(f"touch {file}",),
        on_success=Callback("os.system"),
        on_failure=Callback("os.system"),
        on_stopped=Callback("os.system"),
    )
    redis_client.hset(f"rq:job:{job.id}", mapping={"webhooks": '[{"url": "http://127.0.0.1:9/x"}]', "timeout": "x"})
    heard = taker("answer")
    until(lambda: heard == [True])
    until(lambda: not redis_client.exists(f"rq:job:{job.id}"))
    assert not file.exists()


def test_callbacks_of_strange_records_are_not_called(jobs, redis_client, taker, tmp_path):
    """A record that RQ's maintenance finds abandoned ends without its callback."""
    file = tmp_path / "file"
    for queue in QUEUES:
        strange = Queue(queue, connection=redis_client).enqueue(
            "os.system", f"touch {file}", on_failure=Callback("os.system"), on_stopped=Callback("os.system")
        )
        redis_client.zadd(f"rq:wip:{queue}", {f"{strange.id}:execution": time.time() - 1000})
    jobs.enqueue_answers(["d1"])
    heard = taker("answer")
    until(lambda: heard == [True])
    assert not file.exists()


def test_a_flood_of_strange_jobs_is_passed(jobs, redis_client, taker, caplog):
    """A thousand strange jobs in front of a bell are all removed and counted, without a line for each."""
    queue = Queue(ANSWER_QUEUE, connection=redis_client)
    with redis_client.pipeline() as pipeline:
        for number in range(1000):
            pipeline.hset(f"rq:job:evil-{number}", "data", "os.system")
            pipeline.rpush(queue.key, f"evil-{number}")
        pipeline.execute()
    jobs.enqueue_answers(["d1"])
    heard = taker("answer")
    until(lambda: heard == [True])
    assert jobs.refused() == 1000
    assert len(caplog.records) <= 3


def test_record_that_is_too_large_is_not_fetched(jobs, redis_client, taker):
    """A record of megabytes, also one that becomes so, is removed by Redis itself."""
    redis_client.hset("rq:job:large", "data", os.urandom(5_000_000))
    redis_client.hset("rq:job:swells", "data", zlib.compress(b"[" * 10_000_000))
    redis_client.rpush(Queue(ANSWER_QUEUE, connection=redis_client).key, "large", "swells")
    before = redis_client.info("stats")["total_net_output_bytes"]
    taker("answer")
    until(lambda: jobs.refused() == 2)
    assert redis_client.info("stats")["total_net_output_bytes"] - before < 1_000_000
    assert redis_client.keys("rq:job:*") == []


@pytest.mark.parametrize("strange", ["bytes", "workers", "workers of the queue", "command"])
def test_what_rqs_worker_does_not_outlive(jobs, redis_client, taker, strange):
    """An id that is no text, sets of workers of another type, RQ's own commands: bells are heard again soon."""
    heard = taker("answer")
    jobs.enqueue_answers(["d1"])
    until(lambda: heard == [True])
    if strange == "bytes":
        redis_client.rpush(f"rq:queue:{ANSWER_QUEUE}", *[b"\xff\xfe"] * 3)
    elif strange == "command":
        for key in redis_client.keys("rq:worker:*"):
            name = key.decode().removeprefix("rq:worker:")
            redis_client.publish(f"rq:pubsub:{name}", '{"command": "shutdown"}')
    else:
        key = "rq:workers" if strange == "workers" else f"rq:workers:{ANSWER_QUEUE}"
        redis_client.delete(key)
        redis_client.set(key, "x")
        time.sleep(0.5)
        redis_client.delete(key)
    jobs.enqueue_answers(["d2"])
    until(lambda: heard == [True, True])
