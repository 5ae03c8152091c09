"""The answer queue over a real Redis: its cost does not grow, it has an end, and what it loses is found."""

import pickle
import zlib
from itertools import count

import pytest
from rq import Queue

from ragbandit.router.jobs.answer_queue import NEAR, RECORD_S
from ragbandit.router.jobs.queue import ANSWER_JOB, ANSWER_QUEUE, LEARN_QUEUE, RedisJobs
from ragbandit.router.jobs.records import RefusedJob, TakenJob, take
from ragbandit.router.serving.recovery import recover

numbers = count()


@pytest.fixture
def jobs(redis_client):
    return RedisJobs(redis_client)


def ask(jobs, *ids):
    for key in ids:
        jobs.enqueue_answer(key, timeout_s=5.0)


def listed(redis_client):
    return Queue(ANSWER_QUEUE, connection=redis_client).job_ids


def taken(redis_client):
    return take(redis_client, ANSWER_QUEUE, timeout_s=None)


def fill(redis_client, *, upto):
    """Entries with a numbered record each, made by Redis itself."""
    redis_client.eval(
        """
        for number = redis.call('LLEN', KEYS[1]) + 1, ARGV[1] do
            redis.call('HSET', 'rq:job:filled-' .. number, 'order', redis.call('INCR', 'ragbandit:answer-order'))
            redis.call('RPUSH', KEYS[1], 'filled-' .. number)
        end
        """,
        1,
        Queue(ANSWER_QUEUE, connection=redis_client).key,
        upto,
    )


def least_us(redis_client, work, *, times=10):
    """The least time that Redis spent in the commands of one call, microseconds."""
    redis_client.config_set("slowlog-log-slower-than", 0)
    spent = []
    for _ in range(times):
        redis_client.slowlog_reset()
        work()
        spent.append(
            sum(entry["duration"] for entry in redis_client.slowlog_get(100) if b"SLOW" not in entry["command"])
        )
    redis_client.config_set("slowlog-log-slower-than", 10_000)
    return min(spent)


def test_cost_does_not_grow(jobs, redis_client):
    """Redis spends no more on a call with 50,000 decisions queued than with 2,000: it is flat, not linear."""

    def move():
        name = f"d{next(numbers)}"
        redis_client.hset(f"rq:job:{name}", "order", 1)
        jobs.move_to_front(name)

    def take_one():
        redis_client.lpush(Queue(ANSWER_QUEUE, connection=redis_client).key, f"d{next(numbers)}")
        taken(redis_client)

    calls = {
        "enqueue": lambda: ask(jobs, f"d{next(numbers)}"),
        "take": take_one,
        "missing": lambda: jobs.missing([f"lost-{number}" for number in range(50)]),
        "depth": jobs.depth,
        "move": move,
    }
    fill(redis_client, upto=2 * NEAR)
    before = {name: least_us(redis_client, call) for name, call in calls.items()}
    fill(redis_client, upto=50_000)
    after = {name: least_us(redis_client, call) for name, call in calls.items()}
    assert {name: us for name, us in after.items() if us > 3 * before[name] + 100} == {}


def test_a_taken_job_leaves_nothing_behind(jobs, redis_client):
    """A job that is taken has no entry and no record, and for a moment a mark, so that nobody queues it again."""
    ask(jobs, "d1", "d2")
    assert taken(redis_client) == TakenJob(queue=ANSWER_QUEUE, id="d1", name=ANSWER_JOB, argument="d1")
    assert not redis_client.exists("rq:job:d1")
    assert listed(redis_client) == ["d2"]
    assert 0 < redis_client.pttl("ragbandit:taken:d1") <= 5000
    ask(jobs, "d1")
    assert listed(redis_client) == ["d2"]
    assert jobs.missing(["d1", "d2"]) == []
    jobs.begin_run("d1")
    assert not redis_client.exists("ragbandit:taken:d1")
    jobs.end_run("d1", kept=False)
    assert jobs.missing(["d1", "d2"]) == ["d1"]


def test_a_worker_that_died_before_it_began(jobs, redis_client):
    """A job whose worker died with it in hand is missing once its mark is gone, and comes back at the end."""
    ask(jobs, "d1", "d2")
    taken(redis_client)
    redis_client.delete("ragbandit:taken:d1")  # what happens by itself within 5 s
    assert jobs.missing(["d1", "d2"]) == ["d1"]
    ask(jobs, "d1")
    assert listed(redis_client) == ["d2", "d1"]


def test_a_worker_that_died_between_two_steps(jobs, redis_client):
    """A job that left the list and kept its record is missing: the front of the list has passed it."""
    ask(jobs, "d1", "d2", "d3")
    redis_client.lpop("rq:queue:ragbandit-answer")
    assert jobs.missing(["d1", "d2", "d3"]) == ["d1"]
    for key in jobs.missing(["d1"]):
        jobs.enqueue_answer(key, timeout_s=5.0, missing=True)
    assert listed(redis_client) == ["d2", "d3", "d1"]
    assert jobs.missing(["d1", "d2", "d3"]) == []


