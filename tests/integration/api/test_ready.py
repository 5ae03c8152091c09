"""HTTP: /ready tries what a route needs, shows within 5 s what is wrong, and heals by itself."""

import contextlib
import subprocess
import threading
import time

import pytest
from sqlalchemy import event, func, select

from ragbandit.router.queue.jobs import RedisJobs, connect
from ragbandit.router.serving.health import readiness
from ragbandit.router.storage.sql.tables import leases
from ragbandit.shared.errors import StoreError
from tests.support.servers.http_service import QUESTION, Service, routed


@pytest.fixture
def impatient(monkeypatch):
    """Shorter times, so that healing is seen soon."""
    for name, seconds in (("RETRY_S", 0.1), ("REPLY_S", 0.5), ("FAULT_S", 1.0)):
        monkeypatch.setattr(readiness, name, seconds)


def until(service, status: int, *, within_s: float) -> str:
    """Ask /ready until it has this status; what it says of the database."""
    give_up = time.monotonic() + within_s
    while True:
        response = service.http.get("/ready")
        if response.status_code == status:
            return response.json()["parts"]["database"]
        assert time.monotonic() < give_up, response.text
        time.sleep(0.1)


def refused_routes(service) -> None:
    """Route until one is refused, since nothing more can be committed."""
    for number in range(3000):
        response = service.http.post("/v1/route", json={"question": f"{number} {QUESTION * 200}"})
        if response.status_code == 503:
            assert "full" in response.json()["error"]["message"]
            return
        assert response.status_code == 200
    pytest.fail("the disk did not fill")


def test_a_database_that_may_not_grow(serve, impatient):
    """While SQLite has no room for decisions /ready is 503 and says so; with room it is 200 again."""
    service = serve()
    engine, most = service.router.database.engine, [0]

    def cap(connection, _record) -> None:
        connection.execute(f"PRAGMA max_page_count = {most[0] or 1 << 30}")

    event.listen(engine, "connect", cap)
    with service.router.database.read() as connection:
        most[0] = connection.exec_driver_sql("PRAGMA page_count").scalar_one() + 20
    engine.dispose()
    until(service, 200, within_s=5)
    refused_routes(service)
    assert "full" in until(service, 503, within_s=5)
    most[0] = 0
    engine.dispose()
    assert until(service, 200, within_s=10) == "ok"
    routed(service.http)


def test_a_full_disk(serve, tmp_path, impatient):
    """On a full disk /ready is 503 within 5 s; when there is room it is 200 again."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here: it takes root and the permission to mount")
    try:
        service = serve(data_dir=str(folder / "data"))
        routed(service.http)
        until(service, 200, within_s=5)
        with (folder / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):  # no space left
            while filler.write(bytes(4096)):
                pass
        refused_routes(service)
        assert "full" in until(service, 503, within_s=5)
        (folder / "filler").unlink()
        assert until(service, 200, within_s=10) == "ok"
        routed(service.http)
        service.router.close()
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_swallowed_pool(serve, proxied_url, proxy):
    """When a proxy has swallowed the connections of the pool, /ready says so within 5 s."""
    service = serve(database_url=proxied_url)
    until(service, 200, within_s=5)
    time.sleep(1.1)  # a result is kept for a second
    proxy.swallow()
    assert "no reply" in until(service, 503, within_s=5)
    proxy.close()  # what waits for a reply ends


@pytest.fixture
def with_redis(settings, impatient, redis_client, redis_server):
    """A service on the real Redis of the session, which is empty."""
    made = Service(settings(redis_url=redis_server), jobs=RedisJobs(connect(redis_server)))
    redis_until(made, "ok")
    yield made
    made.close()
    made.jobs.close()


def redis_state(service) -> str:
    """What /ready says of Redis; it stays 200."""
    response = service.http.get("/ready")
    assert response.status_code == 200
    return response.json()["parts"]["redis"]


def redis_until(service, words: str) -> None:
    """Until /ready has these words of Redis."""
    give_up = time.monotonic() + 20
    while words not in redis_state(service):
        assert time.monotonic() < give_up, redis_state(service)
        time.sleep(0.05)


def test_a_listener_that_has_ended(with_redis):
    """/ready and the metrics tell of it; the service stays ready, since polling finds the same."""
    with_redis.router.updates.listener.close()
    redis_until(with_redis, "the listener has ended")
    assert "ragbandit_listener_up 0.0" in with_redis.http.get("/metrics").text


def test_one_write_for_all(service, http):
    """Probes that come together share one write, and leave one row."""
    tries = []
    event.listen(service.router.database.engine, "commit", lambda _: tries.append(threading.get_ident()))
    asked = [threading.Thread(target=http.get, args=("/ready",)) for _ in range(20)]
    for thread in asked:
        thread.start()
    for thread in asked:
        thread.join()
    with service.router.database.read() as connection:
        assert connection.execute(select(func.count()).where(leases.c.name.startswith("ready:"))).scalar_one() == 1
    assert len([one for one in tries if tries.count(one) > 1]) <= 3


def test_a_try_that_hangs_holds_nobody_up(impatient):
    """A part that does not reply is said to be silent after REPLY_S, and at once to those who ask later."""
    hangs = threading.Event()
    parts = readiness.Readiness({"database": hangs.wait, "redis": lambda: None}, alive=bool)
    began = time.monotonic()
    assert parts.parts()["database"].startswith("no reply for 0.")
    assert time.monotonic() - began > 0.4
    began = time.monotonic()
    assert parts.parts()["redis"] == "ok"
    assert time.monotonic() - began < 0.4
    hangs.set()


def test_a_try_that_fails_is_made_again(monkeypatch):
    """What is wrong is said in the error's own words, and is asked again after a second."""
    monkeypatch.setattr("ragbandit.router.serving.health.readiness.RETRY_S", 0.05)
    faults = [StoreError("gone"), ZeroDivisionError("odd")]

    def check() -> None:
        if faults:
            raise faults.pop(0)

    parts, said = readiness.Readiness({"database": check}, alive=bool), []
    for _ in range(3):
        said.append(parts.parts()["database"])
        time.sleep(0.06)
    assert said == ["gone", "ZeroDivisionError: odd", "ok"]
