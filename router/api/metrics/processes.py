"""Metrics of a service of several processes: whichever process is scraped replies with those of all.

Every process shows what it counts on a Unix socket of its own in a folder that they share. The process that is scraped
reads them all and gives each sample the label `process`; one that does not reply in time is missing, and
`ragbandit_process_up` says so. Sums over processes are left to the query: `sum without (process) (...)`.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from ragbandit.router.serving.processes.service_process import ServiceProcess

#: longest wait for the metrics of another process, seconds
WAIT_S: Final = 1.0
#: most bytes that one process replies with
MOST: Final = 16 * 2**20


class ProcessMetrics:
    """One process's part: a server for the others, and a client of them. text: of what this process counts."""

    def __init__(self, process: ServiceProcess, *, text: Callable[[], bytes]) -> None:
        self._process = process
        self._text = text
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Show this process's metrics to the others."""
        path = self._process.metrics_socket
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._reply, path)

    def close(self) -> None:
        """Show them no more."""
        if self._server is not None:
            self._server.close()

    async def all_text(self) -> bytes:
        """Prometheus text of all processes."""
        numbers = range(self._process.processes)
        texts = await asyncio.gather(*(self._text_of(number) for number in numbers))
        registry = CollectorRegistry()
        registry.register(_Merged(dict(zip(numbers, texts, strict=True))))
        return bytes(generate_latest(registry))

    async def _reply(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._text())
        writer.close()

    async def _text_of(self, number: int) -> bytes | None:
        if number == self._process.number:
            return self._text()
        path = replace(self._process, number=number).metrics_socket
        try:
            async with asyncio.timeout(WAIT_S):
                reader, writer = await asyncio.open_unix_connection(path, limit=MOST)
                try:
                    return await reader.read(-1)
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return None


class _Merged(Collector):
    def __init__(self, texts: Mapping[int, bytes | None]) -> None:
        self._texts = texts

    def collect(self) -> Iterator[Metric]:
        """The families of all processes, each sample with its process."""
        families: dict[str, Metric] = {}
        up = GaugeMetricFamily("ragbandit_process_up", "1 if the process replied to this scrape.", labels=["process"])
        for number, text in self._texts.items():
            up.add_metric([str(number)], 1.0 if text else 0.0)
            for family in text_string_to_metric_families((text or b"").decode()):
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    labels = {**sample.labels, "process": str(number)}
                    merged.add_sample(sample.name, labels, sample.value)
        yield up
        yield from families.values()
