"""Tracing into memory."""

import time

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ragbandit.router.telemetry.otel import OpenTelemetry


class Memory:
    """A tracing, and its recorded spans."""

    def __init__(self) -> None:
        self._spans, self._events = InMemorySpanExporter(), InMemoryLogRecordExporter()
        tracers, loggers = TracerProvider(), LoggerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        loggers.add_log_record_processor(SimpleLogRecordProcessor(self._events))
        self.tracing = OpenTelemetry(tracers=tracers, loggers=loggers)

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

    @property
    def events(self):
        return [each.log_record for each in self._events.get_finished_logs()]

    def texts(self) -> str:
        """All recorded names and attributes."""
        spans = [f"{span.name} {dict(span.attributes)} {span.status.description} {span.events}" for span in self.spans]
        return "\n".join([*spans, *(f"{each.event_name} {each.body} {dict(each.attributes)}" for each in self.events)])
