"""Wake-ups and notifications over a real Redis: they may come once, twice or never; they carry no facts."""

import time
from dataclasses import replace

import pytest

from ragbandit.router.queue.jobs import RedisJobs, connect_redis
from ragbandit.router.queue.refusals import CHANNEL
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.jobs.answers import AnswerQueue, waiting_ids
from ragbandit.shared.errors import QueueError
from ragbandit.shared.types import Query
from ragbandit.workers.chores.recovery import recover
from tests.support.waiting import until

#: the end of the line on an outage
RETRYING = "retrying (answers are delayed, nothing is lost)"


@pytest.fixture
def jobs(redis_client):
    return RedisJobs(redis_client)


def test_notifications_of_the_learner_coalesce(jobs):
    """A thousand notifications are one wake-up; after it was taken, the next feedback sends another."""
    for _ in range(1000):
        jobs.enqueue_learn()
    assert jobs.depth() == {"answer": 0, "learn": 1}
    assert [jobs.take_wake_up("learn", timeout_s=0.01) for _ in range(2)] == [True, False]
    jobs.enqueue_learn()
    assert jobs.depth()["learn"] == 1


def test_a_wake_up_for_each_answer(jobs, redis_client, monkeypatch):
    """Every decision that waits is an entry of RQ's list, up to a cap; a taken one leaves nothing."""
    jobs.enqueue_answers(["d1", "d2"])
    jobs.enqueue_answers([])
    first, second = redis_client.keys("rq:job:*")
    assert first != second
    assert 0 < redis_client.ttl(first) <= 86_400
    assert redis_client.llen("rq:queue:ragbandit-answer") == jobs.depth()["answer"] == 2
    assert [jobs.take_wake_up("answer", timeout_s=0.01) for _ in range(3)] == [True, True, False]
    assert redis_client.keys("rq:job:*") == []
    monkeypatch.setattr("ragbandit.router.queue.jobs.MAX_WAKE_UPS", 3)
    for _ in range(2):
        jobs.enqueue_answers(["d1", "d2"])
    jobs.enqueue_answers(["d1"])
    assert jobs.depth()["answer"] == 3


def test_recovery_after_flush(make_world, jobs, redis_client):
    """After FLUSHALL a pass of recovery sends a wake-up for each decision that waits; a second one adds nothing."""
    world = make_world()
    for _ in range(3):
        world.route(ours=True)
    redis_client.flushall()
    database, given = world.router.database, {"jobs": jobs, "settings": world.settings.judge, "now": world.now}
    assert [recover(database, **given) for _ in range(2)] == [3, 0]
    assert jobs.depth() == {"answer": 3, "learn": 0}
    assert AnswerQueue(database).claim() is not None
    redis_client.flushall()
    assert recover(database, **given) == 2  # one is being run


def test_redis_down(own_redis):
    """With Redis down every call raises QueueError with a remedy, quickly."""
    server, url = own_redis
    client = connect_redis(url)
    jobs = RedisJobs(client)
    server.stop()
    began = time.monotonic()
    calls = [
        lambda: jobs.enqueue_learn(),
        lambda: jobs.enqueue_answers(["d1"]),
        lambda: jobs.count_job("answer", seconds=1.0, failed=False),
        jobs.workers,
        lambda: jobs.take_wake_up("answer", timeout_s=1.0),
        jobs.work,
        lambda: jobs.publish("news"),
        jobs.depth,
        jobs.ping,
    ]
    for call in calls:
        with pytest.raises(QueueError) as caught:
            call()
        assert (caught.value.status, caught.value.field) == (503, "redis_url")
        assert "start it" in caught.value.remedy
    assert time.monotonic() - began < 5
    client.close()


