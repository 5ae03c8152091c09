"""Data of somebody else in a real Redis: it is dropped or read as absent, counted, and stands in nobody's way."""

import time

import pytest
from redis.exceptions import RedisError

from ragbandit.router.errors import QueueError
from ragbandit.router.jobs import listener as listening
from ragbandit.router.jobs.listener import CHANNEL
from ragbandit.router.jobs.notifier import Notifier
from ragbandit.router.jobs.queue import RedisJobs
from ragbandit.router.jobs.worker_registry import QueueWork, count_job

#: not UTF-8, no number, no time
GARBAGE = b"\xff\xfe"

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def jobs(redis_client):
    return RedisJobs(redis_client)


def wait_until(seen, *, seconds=20.0):
    give_up = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.02)


def foreign(jobs):
    return {part for part, count in jobs.outage.foreign.counts().items() if count}


def put(client, key, *, kind):
    """A key of this type, with garbage in it."""
    client.delete(key)
    makers = {
        "string": lambda: client.set(key, GARBAGE),
        "list": lambda: client.rpush(key, GARBAGE),
        "hash": lambda: client.hset(key, GARBAGE, GARBAGE),
        "set": lambda: client.sadd(key, GARBAGE),
        "zset": lambda: client.zadd(key, {GARBAGE: 1e300}),
        "stream": lambda: client.xadd(key, {GARBAGE: GARBAGE}),
    }
    makers[kind]()


KINDS = ("string", "list", "hash", "set", "zset", "stream")


@pytest.mark.parametrize(
    "published", [GARBAGE, b"", b"outcome:\xff", b"x" * 3_000_000, b"outcome:" + b"1" * 65, b"a\nb"]
)
def test_a_listener_outlives_what_is_no_notification(jobs, redis_client, published):
    """Bytes that are no notification are dropped and counted; the next notification arrives."""
    heard = []
    listener = jobs.listen(heard.append)
    try:
        wait_until(lambda: redis_client.publish(CHANNEL, published) == 1)
        wait_until(lambda: foreign(jobs) == {"notifications"})
        jobs.publish("outcome:one")
        wait_until(lambda: heard == ["outcome:one"])
        assert listener.fault() is None
    finally:
        listener.close()


def test_a_listener_begins_again_after_an_error_that_nobody_foresaw(jobs, redis_client, monkeypatch):
    """Whatever the client raises, the listener subscribes again."""
    monkeypatch.setattr(listening, "PAUSE_S", 0.05)
    heard, subscribe = [], redis_client.pubsub
    failures = [ZeroDivisionError("odd"), UnicodeDecodeError("utf-8", b"", 0, 1, "odd")]

    def pubsub(**given):
        if failures:
            raise failures.pop()
        return subscribe(**given)

    monkeypatch.setattr(redis_client, "pubsub", pubsub)
    listener = jobs.listen(heard.append)
    try:
        wait_until(lambda: redis_client.publish(CHANNEL, "outcome:one") == 1)
        wait_until(lambda: heard == ["outcome:one"])
    finally:
        listener.close()


def test_a_listener_tells_why_it_hears_nothing(jobs, monkeypatch):
    """One that has ended says so, one that cannot subscribe too."""
    monkeypatch.setattr(listening, "GRACE_S", 0.1)
    monkeypatch.setattr(jobs.client, "pubsub", lambda **_: 1 / 0)
    listener = jobs.listen(print)
    wait_until(lambda: "not subscribed" in (listener.fault() or ""))
    listener.close()
    assert "has ended" in listener.fault()


@pytest.mark.parametrize("value", [GARBAGE, b"nan", b"inf", b"-1", b"1" * 5000, b"1e999"])
def test_counts_that_are_none_are_read_as_0(jobs, redis_client, value):
    """A field or a counter that holds no count is 0 and counted as foreign; its neighbours are read."""
    redis_client.hset("ragbandit:work", mapping={"answer:done": value, "answer:failed": 3, "x": GARBAGE})
    redis_client.set("ragbandit:refused-jobs", value)
    redis_client.set("ragbandit:tries:d1", value)
    assert jobs.work()["answer"] == QueueWork(failed=3)
    assert (jobs.refused(), jobs.begin_run("d1")) == (0, 0)
    assert foreign(jobs) == {"counters"}


