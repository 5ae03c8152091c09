"""PostgreSQL connections that a firewall, a proxy or a failover has swallowed: they are noticed, and heal."""

import contextlib
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from ragbandit.router.serving.router import Router
from ragbandit.router.storage.sql import postgres as connections
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import StoreError

#: seconds within which everything works again
HEALED_S = 10.0


@pytest.fixture
def proxied(proxied_url):
    database = Database(proxied_url)
    yield database
    database.close()


@pytest.fixture
def quick(monkeypatch):
    """The same with shorter times, for what only needs the order of events."""
    for name, seconds in (("SILENT_S", 0.2), ("ON_ITS_WAY_S", 0.1)):
        monkeypatch.setattr(connections, name, seconds)
    monkeypatch.setattr(connections.WatchedConnection, "_ask_at", 0.2)


@contextlib.contextmanager
def lost():
    """The block ends with the error of a connection that was lost."""
    with pytest.raises(StoreError, match="lost on the way"):
        yield


def test_routes_heal(settings, proxied_url, proxy):
    """When a proxy swallows every connection of a router, routes work again within 10 s."""
    with Router.open(settings(database_url=proxied_url)) as router:
        router.route("before")
        assert proxy.swallow() >= 1
        give_up = time.monotonic() + HEALED_S
        done = False
        while not done:
            with contextlib.suppress(StoreError):
                done = bool(router.route("after", timeout_s=HEALED_S).id)
            assert time.monotonic() < give_up
        router.route("and on")


def test_times_heal_within_ten_seconds():
    """With the defaults each way to notice a lost connection, and to make a new one, ends within 10 s."""
    ours = connections.DEFAULTS
    assert 2 * (connections.SILENT_S + connections.ASK_S) <= HEALED_S  # asked twice in the middle of a message
    assert connections.UNREACHABLE_S + connections.ASK_S <= HEALED_S
    assert ours["tcp_user_timeout"] / 1000 + ours["connect_timeout"] <= HEALED_S
    assert ours["keepalives_idle"] + ours["keepalives_interval"] * ours["keepalives_count"] <= HEALED_S


def test_a_pool_of_swallowed_connections(proxied, proxy, quick):
    """Connections that were swallowed while they lay in the pool are replaced before use: no caller sees an error."""

    def read(_: int) -> int:
        with proxied.read() as connection:
            connection.execute(text("SELECT pg_sleep(0.1)"))
            return connection.execute(text("SELECT 1")).scalar_one()

    with ThreadPoolExecutor(8) as callers:
        assert sum(callers.map(read, range(8))) == 8
        assert proxy.swallow() == 8
        assert sum(callers.map(read, range(8))) == 8


def test_work_is_waited_for(proxied, proxy, quick):
    """A statement that works for many times the silence, or waits for a lock, is waited for."""
    with proxied.write() as holds:
        holds.execute(text("LOCK TABLE policies IN ACCESS EXCLUSIVE MODE"))
        with ThreadPoolExecutor(1) as callers:
            waiting = callers.submit(lambda: _count(proxied))
            with proxied.read() as connection:
                connection.execute(text("SELECT pg_sleep(1)"))
            assert not waiting.done()
            holds.rollback()
            assert waiting.result(10) == 0


def _count(database: Database) -> int:
    with database.read() as connection:
        return int(connection.execute(text("SELECT count(*) FROM policies")).scalar_one())


def test_locks_of_a_swallowed_transaction(proxied, proxy, quick, postgres_url):
    """A transaction whose connection is swallowed fails, and its locks are free at once."""
    with lost(), proxied.write() as connection:
        connection.execute(text("LOCK TABLE policies IN ACCESS EXCLUSIVE MODE"))
        proxy.swallow()
        connection.execute(text("SELECT 1"))
    direct = Database(postgres_url)
    began = time.monotonic()
    assert _count(direct) == 0
    assert time.monotonic() < began + 2
    direct.close()


def test_swallowed_in_the_middle_of_a_message(proxied, proxy, quick):
    """A statement of which the server has half, and waits for the rest, is given up too."""
    with lost(), proxied.read() as connection:
        proxy.swallow(after=1_000_000)
        connection.execute(text("SELECT length(:long)"), {"long": "x" * 8_000_000})
    assert _count(proxied) == 0


def test_a_server_that_cannot_be_asked(proxied, proxy, quick, monkeypatch):
    """Where the server cannot be reached to be asked, the wait ends after UNREACHABLE_S."""
    monkeypatch.setattr(connections, "UNREACHABLE_S", 0.5)
    with lost(), proxied.read() as connection:
        proxy.swallow()
        proxy.refuse()
        connection.execute(text("SELECT 1"))


def test_database_url_overrides(proxied_url):
    """What DATABASE_URL says about time-outs and session options holds, and the rest keeps its default."""
    database = Database(f"{proxied_url}?tcp_user_timeout=1234&options=-c%20statement_timeout%3D777")
    with database.read() as connection:
        shown = [connection.execute(text(f"SHOW {name}")).scalar() for name in ("statement_timeout", "lock_timeout")]
        assert shown == ["777ms", "30s"]
        used = connection.connection.dbapi_connection.info.get_parameters()
        assert (used["tcp_user_timeout"], used["keepalives_idle"]) == ("1234", "3")
    database.close()


@pytest.mark.slow
def test_packets_dropped(postgres, postgres_url, tmp_path):
    """When the packets of every open connection are dropped for good, routes work again within 10 s."""
    if subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode:
        pytest.skip("a network namespace cannot be made here: unshare -n is not allowed")
    command = ["unshare", "-n", sys.executable, "-m", "tests.support.servers.dropped_packets"]
    command += [str(postgres.folder / ".s.PGSQL.5432"), str(make_url(postgres_url).database), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < HEALED_S
