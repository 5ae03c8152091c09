"""More questions than the service can decide: open-loop arrivals over HTTP at 2, 5 and 10 times its capacity.

Three services. "slow policy": 10 ms for each question, slept, so that the capacity is the same on every machine and the
processor is not the limit. "busy policy": 4 ms of processor for each question without the interpreter's lock, as an
encoder takes, and the load generator shares the cores. "hashing", at 2 times alone: HTTP itself is the limit, and the
generator needs as much of the processor as the service.

The load comes from a process of its own, a connection for each question; each caller leaves after TIMEOUT_S. Stored for
nobody: rows of decisions whose caller got no reply. What the generator sees is late where it shares the cores with a
busy machine; "took over 2 s" is what the service has seen. ONLY in the environment names the service to measure.
"""

import asyncio
import json
import os
import resource
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

if __name__ != "__main__":  # the load generator is this file as a script, in trees of earlier revisions too
    from benchmarks.service_process import ServiceProcess, cpu_s, served

CALLERS, CLOSED_S, OPEN_S, TIMEOUT_S = 32, 4.0, 6.0, 4.0
#: name -> its policy, and the multiples of its capacity that are offered
_SERVICES: dict[str, tuple[str | None, tuple[int, ...]]] = {
    "slow policy": ("overload_policy:Slow", (2, 5, 10)),
    "busy policy": ("overload_policy:Busy", (2, 5, 10)),
    "hashing": (None, (2,)),
}
_SETTINGS: dict[str, Any] = {"encoder": {"model": "hashing", "dimension": 256}}
_POLICY = """
import hashlib, time
from ragbandit.router.policies.kinds.fixed import Uniform

def seconds(size):
    began = time.thread_time()
    hashlib.sha256(bytes(size)).digest()
    return time.thread_time() - began

seconds(1_000_000)
SIZE = int(0.004 * 4_000_000 / seconds(4_000_000))

class Slow(Uniform):
    algorithm = "overload_policy:Slow"

    def pmf(self, queries, *, features, arms):
        time.sleep(0.01 * len(queries))
        return super().pmf(queries, features=features, arms=arms)

class Busy(Uniform):
    algorithm = "overload_policy:Busy"

    def pmf(self, queries, *, features, arms):
        for _ in queries:
            hashlib.sha256(bytes(SIZE)).digest()
        return super().pmf(queries, features=features, arms=arms)
"""


def measure() -> dict[str, float]:
    """Capacity with CALLERS in a closed loop, then each multiple of it for OPEN_S seconds."""
    found: dict[str, float] = {}
    for name, (policy, multiples) in _SERVICES.items():
        if os.environ.get("ONLY", name) != name:
            continue
        for times in (1, *multiples):
            settings = _SETTINGS if policy is None else {**_SETTINGS, "policy": {"name": policy}}
            with served(settings, files={"overload_policy.py": _POLICY}) as service:
                capacity = load(service.port, rate=0.0, seconds=CLOSED_S)["in time"] / CLOSED_S
                if times == 1:
                    found[f"{name}: capacity, {CALLERS} callers in a closed loop [/s]"] = capacity
                    continue
                found |= {
                    f"{name}, {times}x: {key}": value
                    for key, value in _open(service, capacity=capacity, times=times).items()
                }
    return found


def _open(service: "ServiceProcess", *, capacity: float, times: int) -> dict[str, float]:
    port, process, database = service.port, service.pid, service.folder / "ragbandit.db"
    before, spent = _stored(database), cpu_s(process)
    with watched(port, process) as seen:
        replies = load(port, rate=times * capacity, seconds=OPEN_S)
    spent = cpu_s(process) - spent
    _settle(database)
    goodput = replies["in time"] / OPEN_S
    return {
        "goodput / capacity [x/s]": goodput / capacity,
        "offered / capacity": replies["sent"] / OPEN_S / capacity,
        "p99 of answered [s]": replies["p99"],
        "answered in a second of the service's CPU [/s]": replies["answered"] / spent,
        "accepted that took over 2 s [%]": _late_percent(port),
        "refused at once": replies["refused"],
        "left or cut off": replies["lost"],
        "stored for nobody [rows]": _stored(database) - before - replies["answered"],
        "slowest /health [ms]": seen["health"],
        "slowest /metrics [ms]": seen["metrics"],
        "most memory [MB]": seen["rss"],
        "most sockets and files [fds]": seen["fds"],
    }


