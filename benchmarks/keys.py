"""What an API key costs a request: POST /v1/route to an open service and to one with keys, taking turns in one run.

`python -m benchmarks.keys` starts two services with the hashing encoder, each in a process of its own, one of them with
50 keys in its store. Every question is asked of both, one after the other, so that whatever else the machine does falls
on both. Printed are the time of a request and what the keyed one takes more. In about half a minute.
"""

import argparse
import http.client
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks.figures import Figure, percentiles, print_figures
from benchmarks.service_process import ServiceProcess, served
from ragbandit.router.config.loading import load
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.sql.database import Database

#: keys in the store of the keyed service, and questions that are asked of each
KEYS, COUNT, WARM = 50, 2000, 200


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="questions that are asked of each service")
    count = parser.parse_args(arguments).count
    with ExitStack() as opened:
        plain, keyed = (opened.enter_context(served({})) for _ in range(2))
        text = _keys(keyed)
        calls = [_Calls(plain, key=None), _Calls(keyed, key=text)]
        times: list[list[float]] = [[], []]
        for number in range(WARM + count):
            order = (0, 1) if number % 2 else (1, 0)
            for which in order:
                taken = calls[which].ask(number)
                if number >= WARM:
                    times[which].append(taken)
    _print(open_ms=times[0], keyed_ms=times[1])


def _keys(service: ServiceProcess) -> str:
    """The text of the last of the keys; the service knows them a second later."""
    database = Database(load(service.folder / "config.yaml", environ={}).settings.database)
    try:
        store = KeyStore(database)
        made = [
            store.create(name=f"key {n}", role="app", tenant="acme", now=time.time(), actor="cli:benchmark")
            for n in range(KEYS)
        ]
    finally:
        database.close()
    time.sleep(1.1)
    return made[-1].text


class _Calls:
    """One connection to a service."""

    def __init__(self, service: ServiceProcess, *, key: str | None) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
        self._headers = {"content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"

    def ask(self, number: int) -> float:
        """Milliseconds of one question."""
        body = json.dumps({"question": f"question number {number}", "tenant": "acme"})
        began = time.perf_counter()
        self._link.request("POST", "/v1/route", body=body, headers=self._headers)
        reply = self._link.getresponse()
        reply.read()
        taken = (time.perf_counter() - began) * 1000
        if reply.status != 200:
            raise RuntimeError(f"the service replied {reply.status}")
        return taken


def _print(*, open_ms: Sequence[float], keyed_ms: Sequence[float]) -> None:
    figures = [
        Figure(name=f"a request with a key, {name}", unit="ms", ours=ours, baseline=theirs, against="an open service")
        for name, ours, theirs in zip(("p50", "p99"), percentiles(keyed_ms), percentiles(open_ms), strict=True)
    ]
    print_figures(f"What a key costs, {len(open_ms)} questions to each", figures)
    more = statistics.median(keyed - plain for keyed, plain in zip(keyed_ms, open_ms, strict=True))
    ratio = statistics.median(keyed_ms) / statistics.median(open_ms)
    print(f"a key costs {more:.3f} ms a request (median of pairs), {ratio:.3f} times the time of an open one")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main(sys.argv[1:])
