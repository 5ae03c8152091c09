"""More connections than the service can answer: what is answered, what is refused, and how long a probe waits.

`python -m benchmarks.many_connections [COUNT ...]` starts a service with the hashing encoder and lets wrk
(`apt-get install wrk`) ask `/v1/route` over that many connections at once, each asking again as soon as it is answered
or refused. Beside it somebody asks for /health, /ready and /metrics. Baseline: 64 connections, which is the capacity.
wrk, the probes and the service share the processors. It takes a quarter of a minute for each count.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Figure, print_figures
from benchmarks.service_process import served

#: connections of the baseline, and those that are tried where none are named
CAPACITY, COUNTS = 64, (1500, 3000)
#: length of one try; the first is not counted, seconds
TRY_S, WARM_UP_S = 12, 4
PROBES = ("/health", "/ready", "/metrics")
SETTINGS = {"encoder": {"model": "hashing", "dimension": 256}, "server": {"max_connections": 4096}}

#: counts answers and refusals apart, which wrk itself does not
SCRIPT = """
local number, threads = 0, {}
answered, refused = 0, 0
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
function setup(thread) table.insert(threads, thread) end
function request()
  number = number + 1
  return wrk.format(nil, "/v1/route", nil, '{"question":"Who wrote book number ' .. number .. '?"}')
end
function response(status) if status == 200 then answered = answered + 1 else refused = refused + 1 end end
function done(summary, latency)
  local a, r = 0, 0
  for _, thread in ipairs(threads) do a = a + thread:get("answered"); r = r + thread:get("refused") end
  print(string.format("COUNTED %f %f %f", a * 1e6 / summary.duration, r * 1e6 / summary.duration,
                      latency:percentile(99) / 1e6))
end
"""


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", nargs="*", type=int, default=COUNTS, help="connections; default 1500 3000")
    counts = parser.parse_args(arguments).counts
    if shutil.which("wrk") is None:
        raise SystemExit("many_connections needs wrk: apt-get install wrk")
    figures: list[Figure] = []
    with served(SETTINGS) as service, tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "route.lua"
        script.write_text(SCRIPT, encoding="utf-8")
        _asked(service.port, CAPACITY, seconds=WARM_UP_S, script=script)
        capacity, *_ = _asked(service.port, CAPACITY, seconds=TRY_S, script=script)
        for count in counts:
            with _Probes(service.port) as probes:
                answered, refused, p99 = _asked(service.port, count, seconds=TRY_S, script=script)
            name = f"{count:,} connections: "
            figures += [
                Figure(
                    name=name + "answered",
                    unit="/s",
                    ours=answered,
                    baseline=capacity,
                    against=f"{CAPACITY} connections",
                    rising=True,
                ),
                Figure(name=name + "refused", unit="/s", ours=refused),
                Figure(name=name + "p99 of both", unit="s", ours=p99),
                *(
                    Figure(name=name + f"longest wait of {path}", unit="s", ours=probes.longest[path])
                    for path in PROBES
                ),
            ]
    print_figures("/v1/route over more connections than can be answered", figures)


def _asked(port: int, connections: int, *, seconds: int, script: Path) -> tuple[float, float, float]:
    """Answers and refusals a second, and wrk's 99th percentile over both, seconds."""
    command = f"ulimit -n {connections + 100}; exec wrk -t2 -c{connections} -d{seconds}s --timeout 10s -s {script}"
    ended = subprocess.run(
        ["bash", "-c", f"{command} http://127.0.0.1:{port}/"], capture_output=True, text=True, timeout=seconds + 60
    )
    counted = re.search(r"COUNTED (\S+) (\S+) (\S+)", ended.stdout)
    if counted is None:
        raise RuntimeError(f"wrk counted nothing: {ended.stdout}{ended.stderr}")
    answered, refused, p99 = map(float, counted.groups())
    return answered, refused, p99


class _Probes:
    """Asks each of PROBES three times a second, on a new connection each time, until the block ends."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(path,)) for path in PROBES]
        #: path -> the longest wait, seconds; one that failed counts as long as it took
        self.longest = dict.fromkeys(PROBES, 0.0)

    def __enter__(self) -> "_Probes":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, path: str) -> None:
        while not self._ended.wait(0.3):
            start = time.monotonic()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=30).read()
            except OSError as error:
                print(f"{path}: {error}", file=sys.stderr)
            self.longest[path] = max(self.longest[path], time.monotonic() - start)


if __name__ == "__main__":
    main(sys.argv[1:])
