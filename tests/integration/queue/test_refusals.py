"""A real Redis that replies to PING and refuses what RagBandit needs: the refusal names the command and the remedy."""

import subprocess
import time

import pytest
from redis import Redis
from redis.exceptions import RedisError

from benchmarks.service_process import free_port
from ragbandit.router.config.settings import Settings
from ragbandit.router.operation.findings import findings_of_processes
from ragbandit.router.queue.jobs import RedisJobs, connect_redis
from ragbandit.router.queue.redis_server import _binary
from ragbandit.shared.errors import QueueError


def full(client):
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", "1")


def replica(client):
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    client.config_set("replica-serve-stale-data", "yes")


def without(*rules):
    return lambda client: client.execute_command("ACL", "SETUSER", "default", *rules)


REFUSALS = {
    "full": (full, "SET", "raise its maxmemory"),
    "replica": (replica, "SET", "name the primary"),
    "no BLPOP": (without("-blpop"), "BLPOP", "ACL SETUSER"),
    "no streams": (without("-xadd"), "XADD", "ACL SETUSER"),
    "no keys of RQ": (without("resetkeys", "~ragbandit:*"), "RPUSH", "~rq:*"),
    "no channels": (without("resetchannels"), "PUBLISH", "&ragbandit"),
    "no SUBSCRIBE": (without("-subscribe"), "SUBSCRIBE", "ACL SETUSER"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_names_the_command_and_the_remedy(own_redis, name, tmp_path):
    """/ready and `status` name what is refused, and say neither that Redis is down nor that no worker runs."""
    refuse, command, remedy = REFUSALS[name]
    client = connect_redis(own_redis[1])
    RedisJobs(client).ping()
    refuse(client)
    with pytest.raises(QueueError, match=f"Redis refuses {command}") as raised:
        RedisJobs(client).ping()
    assert remedy in str(raised.value.remedy)
    (line,) = findings_of_processes(Settings(data_dir=str(tmp_path), redis_url=own_redis[1]))
    assert (line.severity, line.about) == ("problem", "Redis")
    assert f"refuses {command}" in line.what
    client.close()


def test_a_redis_in_cluster_mode_is_refused_by_that_name(tmp_path):
    """Whether its slots are served or not, the finding names cluster mode and what to use instead."""
    port = next(port for port in iter(free_port, None) if port < 55_000)  # the cluster's own port is 10,000 above
    options = ("--port", str(port), "--cluster-enabled", "yes", "--save", "", "--dir", str(tmp_path))
    server = subprocess.Popen([_binary(), *options, "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL)
    try:
        client, until = Redis(port=port), time.monotonic() + 10
        while time.monotonic() < until:
            try:
                client.ping()
                break
            except RedisError:
                time.sleep(0.05)
        for slots in ((), range(16_384)):
            if slots:
                client.execute_command("CLUSTER", "ADDSLOTS", *slots)
            with pytest.raises(QueueError, match="Redis is in cluster mode") as raised:
                RedisJobs(client).ping()
            assert "without cluster mode" in str(raised.value.remedy)
        client.close()
    finally:
        server.terminate()
        server.wait(10)


def test_a_trial_leaves_nothing_that_stays(redis_client):
    """Every key of a trial expires or is removed, so that a Redis is as full afterwards as before."""
    for _ in range(3):
        RedisJobs(redis_client).ping()
    assert all(0 < redis_client.ttl(key) <= 60 for key in redis_client.scan_iter())
