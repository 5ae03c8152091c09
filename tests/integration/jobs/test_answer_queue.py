"""The answer queue over a real Redis: tenants take turns, it has an end, its losses are found."""

import pickle
import zlib
from itertools import count

import pytest
from rq import Queue

from ragbandit.router.jobs.answer_queue import RECORD_S
from ragbandit.router.jobs.queue import ANSWER_JOB, ANSWER_QUEUE, LEARN_QUEUE, RedisJobs
from ragbandit.router.jobs.records import ORDER_KEY, RUNS_KEY, TURNS_KEY, RefusedJob, TakenJob, take
from ragbandit.router.serving.recovery import recover

LIST = f"rq:queue:{ANSWER_QUEUE}"
numbers = count()


@pytest.fixture
def jobs(redis_client):
    return RedisJobs(redis_client)


def ask(jobs, *ids, tenant="default", front=False):
    for key in ids:
        jobs.enqueue_answer(key, tenant=tenant, timeout_s=5.0, front=front)


def taken(redis_client):
    return take(redis_client, ANSWER_QUEUE, timeout_s=None, process="host:1:2:space")


def all_taken(redis_client):
    """The ids in the order in which workers take them."""
    return [job.id for job in iter(lambda: taken(redis_client), None)]


def fill(redis_client, *, upto):
    """Decisions of one tenant with a record each, put there by Redis itself."""
    redis_client.eval(
        """
        for number = redis.call('LLEN', KEYS[1]) + 1, ARGV[1] do
            redis.call('HSET', 'rq:job:filled-' .. number, 'tenant', 'filler')
            redis.call('RPUSH', KEYS[1], 'filled-' .. number)
            redis.call('ZADD', KEYS[2], number, 'filled-' .. number)
        end
        """,
        2,
        LIST,
        ORDER_KEY,
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
    calls = {
        "enqueue": lambda: ask(jobs, f"d{next(numbers)}"),
        "take": lambda: taken(redis_client),
        "missing": lambda: jobs.missing([f"lost-{number}" for number in range(50)]),
        "depth": jobs.depth,
        "front": lambda: ask(jobs, f"filled-{1000 + next(numbers)}", front=True),
    }
    fill(redis_client, upto=2000)
    before = {name: least_us(redis_client, call) for name, call in calls.items()}
    fill(redis_client, upto=50_000)
    after = {name: least_us(redis_client, call) for name, call in calls.items()}
    assert {name: us for name, us in after.items() if us > 3 * before[name] + 100} == {}


def test_tenants_take_turns(jobs, redis_client):
    """A tenant that floods the queue delays the next question of another by one, and its own as before."""
    ask(jobs, *(f"flood-{number:02}" for number in range(20)), tenant="flood")
    assert [taken(redis_client).id for _ in range(5)] == [f"flood-{number:02}" for number in range(5)]
    ask(jobs, "b-1", "b-2", tenant="b")
    ask(jobs, "c-1", tenant="c")
    order = all_taken(redis_client)
    assert max(order.index("b-1"), order.index("c-1")) <= 2
    assert order.index("b-2") <= 4
    assert [key for key in order if key.startswith("flood")] == [f"flood-{number:02}" for number in range(5, 20)]


def test_a_tenant_saves_no_turns(jobs, redis_client):
    """A tenant that asked nothing for long has no turns saved: from its first question on it takes every other one."""
    ask(jobs, *(f"a-{number:02}" for number in range(30)), tenant="a")
    for _ in range(20):
        taken(redis_client)
    ask(jobs, *(f"b-{number:02}" for number in range(10)), tenant="b")
    order = all_taken(redis_client)
    assert {key[0] for key in order[:2]} == {"a", "b"}
    assert 4 <= sum(key.startswith("b") for key in order[:10]) <= 6


def test_turns_are_forgotten(jobs, redis_client):
    """What is remembered of a tenant goes with its last decision, and all of it with the last decision of the queue."""
    for tenant in range(50):
        ask(jobs, f"d-{tenant}", tenant=f"tenant-{tenant}")
    for _ in range(49):
        taken(redis_client)
    assert redis_client.hlen(TURNS_KEY) == 2  # the turn that was taken last, and the one tenant that waits
    taken(redis_client)
    assert redis_client.exists(TURNS_KEY, ORDER_KEY, LIST) == 0


def test_a_taken_job_leaves_its_lease(jobs, redis_client):
    """A job that is taken has no entry and no record, and its lease from the same step on: nobody queues it again."""
    ask(jobs, "d1", "d2")
    assert taken(redis_client) == TakenJob(queue=ANSWER_QUEUE, id="d1", name=ANSWER_JOB, argument="d1")
    assert not redis_client.exists("rq:job:d1")
    assert redis_client.hgetall(RUNS_KEY) == {b"d1": b"host:1:2:space"}
    ask(jobs, "d1")
    assert jobs.depth()["answer"] == 1
    assert jobs.missing(["d1", "d2"]) == []
    jobs.begin_run("d1")
    jobs.end_run("d1", kept=False)
    assert jobs.missing(["d1", "d2"]) == ["d1"]


def test_to_the_front(jobs, redis_client):
    """A decision asked for in front is the next one taken, queued before or not, and is taken once."""
    ask(jobs, "d1", "d2", "d3")
    ask(jobs, "d3", "d3", front=True)
    assert jobs.depth()["answer"] == 3
    ask(jobs, "new", front=True)
    assert all_taken(redis_client) == ["new", "d3", "d1", "d2"]


def test_a_worker_that_died_between_two_steps(jobs, redis_client):
    """A worker that took an entry of the list and died left its decision in the order, from which it is taken."""
    ask(jobs, "d1", "d2", "d3")
    redis_client.lpop(LIST)
    assert jobs.missing(["d1", "d2", "d3"]) == []
    assert all_taken(redis_client) == ["d1", "d2", "d3"]


def test_the_list_is_lost_and_the_order_is_not(jobs, redis_client):
    """With RQ's list gone nothing is missing, and every decision is taken."""
    ask(jobs, "d1", "d2")
    redis_client.delete(LIST)
    assert jobs.missing(["d1", "d2"]) == []
    assert all_taken(redis_client) == ["d1", "d2"]


def test_the_order_is_lost_and_the_list_is_not(jobs, redis_client):
    """With the order gone what has its record is taken as it stands in the list: so are the jobs of another release."""
    ask(jobs, "d1", "d2")
    redis_client.delete(ORDER_KEY)
    assert jobs.missing(["d1", "d2"]) == ["d1", "d2"]
    assert all_taken(redis_client) == ["d1", "d2"]
    assert redis_client.hlen(RUNS_KEY) == 2


def test_strange_entries_hide_nothing(jobs, redis_client):
    """Members that somebody else put into the order are passed over, whatever their number and their bytes."""
    ask(jobs, "d1", "d2")
    redis_client.zadd(ORDER_KEY, {b"\xff\xfe": 1e300, "low": -1e300, "x" * 1000: float("-inf"), "high": float("inf")})
    redis_client.hset(TURNS_KEY, mapping={"taken": "nan", "last:default": b"\xff", "last:b": "1e400"})
    ask(jobs, "d3")
    ask(jobs, "d4", tenant="b")
    ask(jobs, "d5", front=True)
    assert set(all_taken(redis_client)) == {"d1", "d2", "d3", "d4", "d5"}


@pytest.mark.parametrize("key", [LIST, ORDER_KEY, TURNS_KEY, RUNS_KEY, "rq:queues", "rq:job:d1"])
def test_keys_of_another_type(jobs, redis_client, caplog, key):
    """A key that somebody else made something else of is deleted and made anew, and decisions are queued and taken."""
    wrong = "rpush" if key != LIST else "sadd"
    getattr(redis_client, wrong)(key, "wrong")
    ask(jobs, "d1")
    assert taken(redis_client).id == "d1"
    redis_client.delete(key)
    ask(jobs, "d2")
    redis_client.delete(key)
    getattr(redis_client, wrong)(key, "wrong")
    assert isinstance(jobs.depth()["answer"], int)
    found = taken(redis_client)
    assert (found and found.id == "d2") or jobs.missing(["d2"]) == ["d2"]
    assert not jobs.outage.lasts


def test_the_queue_has_an_end(redis_client, make_world, caplog):
    """Beyond its cap the queue takes nothing; the rest waits in the database and is queued when there is room."""
    world = make_world(workers={"max_queued": 3})
    jobs = RedisJobs(redis_client, max_queued=3)
    asked = [world.route(ours=True) for _ in range(5)]
    ask(jobs, *(decision.id for decision in asked))
    assert redis_client.zrange(ORDER_KEY, 0, -1) == [decision.id.encode() for decision in asked[:3]]
    assert sum("the answer queue is full" in record.getMessage() for record in caplog.records) == 1
    world.now += 60
    assert recover(world.ledger, jobs=jobs, settings=world.settings, now=world.now).requeued == 0
    for decision in asked[:2]:
        assert taken(redis_client).id == decision.id
        world.outcome(decision, by_worker=True)
    assert recover(world.ledger, jobs=jobs, settings=world.settings, now=world.now).requeued == 2
    assert set(all_taken(redis_client)) == {decision.id for decision in asked[2:]}


def test_recovery_keeps_the_turns(redis_client, make_world):
    """What the recovery loop queues again has its tenant's turns, not one line behind the tenant that asked first."""
    world = make_world()
    first = [world.route(ours=True, tenant="a") for _ in range(6)]
    second = world.route(ours=True, tenant="b")
    world.now += 60
    jobs = RedisJobs(redis_client)
    assert recover(world.ledger, jobs=jobs, settings=world.settings, now=world.now).requeued == 7
    order = all_taken(redis_client)
    assert order.index(second.id) <= 1
    assert [key for key in order if key != second.id] == [decision.id for decision in first]


def test_no_record_stays_for_ever(jobs, redis_client):
    """Every record has an end, and a decision whose record has gone is passed over and then missing."""
    ask(jobs, "d1", "d2")
    jobs.enqueue_learn("main")
    (learn,) = Queue(LEARN_QUEUE, connection=redis_client).job_ids
    assert 0 < redis_client.ttl("rq:job:d1") <= RECORD_S
    assert 0 < redis_client.ttl(f"rq:job:{learn}") <= 3600
    redis_client.delete("rq:job:d1")
    assert all_taken(redis_client) == ["d2"]
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
    assert redis_client.hlen(RUNS_KEY) == 0
    world.now += 60
    requeued = [recover(world.ledger, jobs=jobs, settings=world.settings, now=world.now).requeued for _ in range(2)]
    assert requeued == [3, 0]
    assert set(all_taken(redis_client)) == {decision.id for decision in asked}
    assert jobs.depth()["answer"] == 0


def test_a_flooded_learn_queue(jobs, redis_client):
    """Of a learn queue that somebody else has filled a bounded part is read, and nothing is added to it."""
    redis_client.rpush(Queue(LEARN_QUEUE, connection=redis_client).key, *(f"junk-{number}" for number in range(2000)))
    jobs.enqueue_learn("main")
    assert jobs.depth()["learn"] == 2000
