"""Tracing into memory."""

import time

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ragbandit.router.telemetry.otel import OpenTelemetry


class Memory:
    """A tracing, and its recorded spans."""

    def __init__(self) -> None:
        self._spans, tracers = InMemorySpanExporter(), TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracing = OpenTelemetry(tracers)

    @property
    def spans(self):
        return self._spans.get_finished_spans()

    def wait(self, *names):
        """A span may end after the reply is there: wait for those with these names."""
        give_up = time.monotonic() + 10
        while not set(names) <= {span.name for span in self.spans}:
            assert time.monotonic() < give_up, [span.name for span in self.spans]
            time.sleep(0.01)

    def span(self, name):
        self.wait(name)
        (found,) = (span for span in self.spans if span.name == name)
        return found

    def texts(self) -> str:
        """All recorded names and attributes."""
        spans = [f"{span.name} {dict(span.attributes)} {span.status.description} {span.events}" for span in self.spans]
        return "\n".join(spans)
