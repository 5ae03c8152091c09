"""Decisions a second of one service by server.processes, over HTTP, on SQLite and on PostgreSQL.

`python -m benchmarks.processes [N...]` (default 1 2) starts `serve` with so many processes and the encoder `hashing`,
and drives it from this process: 64 callers with one question a request, then 8 callers with 100 questions a request.
Processor time is that of all processes of the service, without the database's. Two processes double the rate only where
each has a core of its own, and the client and the database have theirs; elsewhere compare the processor time.
"""

import argparse
import asyncio
import importlib
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.before_after.http_route import drive
from benchmarks.figures import machine
from benchmarks.service_process import cpu_s, served

SECONDS = 5.0
#: callers, and questions in a request; None: /v1/route
LOADS: tuple[tuple[int, int | None], ...] = ((64, None), (8, 100))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("processes", nargs="*", type=int, default=[1, 2])
    counts = parser.parse_args(arguments).processes
    table = Table("store", "processes", "load", "decisions/s", "ms of CPU each", "cores used")
    server = importlib.import_module("tests.conftest").PostgresServer()  # a real one, from the wheel of the tests
    server.start()
    try:
        for number, processes in enumerate(counts):
            server.execute(f"CREATE DATABASE processes_{number}")
            for store, url in (("SQLite", None), ("PostgreSQL", server.url(f"processes_{number}"))):
                for row in _measured(processes, url=url):
                    table.add_row(store, str(processes), *row)
    finally:
        server.stop()
    console = Console(width=110)
    console.print(table)
    console.print(machine())


def _measured(processes: int, *, url: str | None) -> list[tuple[str, str, str, str]]:
    """A row for each load."""
    bounds = {"max_wait_s": 60.0, "max_waiting": 100_000}
    with served({"server": {"processes": processes, **bounds}}, database=url) as service:
        asyncio.run(drive(service.port, callers=8, seconds=1.0))
        return [_row(service.port, service.pid, callers=callers, batch=batch) for callers, batch in LOADS]


def _row(port: int, pid: int, *, callers: int, batch: int | None) -> tuple[str, str, str, str]:
    pids = _tree(pid)
    used, began = sum(map(cpu_s, pids)), time.perf_counter()
    done = asyncio.run(drive(port, callers=callers, seconds=SECONDS, batch=batch)) * (batch or 1)
    used, took = sum(map(cpu_s, pids)) - used, time.perf_counter() - began
    load = f"{callers} callers, {'one question' if batch is None else f'{batch} questions'} a request"
    return load, f"{done / took:,.0f}", f"{used / done * 1000:.3f}", f"{used / took:.2f}"


def _tree(pid: int) -> list[int]:
    """The process and all below it."""
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return [pid, *(each for child in below for each in _tree(int(child)))]


if __name__ == "__main__":
    main()