@contextmanager
def watched(port: int, process: int) -> Iterator[Counter[str]]:
    """The most that was seen inside the block."""
    most, ended = Counter[str](), threading.Event()

    def look() -> None:
        while not ended.wait(0.25):
            status = Path(f"/proc/{process}/status").read_text()
            most["rss"] = max(most["rss"], int(status.partition("VmRSS:")[2].split()[0]) // 1000)
            most["fds"] = max(most["fds"], len(os.listdir(f"/proc/{process}/fd")))

    def probe(path: str) -> None:
        while not ended.wait(0.5):
            began = time.monotonic()
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=20).read()
            most[path] = max(most[path], int(1000 * (time.monotonic() - began)))

    threads = [threading.Thread(target=look)]
    threads += [threading.Thread(target=probe, args=(path,)) for path in ("health", "metrics")]
    for thread in threads:
        thread.start()
    try:
        yield most
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _stored(database: Path) -> int:
    with sqlite3.connect(database) as connection:
        return int(connection.execute("SELECT count(*) FROM decisions").fetchone()[0])


def _late_percent(port: int) -> float:
    """Part of the decisions that took over 2 s, by the service's own histogram."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    count = {
        line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line.startswith("ragbandit_route_")
    }
    every = count["ragbandit_route_seconds_count"]
    return 100.0 * (1.0 - count['ragbandit_route_seconds_bucket{le="2.0"}'] / every)


def _settle(database: Path) -> None:
    """Until nothing more is stored: what was accepted may still be worked on."""
    last = -1
    while (now := _stored(database)) != last:
        last = now
        time.sleep(1.5)


def load(port: int, *, rate: float, seconds: float) -> dict[str, float]:
    """What became of the questions of a load generator in a process of its own. rate: a second; 0: a closed loop."""
    command = [sys.executable, __file__, str(port), str(rate), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"the load generator failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


class _Call(asyncio.Protocol):
    """One question on a connection of its own."""

    def __init__(self, request: bytes, ended: "asyncio.Future[bytes]") -> None:
        self._request, self._ended = request, ended

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(TIMEOUT_S, self._leave)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._end(data[9:12])
        self._transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        self._timer.cancel()
        self._end(b"cut off")

    def _leave(self) -> None:
        self._end(b"left")
        self._transport.abort()

    def _end(self, status: bytes) -> None:
        if not self._ended.done():
            self._ended.set_result(status)


class _Load:
    """A process that sends questions and keeps what came of them."""

    def __init__(self, port: int) -> None:
        self._port = port
        #: status, seconds until the reply, and when it came
        self.ends: list[tuple[bytes, float, float]] = []

    async def ask(self, number: int) -> None:
        body = json.dumps({"question": f"Who wrote book number {number}?"}).encode()
        head = "POST /v1/route HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        loop, began = asyncio.get_running_loop(), time.monotonic()
        ended: asyncio.Future[bytes] = loop.create_future()
        try:
            connecting = loop.create_connection(lambda: _Call(request, ended), "127.0.0.1", self._port)
            await asyncio.wait_for(connecting, TIMEOUT_S)
            status = await ended
        except (OSError, TimeoutError):
            status = b"no connection"
        self.ends.append((status, time.monotonic() - began, time.monotonic()))

    async def closed(self, seconds: float) -> None:
        async def caller(first: int) -> None:
            number = first
            while time.monotonic() < end:
                await self.ask(number)
                number += CALLERS

        end = time.monotonic() + seconds
        await asyncio.gather(*(caller(number) for number in range(CALLERS)))

    async def open(self, seconds: float, *, rate: float) -> None:
        began, tasks = time.monotonic(), set[asyncio.Task[None]]()
        number = 0
        while (passed := time.monotonic() - began) < seconds:
            while number < passed * rate:
                task = asyncio.create_task(self.ask(number))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                number += 1
            await asyncio.sleep(0.002)
        await asyncio.gather(*tasks)


def main() -> None:
    """The load generator."""
    port, rate, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    made = _Load(port)

    async def run() -> float:
        began = time.monotonic()
        await (made.open(seconds, rate=rate) if rate else made.closed(seconds))
        return began

    began = asyncio.run(run())
    times = sorted(took for status, took, _ in made.ends if status == b"200")
    print(
        json.dumps(
            {
                "sent": len(made.ends),
                "answered": len(times),
                "in time": sum(status == b"200" and at <= began + seconds for status, _, at in made.ends),
                "refused": sum(status in (b"503", b"429") for status, _, _ in made.ends),
                "lost": sum(not status.isdigit() for status, _, _ in made.ends),
                "p99": times[int(len(times) * 0.99)] if times else 0.0,
            }
        )
    )


if __name__ == "__main__":
    main()
