"""Run leases over a real Redis: what a dead process ran is found, what a live one runs is left alone."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ragbandit.router.jobs.foreign_data import ForeignData
from ragbandit.router.jobs.queue import ANSWER_QUEUE, RedisJobs
from ragbandit.router.jobs.records import RUNS_KEY, take
from ragbandit.router.jobs.run_leases import PROCESS_S, RunLeases
from ragbandit.router.process_identity import ProcessIdentity, this_process

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells of processes in /proc")


@pytest.fixture
def jobs(redis_client):
    return RedisJobs(redis_client)


@pytest.fixture
def sleeper():
    """Another process of this host, and how a lease names it."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    started = "".join(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19:20])
    yield process, replace(this_process(), pid=process.pid, started=started)
    process.kill()
    process.wait(10)
    process.stdout.close()


def leases_of(client, **given):
    return RunLeases(client, foreign=ForeignData(), **given)


def elsewhere(**changes):
    """A process of another host."""
    return replace(this_process(), host="other", pid_space="another", **changes)


def lost(leases, *, held=()):
    return set(leases.lost(held=held))


def test_a_lease_names_its_process(redis_client):
    """A lease holds host, process id, start and pid space, and says so back."""
    leases_of(redis_client).renew(["d1"])
    key = redis_client.hget(RUNS_KEY, "d1").decode()
    assert ProcessIdentity.from_key(key) == this_process()
    assert this_process().pid == os.getpid()
    assert 0 < redis_client.ttl(f"ragbandit:alive:{key}") <= PROCESS_S


@linux
def test_a_killed_process_of_this_host_is_dead_at_once(redis_client, sleeper):
    """The first look after its death finds what it ran, reaped or not, though its key is still there."""
    process, named = sleeper
    leases_of(redis_client, process=named).renew(["d1", "d2"])
    leases = leases_of(redis_client)
    assert lost(leases) == set()
    assert leases.runs_elsewhere("d1")
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie: its parent has not asked yet
    assert lost(leases) == {"d1", "d2"}
    assert not leases.runs_elsewhere("d1")


@linux
def test_a_process_of_this_host_lives_while_its_kernel_says_so(redis_client, sleeper):
    """A process that is too busy to renew its key keeps what it runs: its kernel knows that it lives."""
    _, named = sleeper
    leases_of(redis_client, process=named).renew(["d1"])
    redis_client.delete(f"ragbandit:alive:{named.key}")
    leases = leases_of(redis_client)
    assert [lost(leases) for _ in range(3)] == [set()] * 3


@linux
def test_a_process_id_that_is_used_again_is_another_process(redis_client):
    """A process with the id of a dead one, begun at another time, does not keep its leases alive."""
    leases_of(redis_client, process=replace(this_process(), started="1")).renew(["d1"])
    assert lost(leases_of(redis_client)) == {"d1"}


def test_a_process_of_another_host_is_dead_after_two_looks(redis_client):
    """A process of another host that has not renewed its key is suspected at one look and dead at the next."""
    theirs = leases_of(redis_client, process=elsewhere())
    theirs.renew(["d1"])
    leases = leases_of(redis_client)
    assert [lost(leases), lost(leases)] == [set(), set()]
    redis_client.delete(f"ragbandit:alive:{elsewhere().key}")
    assert lost(leases) == set()
    theirs.renew(["d1"])  # it was late
    assert lost(leases) == set()
    redis_client.delete(f"ragbandit:alive:{elsewhere().key}")
    assert [lost(leases), lost(leases)] == [set(), {"d1"}]


def test_a_lease_that_nobody_holds(redis_client):
    """A lease in this process's name that no thread has in hand is lost after two looks; what is in hand never is."""
    leases = leases_of(redis_client)
    leases.renew(["d1", "d2"])
    assert [lost(leases, held=["d2"]), lost(leases, held=["d2"])] == [set(), {"d1"}]


def test_what_is_lost_is_queued_in_front(jobs, redis_client):
    """Decisions of a dead process are queued once, in front, by whichever process looks first; other leases stay."""
    leases_of(redis_client, process=elsewhere()).renew(["d1", "d2"])
    leases_of(redis_client).renew(["mine"])
    jobs.enqueue_answer("waits", tenant="a", timeout_s=5.0)
    redis_client.delete(f"ragbandit:alive:{elsewhere().key}")
    others = RedisJobs(redis_client)
    found = [each.requeue_lost(held=["mine"], timeout_s=5.0) for each in (jobs, others, jobs, others)]
    assert found[:2] == [[], []]
    assert set(found[2]) == {"d1", "d2"}
    assert found[3] == []
    assert redis_client.hkeys(RUNS_KEY) == [b"mine"]
    order = [take(redis_client, ANSWER_QUEUE, timeout_s=None).id for _ in range(3)]
    assert (set(order[:2]), order[2]) == ({"d1", "d2"}, "waits")


def test_a_full_queue_takes_what_was_lost(redis_client):
    """A decision that a dead process ran had its place: it is queued though the queue is full by now."""
    jobs = RedisJobs(redis_client, max_queued=1)
    leases_of(redis_client, process=replace(elsewhere(), pid=7)).renew(["d1"])
    redis_client.delete(*redis_client.keys("ragbandit:alive:*"))
    jobs.enqueue_answer("waits", tenant="a", timeout_s=5.0)
    for _ in range(2):
        jobs.requeue_lost(held=(), timeout_s=5.0)
    assert jobs.depth()["answer"] == 2


def test_strange_leases(jobs, redis_client):
    """What somebody else wrote among the leases goes: text is queued as an id, which no worker knows."""
    redis_client.hset(RUNS_KEY, mapping={b"\xff": "x", "d1": b"\xff\xfe", "d2": "a:b:c:d", "d3": "1:2:3:4:5"})
    for _ in range(2):
        jobs.requeue_lost(held=(), timeout_s=5.0)
    assert (redis_client.hlen(RUNS_KEY), jobs.depth()["answer"]) == (0, 2)
    redis_client.lpush("other", "x")
    redis_client.rename("other", RUNS_KEY)
    assert jobs.requeue_lost(held=(), timeout_s=5.0) == []
    jobs.mark_running("d9")
    assert redis_client.hkeys(RUNS_KEY) == [b"d9"]


def test_leases_of_others_stay(redis_client):
    """A process drops its own leases alone."""
    leases_of(redis_client, process=elsewhere()).renew(["d1"])
    leases = leases_of(redis_client)
    leases.renew(["d2"])
    leases.drop(["d1", "d2"])
    assert redis_client.hkeys(RUNS_KEY) == [b"d1"]
