"""Tracing with OpenTelemetry's SDK. Its global providers stay unset, so that libraries do not send their own spans."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Unpack

from ragbandit.router.telemetry import conventions as names
from ragbandit.router.telemetry.tracing import Attribute, Span, SpanOptions, Tracing
from ragbandit.shared.errors import missing_package
from ragbandit.shared.proxies import certificate_paths, certificates, proxy_of

try:
    import requests
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise missing_package("opentelemetry-sdk", extra="otel", field="telemetry.enabled") from error

_CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_SCOPE: Final = "ragbandit"
#: longest time to send the remaining spans when the process ends, seconds; further spans are lost
_CLOSE_S: Final = 3.0
_PROPAGATOR: Final = TraceContextTextMapPropagator()


def _clean(attributes: Mapping[str, Attribute | None]) -> dict[str, Any]:
    """The attributes that are not None; texts are cut after 20,000 characters."""
    return {
        name: value[:20_000] if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }


class _OtelSpan(Span):
    is_recorded = True

    def __init__(self, span: trace.Span) -> None:
        self.span = span

    @property
    def carrier(self) -> Mapping[str, str]:
        headers: dict[str, str] = {}
        _PROPAGATOR.inject(headers, context=trace.set_span_in_context(self.span))
        if len(headers.get("tracestate", "")) > 512:  # W3C demands that at least 512 characters are passed on
            del headers["tracestate"]
        return headers

    def set(self, attributes: Mapping[str, Attribute | None]) -> None:
        self.span.set_attributes(_clean(attributes))

    def rename(self, name: str) -> None:
        self.span.update_name(name)

    def fail(self, error_type: str) -> None:
        self.span.set_attribute(names.ERROR_TYPE, error_type)
        self.span.set_status(trace.StatusCode.ERROR)

    def end(self) -> None:
        self.span.end()


class OpenTelemetry(Tracing):
    enabled = True

    def __init__(self, tracers: TracerProvider) -> None:
        capture = os.environ.get(_CAPTURE, "NO_CONTENT").strip().upper()
        self.texts_in_spans = capture in ("SPAN_ONLY", "SPAN_AND_EVENT")
        self._provider, self._tracer = tracers, tracers.get_tracer(_SCOPE)

    def begin(self, name: str, **how: Unpack[SpanOptions]) -> _OtelSpan:
        context, link = _context(how.get("parent")), how.get("link")
        links = []
        if link is not None:
            context = Context()
            linked = trace.get_current_span(_context(link)).get_span_context()
            if linked.is_valid:
                links.append(trace.Link(linked))
        kind, attributes = (
            trace.SpanKind[how.get("kind", "internal").upper()],
            _clean(how.get("attributes", {})),
        )
        return _OtelSpan(self._tracer.start_span(name, context, kind=kind, attributes=attributes, links=links))

    @contextmanager
    def span(self, name: str, **how: Unpack[SpanOptions]) -> Iterator[Span]:
        span = self.begin(name, **how)
        try:
            # Exceptions are not recorded, since their messages may contain a question.
            with trace.use_span(span.span, record_exception=False, set_status_on_exception=False):
                yield span
        except BaseException as error:
            span.fail(type(error).__name__)
            raise
        finally:
            span.end()

    def close(self) -> None:
        # The SDK has no reliable time limit: if the receiver hangs, the SDK waits 10 s for each batch, longer than a
        # process may take to end. A daemon thread does not delay the end of the process.
        ending = threading.Thread(target=self._provider.shutdown, name="ragbandit-telemetry", daemon=True)
        ending.start()
        ending.join(_CLOSE_S)


def _context(carrier: Mapping[str, str] | None) -> Context | None:
    return None if carrier is None else _PROPAGATOR.extract(carrier, context=Context())


def open_telemetry(*, process: str) -> OpenTelemetry:
    """Make the tracing of this process. A background thread sends the spans; spans beyond its queue are lost."""
    from ragbandit.shared.version import __version__

    attributes: dict[str, Any] = {"service.version": __version__, names.PROCESS: process}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = _SCOPE
    tracers = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(session=(session := requests.Session()))
    # Spans go through the proxy of all other calls, with their certificates or OTEL_EXPORTER_OTLP_CERTIFICATE's.
    session.trust_env, session.proxies = False, {"all": proxy_of(exporter._endpoint) or ""}  # noqa: SLF001
    if session.verify is True:
        certificates()  # raises ConfigError for a missing file
        file, folder, _ = certificate_paths()
        session.verify = file or next(filter(os.path.isdir, (folder or "").split(os.pathsep)), True)
    tracers.add_span_processor(BatchSpanProcessor(exporter))
    return OpenTelemetry(tracers)
