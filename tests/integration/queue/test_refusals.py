"""A real Redis that replies to PING and refuses what RagBandit needs: the refusal names the command and the remedy."""

import contextlib
import subprocess
from functools import partial

import pytest
from redis import Redis
from redis.exceptions import RedisError

from benchmarks.service_process import free_port
from ragbandit.router.config.settings import Settings
from ragbandit.router.operation.findings import findings_of_processes
from ragbandit.router.queue.jobs import RedisJobs, connect_redis
from ragbandit.router.queue.redis_server import _find_binary
from ragbandit.shared.errors import QueueError
from tests.support.waiting import until


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


@pytest.fixture
def nodes(tmp_path):
    """Clients of three redis-servers in cluster mode, each alone."""
    servers, clients = [], []
    for name in "abc":
        port = next(port for port in iter(free_port, None) if port < 55_000)  # the cluster's own port is 10,000 above
        options = ("--port", str(port), "--cluster-enabled", "yes", "--save", "", "--bind", "127.0.0.1")
        (tmp_path / name).mkdir()
        command = [_find_binary(), *options, "--dir", str(tmp_path / name)]
        servers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        clients.append(Redis(port=port))
    for client in clients:
        until(partial(replies, client))
    yield clients
    for client in clients:
        client.close()
    for server in servers:
        server.terminate()
        server.wait(10)


def replies(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False


def join(nodes: list[Redis]) -> None:
    """Make a cluster of the nodes, each with a part of the slots, and wait until it serves them."""
    slots, count = range(16_384), len(nodes)
    for at, node in enumerate(nodes):
        node.execute_command("CLUSTER", "ADDSLOTS", *slots[at::count])
        if at:
            node.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].connection_pool.connection_kwargs["port"])
    until(lambda: all(node.execute_command("CLUSTER INFO")["cluster_state"] == "ok" for node in nodes))


def test_a_redis_in_cluster_mode_is_refused_by_that_name(nodes, tmp_path, caplog):
    """Each node of a cluster of three, and one that serves no slot yet, is refused by cluster mode with what to use
    instead: by /ready, by `status`, and in the log of a process that begins to work with it.
    """
    urls = [f"redis://127.0.0.1:{node.connection_pool.connection_kwargs['port']}/0" for node in nodes]
    for made in (False, True):
        if made:
            join(nodes)
        for url in urls:
            with pytest.raises(QueueError, match="Redis is in cluster mode") as raised:
                RedisJobs(connect_redis(url)).ping()
            assert "without cluster mode" in str(raised.value.remedy)
    (line,) = findings_of_processes(Settings(data_dir=str(tmp_path), redis_url=urls[0]))
    assert (line.severity, line.about, "cluster mode" in line.what) == ("problem", "Redis", True)
    for url in urls:
        with contextlib.suppress(QueueError):  # one node has the slot of this queue
            RedisJobs(connect_redis(url)).depth()
    reasons = [record.reason for record in caplog.records]
    assert len(reasons) >= 2
    assert all("Redis is in cluster mode" in reason for reason in reasons)


def test_a_trial_leaves_nothing_that_stays(redis_client):
    """Every key of a trial expires or is removed, so that a Redis is as full afterwards as before."""
    for _ in range(3):
        RedisJobs(redis_client).ping()
    assert all(0 < redis_client.ttl(key) <= 60 for key in redis_client.scan_iter())
