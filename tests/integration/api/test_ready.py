"""HTTP: /ready tries what a route needs, shows within 5 s what is wrong, and heals by itself."""

import threading
import time

import pytest
from sqlalchemy import event, func, select

from ragbandit.router.serving.health import readiness
from ragbandit.router.storage.sql.tables import leases
from tests.support.readiness import states_of
from tests.support.servers.http_service import QUESTION, routed
from tests.support.waiting import until


@pytest.fixture
def impatient(monkeypatch):
    """Shorter times, so that healing is seen soon."""
    for name, seconds in (("RETRY_S", 0.1), ("REPLY_S", 0.5), ("FAULT_S", 1.0)):
        monkeypatch.setattr(readiness, name, seconds)


def wait_until(service, status: int, *, database: str) -> None:
    """Poll /ready until it has this status, and these words in its entry about the database."""

    def seen() -> bool:
        response = service.http.get("/ready")
        return response.status_code == status and database in response.json()["parts"]["database"]

    until(seen, seconds=20.0)


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
    """While SQLite has no room for decisions, /ready replies 503 with the reason; with room it replies 200 again."""
    service = serve()
    database, most = service.router.database, [0]

    def cap(connection, _record) -> None:
        connection.execute(f"PRAGMA max_page_count = {most[0] or 1 << 30}")

    event.listen(database.engine, "connect", cap)
    with service.router.database.read() as connection:
        most[0] = connection.exec_driver_sql("PRAGMA page_count").scalar_one() + 20
    database.close()
    wait_until(service, 200, database="ok")
    refused_routes(service)
    wait_until(service, 503, database="full")
    most[0] = 0
    database.close()
    wait_until(service, 200, database="ok")
    routed(service.http)


def test_one_write_for_all(service, http, monkeypatch):
    """Probes that come together share one write, and leave one row."""
    tries, write = [], service.router.database.write

    def counted(**options):
        tries.append(threading.get_ident())
        return write(**options)

    monkeypatch.setattr(service.router.database, "write", counted)
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
    assert states_of(parts)["database"].startswith("no reply for 0.")
    assert time.monotonic() - began > 0.4
    waited_for, _ = parts.start_checks()
    assert parts._tries["database"][1] not in waited_for
    assert states_of(parts)["redis"] == "ok"
    hangs.set()
