"""A database password that changes while a service is asked: libpq reads PGPASSFILE at each new connection."""

import threading

import pytest
from sqlalchemy import make_url

from tests.support.servers.http_service import QUESTION
from tests.support.waiting import until

NAME = "rotating"


@pytest.fixture
def change_password(postgres, monkeypatch, tmp_path):
    """A function that changes the password of a database user who needs one; `file` is what PGPASSFILE names."""
    postgres.execute(f"CREATE ROLE {NAME} LOGIN SUPERUSER")
    rules = postgres.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"local all {NAME} scram-sha-256\n{before}")
    postgres.execute("SELECT pg_reload_conf()")
    file = tmp_path / "pgpass"
    monkeypatch.setenv("PGPASSFILE", str(file))
    monkeypatch.delenv("PGPASSWORD", raising=False)

    def change(password: str, *, written: bool) -> None:
        postgres.execute(f"ALTER ROLE {NAME} PASSWORD '{password}'")
        if written:
            file.write_text(f"*:*:*:{NAME}:{password}\n")
            file.chmod(0o600)  # libpq ignores a file that others can read

    yield change
    rules.write_text(before)
    postgres.execute("SELECT pg_reload_conf()")
    postgres.execute(f"DROP ROLE {NAME}")


def end_sessions(postgres) -> None:
    postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{NAME}'")


def test_a_password_that_changes_needs_no_restart(serve, postgres, postgres_url, change_password):
    """Open sessions stay; new ones get 503 as long as the file has the old password, and work as soon as it has the
    new one. No acknowledged decision is lost.
    """
    change_password("first", written=True)
    service = serve(database_url=str(make_url(postgres_url).set(username=NAME)))
    replies, ends = [], threading.Event()

    def ask() -> None:
        while not ends.is_set():
            replies.append(service.http.post("/v1/route", json={"question": QUESTION}))

    def came(status: int, words: str = "") -> bool:
        return any(reply.status_code == status and words in reply.text for reply in replies[begin:])

    askers = [threading.Thread(target=ask) for _ in range(3)]
    begin = 0
    try:
        for asker in askers:
            asker.start()
        until(lambda: came(200))
        change_password("second", written=False)
        begin = len(replies)
        until(lambda: sum(reply.status_code == 200 for reply in replies[begin:]) > 10)
        end_sessions(postgres)
        until(lambda: came(503, "password authentication failed"))
        change_password("second", written=True)
        begin = len(replies) + 2 * len(askers)
        until(lambda: came(200))
    finally:
        ends.set()
        for asker in askers:
            asker.join()
    assert {reply.status_code for reply in replies} == {200, 503}
    decided = [reply.json()["decision_id"] for reply in replies if reply.status_code == 200]
    assert {service.http.get(f"/v1/decisions/{key}").status_code for key in decided[-50:]} == {200}
