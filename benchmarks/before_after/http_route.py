"""POST /v1/route over HTTP: processor time of the `serve` process per request, by callers.

The encoder is `hashing` and the store SQLite. Callers keep their connections and send plain bytes, so that the client
on the same cores costs little; only the server's own processor time is told (user and system, all threads).
Where there is /v1/route/batch, a request with 100 questions is measured too.
"""

import asyncio
import json
import time
import urllib.error
import urllib.request

from benchmarks.service_process import ServiceProcess, cpu_s, served

SECONDS = 4.0
BATCH = 100


def measure() -> dict[str, float]:
    """Milliseconds of processor time per request."""
    found = {}
    with served({}) as service:
        asyncio.run(drive(service.port, callers=4, seconds=1.0))
        for callers in (1, 16, 64):
            cost = _cost(service, callers=callers)
            found[f"one question a request, {callers} callers, per question [ms of CPU]"] = cost
        if _has_batch(service.port):
            cost = _cost(service, callers=4, batch=BATCH) / BATCH
            found[f"{BATCH} questions a request, 4 callers, per question [ms of CPU]"] = cost
    return found


def _has_batch(port: int) -> bool:
    """False in the revision before."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/route/batch", data=b"{}", method="POST")
    try:
        urllib.request.urlopen(request, timeout=5)
    except urllib.error.HTTPError as error:
        return error.code not in (404, 405)
    return True


def _cost(service: ServiceProcess, *, callers: int, batch: int | None = None) -> float:
    """Milliseconds of the server's processor time per request."""
    began = cpu_s(service.pid)
    done = asyncio.run(drive(service.port, callers=callers, seconds=SECONDS, batch=batch))
    return (cpu_s(service.pid) - began) / done * 1000


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
        fields = f"host: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}"
        head = f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n"
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
