"""A real Redis that replies to PING and refuses what RagBandit needs: the refusal names the command and the remedy."""

import contextlib
import socket
import subprocess
import threading
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
    """/ready and `status` name what is refused, and say neither that Redis is down nor that no worker runs. The
    command in the remedy works.
    """
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
    if "ACL SETUSER" in str(raised.value.remedy):
        _, _, allowed = str(raised.value.remedy).partition("ACL SETUSER NAME ")
        rules = allowed.partition(";")[0].split()
        Redis.from_url(own_redis[1]).execute_command("ACL", "SETUSER", "default", *rules)
        RedisJobs(client).ping()
    client.close()


@pytest.mark.parametrize(
    ("reply", "remedy"),
    [
        ("-LOADING Redis is loading the dataset in memory", "wait until"),
        ("-ERR max number of clients reached", "maxclients"),
        ("-ERR unknown command 'SET', with args beginning with:", "no sentinel"),
        (
            "-MISCONF Redis is configured to save RDB snapshots, but it is currently not able to.",
            "make room on its disk",
        ),
        ("-NOREPLICAS Not enough good replicas to write.", "see the log of Redis"),
    ],
)
def test_a_server_that_replies_is_not_to_be_started(reply, remedy):
    """A server that replies with an error is not unreachable, and the remedy is that of the error."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=replies_always, args=(listener, f"{reply}\r\n".encode()), daemon=True)
        server.start()
        with pytest.raises(QueueError, match="Redis refuses") as raised:
            RedisJobs(connect_redis(f"redis://127.0.0.1:{listener.getsockname()[1]}/0")).ping()
    assert remedy in str(raised.value.remedy)


def replies_always(listener: socket.socket, reply: bytes) -> None:
    """Reply to every command with the same bytes, on each connection until it is closed."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                while data := connection.recv(65_536):
                    connection.sendall(reply * data.count(b"*"))


def test_a_database_that_redis_does_not_have(own_redis):
    """A number of a database in REDIS_URL that is too large is named as such."""
    url = f"{own_redis[1]}?db=99" if "?" not in own_redis[1] else f"{own_redis[1]}&db=99"
    with pytest.raises(QueueError, match="DB index is out of range") as raised:
        RedisJobs(connect_redis(url)).ping()
    assert "number of the database" in str(raised.value.remedy)


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