def test_router_without_redis(own_redis, settings):
    """With Redis down the router decides, keeps outcomes and feedback and gives receipts: only late, not lost."""
    server, url = own_redis
    server.stop()
    with Router.open(settings(redis_url=url)) as router:
        decision = router.route("Who wrote Dracula?")
        asked, nothing = router.answer("Who wrote Emma?", wait_s=0.1)
        assert nothing is None
        router.outcome(decision.id, answer="Bram Stoker", steps=1)
        receipt = router.feedback(decision.id, rating=True)
        assert (receipt.duplicate, receipt.late) == (False, False)
        # The answer's, and one or two of the learner for the outcome and the feedback.
        until(lambda: router.process.notifier.failed_notifications >= 2)
        assert router.process.notifier.failed_notifications <= 3
        server.start()
        assert recover(router.database, jobs=router.process.jobs, settings=router.settings.judge, now=time.time()) == 1
        assert waiting_ids(router.database, limit=9) == [asked.id]
        assert router.learn() == 1
        assert router.decision(decision.id).state == "learned"
    router.process.jobs.client.close()


def test_an_outage_is_logged_once(own_redis, settings, caplog):
    """However often Redis is missed in an outage, and by however many parts, there is one line, and one at its end."""
    server, url = own_redis
    with caplog.at_level("INFO", logger="ragbandit"), Router.open(settings(redis_url=url)) as router:
        assert until(lambda: router.process.jobs.client.pubsub_numsub("ragbandit:news")[0][1] == 1)
        server.stop()
        decision = router.route("Who wrote Dracula?")
        router.process.notifier.request_answers([decision.id])
        for _ in range(3):
            with pytest.raises(QueueError):
                router.process.jobs.depth()
        time.sleep(1.2)  # the listener tries once a second
        server.start()
        assert until(lambda: not router.process.jobs.outage.lasts)
        router.process.notifier.request_answers([decision.id])
    lines = [record.getMessage() for record in caplog.records if "Redis" in record.getMessage()]
    assert lines == [f"lost connection to Redis; {RETRYING}", "Redis is reachable again"]
    router.process.jobs.client.close()


def test_router_hears_outcomes(redis_server, redis_client, settings):
    """A waiting caller gets its answer as soon as the worker's notification arrives."""
    with Router.open(settings(redis_url=redis_server)) as router:
        decision = router.submit(Query(text="Who wrote Dracula?"), run_by="worker").result(10)
        got = router.process.answers.request(decision)
        assert RedisJobs(redis_client).depth()["answer"] == 1
        assert until(lambda: redis_client.publish("ragbandit:news", "hello") == 1)
        ended = make_outcome(decision_id=decision.id, now=time.time(), answer="Bram Stoker", status="answered")
        router.store.add_outcome(replace(ended, run_by="worker"))
        RedisJobs(redis_client).publish(f"outcome:{decision.id}")
        assert got.result(5).answer == "Bram Stoker"
    router.process.jobs.client.close()


def test_router_follows_the_learner(redis_server, redis_client, settings):
    """A router switches to the learner's snapshot on notification, though it learned nothing itself."""
    configuration = settings(redis_url=redis_server)
    with Router.open(configuration) as router, Router.open(configuration) as other:
        assert until(lambda: redis_client.publish("ragbandit:news", "hello") == 2)
        decision = router.route("Who wrote Dracula?")
        router.feedback(decision.id, reward=0.5)
        assert router.learn() == 1
        assert until(lambda: other.service.serving.last_seq == 1)
        assert other.service.serving.version == router.service.serving.version
    router.process.jobs.client.close()
    other.process.jobs.client.close()


def test_a_listener_begins_again_after_an_error_that_nobody_foresaw(jobs, redis_client, monkeypatch):
    """After any exception of the client the listener subscribes again, and receives all notifications in order."""
    monkeypatch.setattr("ragbandit.router.queue.listener.PAUSE_S", 0.05)
    heard, subscribe = [], redis_client.pubsub
    failures = [ZeroDivisionError("odd"), UnicodeDecodeError("utf-8", b"", 0, 1, "odd")]

    def pubsub(**given):
        if failures:
            raise failures.pop()
        return subscribe(**given)

    monkeypatch.setattr(redis_client, "pubsub", pubsub)
    listener = jobs.listen(heard.append)
    try:
        until(lambda: redis_client.publish(CHANNEL, "hello") == 1)
        for number in range(5):
            jobs.publish(f"outcome:{number}")
        until(lambda: heard == ["hello", *(f"outcome:{number}" for number in range(5))])
    finally:
        listener.close()