def test_the_list_is_lost_and_the_records_are_not(jobs, redis_client):
    """With the list gone all that has a record is missing, also when new decisions are queued meanwhile."""
    ask(jobs, "d1", "d2")
    redis_client.delete("rq:queue:ragbandit-answer")
    assert jobs.missing(["d1", "d2"]) == ["d1", "d2"]
    ask(jobs, "d3")
    assert jobs.missing(["d1", "d2", "d3"]) == ["d1", "d2"]


def test_moved_entries_do_not_hide_the_front(jobs, redis_client):
    """Decisions that were moved to the front say nothing of what the list has passed."""
    ask(jobs, "d1", "d2", "d3")
    jobs.move_to_front("d3")
    jobs.move_to_front("d3")
    assert listed(redis_client) == ["d3", "d1", "d2"]
    assert jobs.missing(["d1", "d2", "d3"]) == []
    assert [taken(redis_client).id for _ in range(3)] == ["d3", "d1", "d2"]


def test_moved_in_a_long_list(jobs, redis_client):
    """In a long list a moved decision is taken next and once; its entry behind is passed over."""
    ask(jobs, "first", "moved")
    fill(redis_client, upto=NEAR + 1)
    jobs.move_to_front("moved")
    jobs.move_to_front("moved")
    assert listed(redis_client).count("moved") == 2
    assert [taken(redis_client).id for _ in range(2)] == ["moved", "first"]
    assert isinstance(taken(redis_client), RefusedJob)  # one of the fill, whose record has no data
    assert "moved" not in listed(redis_client)


def test_the_queue_has_an_end(redis_client, make_world, caplog):
    """Beyond its cap the queue takes nothing; the rest waits in the database and is queued when there is room."""
    world = make_world(workers={"max_queued": 3})
    jobs = RedisJobs(redis_client, max_queued=3)
    asked = [world.route(ours=True) for _ in range(5)]
    ask(jobs, *(decision.id for decision in asked))
    assert listed(redis_client) == [decision.id for decision in asked[:3]]
    assert sum("the answer queue is full" in record.getMessage() for record in caplog.records) == 1
    world.now += 60
    assert recover(world.ledger, jobs=jobs, settings=world.settings, now=world.now).requeued == 0
    for decision in asked[:2]:
        assert taken(redis_client).id == decision.id
        world.outcome(decision, by_worker=True)
    assert recover(world.ledger, jobs=jobs, settings=world.settings, now=world.now).requeued == 2
    assert listed(redis_client) == [decision.id for decision in asked[2:]]


def test_no_record_stays_for_ever(jobs, redis_client):
    """Every record has an end, and one that has gone makes its decision missing."""
    ask(jobs, "d1")
    jobs.enqueue_learn("main")
    (learn,) = Queue(LEARN_QUEUE, connection=redis_client).job_ids
    assert 0 < redis_client.ttl("rq:job:d1") <= RECORD_S
    assert 0 < redis_client.ttl(f"rq:job:{learn}") <= 3600
    redis_client.delete("rq:job:d1")
    assert jobs.missing(["d1"]) == ["d1"]


def test_bytes_of_a_queued_decision(jobs, redis_client):
    """A queued decision takes less than 1,500 bytes of Redis; with the record that RQ writes it was 2,000."""
    before = redis_client.info("memory")["used_memory"]
    ask(jobs, *(f"0198f2c4-7f3e-7000-8000-{number:012d}" for number in range(500)))
    assert (redis_client.info("memory")["used_memory"] - before) / 500 < 1500


def test_jobs_of_release_0_1_are_queued_anew(make_world, jobs, redis_client, tmp_path):
    """What release 0.1 queued, in pickles, is not opened: recovery finds it in the database and queues it anew."""
    world = make_world()
    asked = [world.route(ours=True) for _ in range(3)]
    queue = Queue(ANSWER_QUEUE, connection=redis_client)
    for decision in asked:
        queue.enqueue(ANSWER_JOB, decision.id, job_id=decision.id, result_ttl=0, failure_ttl=3600, job_timeout=150)
    assert pickle.loads(zlib.decompress(redis_client.hget(f"rq:job:{asked[0].id}", "data")))[0] == ANSWER_JOB
    assert isinstance(taken(redis_client), RefusedJob)  # a worker of today is there before the recovery loop
    redis_client.delete(*redis_client.keys("ragbandit:taken:*"))
    world.now += 60
    # The old entries stand in front with new numbers, so one decision may get a second entry, which is passed over.
    requeued = [recover(world.ledger, jobs=jobs, settings=world.settings, now=world.now).requeued for _ in range(3)]
    assert requeued == [3, 1, 0]
    found = [taken(redis_client) for _ in range(3)]
    assert {job.id for job in found} == {decision.id for decision in asked}
    assert all(isinstance(job, TakenJob) for job in found)
    assert taken(redis_client) is None
    assert jobs.depth()["answer"] == 0


def test_a_flooded_learn_queue(jobs, redis_client):
    """Of a learn queue that somebody else has filled a bounded part is read, and nothing is added to it."""
    redis_client.rpush(Queue(LEARN_QUEUE, connection=redis_client).key, *(f"junk-{number}" for number in range(2000)))
    jobs.enqueue_learn("main")
    assert jobs.depth()["learn"] == 2000
