"""Connections: slow and leaving clients, a PostgreSQL connection that is swallowed, a learner whose clock is ahead.

Where nothing happens within the time that is waited, the figure is that time.
"""

import contextlib
import importlib
import inspect
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: clients that send half a request; clients that ask for an answer and hang up
SLOW, LEAVING = 300, 100
#: longest waits, seconds
HALF_S, END_S, HEAL_S = 14.0, 25.0, 30.0
_BODY = b'{"question": "Who wrote Dracula?"}'
_HEAD = (
    b"POST /v1/answer?wait_s=600 HTTP/1.1\r\n"
    b"host: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
)


def measure() -> dict[str, float]:
    """One run of each."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            f"half-sent requests of {SLOW} still open after {HALF_S:g} s": _half_sent(Path(folder, "slow")),
            f"SIGTERM to end, {LEAVING} clients had hung up [s]": _ending(Path(folder, "end")),
            "swallowed PostgreSQL connection, route to route [s]": _swallowed(Path(folder, "router")),
            "lease of a learner an hour ahead, lease_s 10 [s]": _lease(Path(folder, "lease")),
        }


@contextlib.contextmanager
def _serving(folder: Path) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    folder.mkdir()
    (folder / "config.yaml").write_text("encoder: {model: hashing}\n")
    command = [sys.executable, "-m", "ragbandit", "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = (re.search(r"127\.0\.0\.1:(\d+)", line) for line in process.stderr)
            yield process, next(int(one[1]) for one in found if one)
        finally:
            process.kill()


def _half_sent(folder: Path) -> float:
    with _serving(folder) as (_, port):
        links = [socket.create_connection(("127.0.0.1", port)) for _ in range(SLOW)]
        for link in links:
            link.sendall(b"POST /v1/route HTTP/1.1\r\nhost: localhost\r\n")
        time.sleep(HALF_S)
        still = sum(_is_open(link) for link in links)
        for link in links:
            link.close()
    return float(still)


def _is_open(link: socket.socket) -> bool:
    link.setblocking(False)
    try:
        while link.recv(4096):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _ending(folder: Path) -> float:
    with _serving(folder) as (process, port):
        links = [socket.create_connection(("127.0.0.1", port)) for _ in range(LEAVING)]
        for link in links:
            link.sendall(_HEAD % len(_BODY) + _BODY)
        time.sleep(5)
        for link in links:
            link.close()
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        return time.monotonic() - began


def _swallowed(folder: Path) -> float:
    from sqlalchemy import make_url

    from ragbandit.router.serving.router import Router
    from ragbandit.router.storage.sql.database import Database, migrate
    from ragbandit.shared.errors import RagBanditError

    PostgresServer = importlib.import_module("tests.conftest").PostgresServer  # noqa: N806 - a class, without types
    # Of this tree: the earlier one has no proxy.
    support = Path(__file__).parents[2] / "tests" / "support" / "tcp_proxy.py"
    server = PostgresServer()
    server.start()
    try:
        url = server.url(server.new_database())
        database = Database(url)
        migrate(database)
        database.close()
        proxy = runpy.run_path(str(support))["TcpProxy"](server.folder / ".s.PGSQL.5432")
        through = f"postgresql+psycopg://postgres@127.0.0.1:{proxy.port}/{make_url(url).database}"
        router = Router.open(_settings(folder, database_url=through))
        router.route("before")
        proxy.swallow()
        began = time.monotonic()
        while (waited := time.monotonic() - began) < HEAL_S:
            with contextlib.suppress(RagBanditError):
                router.route("after", timeout_s=HEAL_S - waited)
                break
        # Not closed: the earlier revision would wait for the lost connection for minutes.
        return min(HEAL_S, time.monotonic() - began)
    finally:
        server.stop()


def _lease(folder: Path) -> float:
    from ragbandit.router.serving.setup.bootstrap import open_database
    from ragbandit.router.storage.ledgers.ledger import Ledger
    from ragbandit.shared.types import PolicyLabel

    database = open_database(_settings(folder))
    ledger = Ledger(database, label=PolicyLabel("main"))
    # The earlier revision is told the time by the learner, this one asks the database.
    told = {"now": time.time() + 3600} if "now" in inspect.signature(ledger.acquire).parameters else {}
    acquire: Any = ledger.acquire
    acquire(holder="ahead", lease_s=10.0, **told)
    with database.read() as connection:
        ends = float(connection.exec_driver_sql("SELECT expires_at FROM leases").scalar_one())
    database.close()
    return ends - time.time()


def _settings(folder: Path, **more: str) -> Any:
    from ragbandit.router.config.settings import Settings

    os.makedirs(folder, exist_ok=True)
    return Settings.model_validate({"data_dir": str(folder), "encoder": {"model": "hashing", "dimension": 8}, **more})
