"""POST /v1/route over HTTP: processor time of the `serve` process per request, by callers.

The encoder is `hashing` and the store SQLite. Callers keep their connections and send plain bytes, so that the client
on the same cores costs little; only the server's own processor time is told (user and system, all threads).
Where there is /v1/route/batch, a request with 100 questions is measured too.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

__all__ = ["await_ready", "cpu_s", "drive", "measure"]

SECONDS = 4.0
BATCH = 100
TICKS = os.sysconf("SC_CLK_TCK")


def measure() -> dict[str, float]:
    """Milliseconds of processor time per request."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "RAGBANDIT_DATA_DIR": folder,
            "RAGBANDIT_ENCODER__MODEL": "hashing",
            "RAGBANDIT_SERVER__PORT": str(port),
        }
        command = "from ragbandit.workers.cli import main; main()"
        server = subprocess.Popen([sys.executable, "-c", command, "serve"], env=environ, stdout=subprocess.DEVNULL)
        try:
            await_ready(port, server)
            asyncio.run(drive(port, callers=4, seconds=1.0))
            found = {}
            for callers in (1, 16, 64):
                found[f"one question a request, {callers} callers, per question [ms of CPU]"] = _cost(
                    port, server.pid, callers=callers
                )
            if _has_batch(port):
                per_item = _cost(port, server.pid, callers=4, batch=BATCH) / BATCH
                found[f"{BATCH} questions a request, 4 callers, per question [ms of CPU]"] = per_item
        finally:
            server.terminate()
            server.wait(20)
    return found


def await_ready(port: int, server: "subprocess.Popen[bytes]") -> None:
    """Until the service answers. Raises RuntimeError."""
    give_up = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < give_up:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).read()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("serve did not start")


def _has_batch(port: int) -> bool:
    """False in the revision before."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/route/batch", data=b"{}", method="POST")
    try:
        urllib.request.urlopen(request, timeout=5)
    except urllib.error.HTTPError as error:
        return error.code not in (404, 405)
    return True


def cpu_s(pid: int) -> float:
    """Processor time that a process has used, seconds."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _cost(port: int, pid: int, *, callers: int, batch: int | None = None) -> float:
    """Milliseconds of the server's processor time per request."""
    began = cpu_s(pid)
    done = asyncio.run(drive(port, callers=callers, seconds=SECONDS, batch=batch))
    return (cpu_s(pid) - began) / done * 1000


async def drive(port: int, *, callers: int, seconds: float, batch: int | None = None) -> int:
    """Requests that were answered with 200 in that time."""
    stop = time.perf_counter() + seconds
    return sum(await asyncio.gather(*(_caller(port, at, stop=stop, batch=batch) for at in range(callers))))


async def _caller(port: int, number: int, *, stop: float, batch: int | None) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    done = 0
    while time.perf_counter() < stop:
        question = {"question": f"Who wrote book number {number} of {done}?"}
        path, body = ("/v1/route", question) if batch is None else ("/v1/route/batch", {"items": [question] * batch})
        raw = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
        )
        writer.write(head.encode() + raw)
        lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        length = next(line for line in lines if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))
        if b" 503 " in lines[0]:  # a busy machine: the batch would wait too long
            await asyncio.sleep(0.1)
        elif b" 200 " in lines[0]:
            done += 1
        else:
            raise RuntimeError(f"{path}: {lines[0].decode()}")
    writer.close()
    return done