def test_counts_begin_anew(jobs, redis_client):
    """A worker that finds no count where its own was begins at 1."""
    redis_client.hset("ragbandit:work", "answer:done", GARBAGE)
    count_job(redis_client, "ragbandit-answer", seconds=0.5, failed=False, worker_key="rq:worker:a")
    assert jobs.work()["answer"] == QueueWork(done=1, seconds=0.5)
    redis_client.set("ragbandit:tries:d1", GARBAGE)
    assert [jobs.count_try("d1"), jobs.count_try("d1")] == [1, 2]
    redis_client.set("ragbandit:tries:d1", GARBAGE)
    jobs.uncount_try("d1")
    assert redis_client.exists("ragbandit:tries:d1") == 0


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_another_type_are_read_as_absent(jobs, redis_client, kind):
    """Whatever type our keys have, what waits, who works and what was done is read, and no outage begins."""
    keys = ["ragbandit:work", "ragbandit:refused-jobs", "ragbandit:learner_fault:main", "ragbandit:tries:d1"]
    keys += ["rq:workers", "rq:worker:one", "rq:queue:ragbandit-answer", "rq:queue:ragbandit-judge"]
    for key in keys:
        put(redis_client, key, kind=kind)
    assert set(jobs.depth()) == {"answer", "judge", "learn"}
    assert (jobs.workers(), jobs.refused(), jobs.learner_fault("main")) == ([], 0, None)
    assert set(jobs.work().values()) == {QueueWork()}
    assert jobs.begin_run("d1") == 0
    assert jobs.count_try("d1") == 1
    count_job(redis_client, "ragbandit-answer", seconds=0.5, failed=False, worker_key="rq:worker:two")
    assert jobs.work()["answer"].done == 1
    assert {"counters"} <= foreign(jobs)
    assert not jobs.outage.lasts


def test_registrations_that_are_none_are_left_out(jobs, redis_client):
    """Of the registered workers those are told whose registration can be read; what is wrong in one is left out."""
    redis_client.sadd("rq:workers", GARBAGE, "x" * 10_000, "rq:worker:good", "rq:worker:list", "rq:worker:odd")
    row = {"queues": "ragbandit-answer", "state": "idle", "hostname": "h", "pid": "7", "last_heartbeat": "2026-01-01"}
    redis_client.hset("rq:worker:good", mapping=row)
    redis_client.rpush("rq:worker:list", "x")
    odd = dict.fromkeys(row, GARBAGE) | {"pid": b"9" * 6000, "last_heartbeat": "0001-01-01T00:00:00"}
    redis_client.hset("rq:worker:odd", mapping=odd)
    good, strange = jobs.workers()
    assert (good.name, good.queue, good.state, good.pid) == ("good", "answer", "idle", 7)
    assert (strange.queue, strange.heard_at) == ("other", None)
    assert foreign(jobs) == {"workers"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_learner_and_the_judge_are_notified(jobs, redis_client, kind):
    """Whatever stands in the keys of their queues, what is to be learned and judged is queued."""
    for key in ("rq:queue:ragbandit-learn", "rq:queue:ragbandit-judge", "rq:queues", "ragbandit:bell:main"):
        put(redis_client, key, kind=kind)
    jobs.enqueue_learn("main")
    jobs.enqueue_judge(["d1"])
    garbage = 1 if kind == "list" else 0
    assert jobs.depth() == {"answer": 0, "judge": 1 + garbage, "learn": 1 + garbage}
    assert foreign(jobs) == {"queues"}


def test_a_claim_without_an_end_is_taken(jobs, redis_client):
    """A claim on the recovery loop that nobody of ours made does not keep it from running."""
    redis_client.set("ragbandit:recovery:main", GARBAGE)
    assert [jobs.claim_recovery("main", for_s=60.0) for _ in range(2)] == [True, False]
    assert foreign(jobs) == {"claims"}


def test_a_step_that_fails_for_what_is_in_a_key_is_no_outage(jobs, redis_client):
    """It raises QueueError and is told as a fault of what was tried; whatever else Redis is asked is not held up."""
    redis_client.set("ragbandit:x", "text")
    notifier = Notifier(jobs, label="main", answer_s=1.0)
    refused = lambda: jobs._reached(lambda: redis_client.incr("ragbandit:x"))  # noqa: E731
    with pytest.raises(QueueError, match="not ours") as caught:
        refused()
    assert isinstance(caught.value.__cause__, RedisError)
    notifier.attempt(refused, what="queue answers")
    assert "cannot queue answers: " in notifier.fault()
    assert not jobs.outage.paused
    notifier.attempt(jobs.depth, what="queue answers")
    assert notifier.fault() is None


def test_the_log_has_one_line_for_much_of_it(jobs, caplog):
    """However much is met in a part, the log has a line now and then."""
    for _ in range(1000):
        jobs.outage.foreign.add("notifications", "two bytes")
    jobs.outage.foreign.add("streams", "an entry")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert jobs.outage.foreign.counts()["notifications"] == 1000
    assert "notifications, streams" in jobs.outage.foreign.recent()
