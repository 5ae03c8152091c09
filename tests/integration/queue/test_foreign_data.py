"""Data of somebody else in a real Redis: it is dropped or read as absent, counted, and stands in nobody's way."""

from dataclasses import replace

import pytest
from redis.exceptions import RedisError

from ragbandit.router.queue import jobs as listening
from ragbandit.router.queue.jobs import CHANNEL, RedisJobs
from ragbandit.router.queue.notifier import Notifier
from ragbandit.router.queue.presence import MAX_THREADS, Presence, QueueWork, card_of, say
from ragbandit.shared.errors import QueueError
from tests.support.waiting import until

#: not UTF-8, no number, no time
GARBAGE = b"\xff\xfe"

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def jobs(redis_client):
    return RedisJobs(redis_client)


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
        until(lambda: redis_client.publish(CHANNEL, published) == 1)
        until(lambda: foreign(jobs) == {"notifications"})
        jobs.publish("outcome:one")
        until(lambda: heard == ["outcome:one"])
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
        until(lambda: redis_client.publish(CHANNEL, "outcome:one") == 1)
        until(lambda: heard == ["outcome:one"])
    finally:
        listener.close()


def test_a_listener_tells_why_it_hears_nothing(jobs, monkeypatch):
    """One that has ended says so, one that cannot subscribe too."""
    monkeypatch.setattr(listening, "GRACE_S", 0.1)
    monkeypatch.setattr(jobs.client, "pubsub", lambda **_: 1 / 0)
    listener = jobs.listen(print)
    until(lambda: "not subscribed" in (listener.fault() or ""))
    listener.close()
    assert "has ended" in listener.fault()


@pytest.mark.parametrize("value", [GARBAGE, b"nan", b"inf", b"-1", b"1" * 5000, b"1e999"])
def test_counts_that_are_none_are_read_as_0(jobs, redis_client, value):
    """A field or a counter that holds no count is 0 and counted as foreign; its neighbours are read."""
    redis_client.hset("ragbandit:work", mapping={"answer:done": value, "answer:failed": 3, "x": GARBAGE})
    redis_client.set("ragbandit:refused-jobs", value)
    assert jobs.work()["answer"] == QueueWork(failed=3)
    assert jobs.refused() == 0
    assert foreign(jobs) == {"counters"}


@pytest.mark.parametrize("kind", ["hash", "string"])
def test_counts_begin_anew(jobs, redis_client, kind):
    """A worker that finds no counts where its own were begins anew with the next job."""
    if kind == "hash":
        redis_client.hset("ragbandit:work", "answer:done", GARBAGE)
    else:
        redis_client.set("ragbandit:work", GARBAGE)
    for _ in range(2):
        jobs.count_job("answer", seconds=0.5, failed=False)
    assert jobs.work()["answer"] == QueueWork(done=1, seconds=0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_another_type_are_read_as_absent(jobs, redis_client, kind):
    """Whatever type our keys have, what waits and what was done is read, and no outage begins."""
    keys = ["ragbandit:work", "ragbandit:refused-jobs", "ragbandit:learner_fault:main", "rq:queue:ragbandit-answer"]
    for key in keys:
        put(redis_client, key, kind=kind)
    assert set(jobs.depth()) == {"answer", "learn"}
    assert (jobs.refused(), jobs.learner_fault("main")) == (0, None)
    assert set(jobs.work().values()) == {QueueWork()}
    jobs.count_job("answer", seconds=0.5, failed=False)
    jobs.count_job("answer", seconds=0.5, failed=False)
    assert jobs.work()["answer"].done >= 1
    assert {"counters"} <= foreign(jobs)
    assert not jobs.outage.lasts


def test_cards_that_are_none_are_left_out(jobs, redis_client):
    """Of the workers those are told whose cards can be read, a thread each, and no more threads than there may be."""
    good = card_of(role="worker", threads={"answer": 2, "learn": 1})
    say(redis_client, replace(good, busy={"answer": 1}))
    say(redis_client, replace(good, mark="many", host="zz-many", threads={"judge": 10**9}))
    for number, text in enumerate([GARBAGE, b"[]", b"{}", b'{"threads": 3}', b"[" * 100_000, b'"x"']):
        redis_client.set(f"card-{number}", text)
        redis_client.zadd("ragbandit:processes", {f"card-{number}": 1e300})
    put(redis_client, "card-list", kind="list")
    redis_client.zadd("ragbandit:processes", {"card-list": 1, GARBAGE: 2})
    told = jobs.workers()
    assert len(told) == MAX_THREADS
    states = [(one.queue, one.state) for one in told if one.host == good.host]
    assert states == [("answer", "busy"), ("answer", "idle"), ("learn", "idle")]
    assert {one.queue for one in told} == {"answer", "judge", "learn"}


def test_a_key_of_another_type_hides_the_workers_alone(jobs, redis_client):
    """Where the list of processes is something else, none is listed, which is counted and no outage; they go on."""
    put(redis_client, "ragbandit:processes", kind="string")
    assert jobs.workers() == []
    assert foreign(jobs) == {"workers"}
    presence = Presence(client=redis_client, card=card_of(role="worker", threads={"answer": 1})).start()
    presence.close()
    assert not jobs.outage.lasts


@pytest.mark.parametrize("kind", KINDS)
def test_bells_in_keys_of_another_type(jobs, redis_client, kind):
    """Whatever stands in the keys of RQ's queues, ringing is no outage; where it fails, it says why."""
    for key in ("rq:queue:ragbandit-learn", "rq:queue:ragbandit-answer", "rq:queues"):
        put(redis_client, key, kind=kind)
    notifier = Notifier(jobs, label="main")
    notifier.attempt(lambda: jobs.enqueue_learn("main"), what="wake the learner")
    notifier.attempt(lambda: jobs.enqueue_answers(["d1"]), what="queue answers")
    assert ("not ours" in (notifier.fault() or "not ours")) is True
    assert not jobs.outage.paused


def test_a_step_that_fails_for_what_is_in_a_key_is_no_outage(jobs, redis_client):
    """It raises QueueError and is told as a fault of what was tried; whatever else Redis is asked is not held up."""
    redis_client.set("ragbandit:x", "text")
    notifier = Notifier(jobs, label="main")
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
