"""What telemetry costs a request: POST /v1/route to services without it, with it, and with a receiver that hangs.

`python -m benchmarks.telemetry` starts three services with the hashing encoder, each in a process of its own, and asks
every question of each, in turns. Printed are the time of a request and the processor time that each service took for
it, sending included; and how long each took to end. In about a minute.
"""

import argparse
import http.client
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.service_process import cpu_s, served

#: questions that are asked of each service
COUNT, WARM = 2000, 200
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
NAMES = ("off", "on", "on, and the receiver hangs")


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="questions that are asked of each service")
    count = parser.parse_args(arguments).count
    with _receiver(hangs=False) as takes, _receiver(hangs=True) as hangs:
        stacks = [ExitStack() for _ in NAMES]
        services = []
        for stack, endpoint in zip(stacks, (None, takes, hangs), strict=True):
            os.environ[ENDPOINT] = endpoint or ""
            services.append(stack.enter_context(served({"telemetry": {"enabled": endpoint is not None}})))
        links = [http.client.HTTPConnection("127.0.0.1", service.port, timeout=30) for service in services]
        for number in range(WARM):
            for link in links:
                _ask(link, number)
        used = [cpu_s(service.pid) for service in services]
        times = [[_ask(link, number) for link in links] for number in range(WARM, WARM + count)]
        time.sleep(6.0)  # what waits is sent every five seconds
        used = [cpu_s(service.pid) - before for service, before in zip(services, used, strict=True)]
        ends = []
        for stack in stacks:
            began = time.monotonic()
            stack.close()
            ends.append(time.monotonic() - began)
    _print(times, used=used, ends=ends)


@contextmanager
def _receiver(*, hangs: bool) -> Iterator[str]:
    """The address of a receiver; one that hangs takes requests and never replies."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if hangs:
                over.wait()
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    over.set()
    server.shutdown()


def _ask(link: http.client.HTTPConnection, number: int) -> float:
    """Milliseconds of one question."""
    began = time.perf_counter()
    link.request(
        "POST", "/v1/route", json.dumps({"question": f"question {number}"}), {"content-type": "application/json"}
    )
    reply = link.getresponse()
    reply.read()
    if reply.status != 200:
        raise RuntimeError(f"the service replied {reply.status}")
    return (time.perf_counter() - began) * 1000


def _print(times: Sequence[Sequence[float]], *, used: Sequence[float], ends: Sequence[float]) -> None:
    print(f"{'telemetry':<28} {'request p50':>12} {'more':>10} {'processor':>12} {'to end':>8}")
    for place, name in enumerate(NAMES):
        median = statistics.median(row[place] for row in times)
        more = statistics.median(row[place] - row[0] for row in times)
        each = used[place] / len(times) * 1000
        print(f"{name:<28} {median:>9.3f} ms {more:>7.3f} ms {each:>9.3f} ms {ends[place]:>6.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
