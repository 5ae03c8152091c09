"""An OTLP receiver over HTTP: keeps the spans that processes send it."""

import gzip
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Sent:
    """A span as it came over the wire."""

    name: str
    trace: str
    span: str
    parent: str
    links: list[str]
    process: str
    attributes: dict[str, Any]
    failed: bool = False


@dataclass
class OtlpReceiver:
    """Listens on a free port of this machine."""

    spans: list[Sent] = field(default_factory=list)
    #: every body as it came, to be searched for texts
    raw: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.take(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def take(self, body: bytes) -> None:
        self.raw.append(body)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            process = _attributes(resource.resource.attributes)["ragbandit.process"]
            for scope in resource.scope_spans:
                self.spans += [_span(span, process) for span in scope.spans]

    def wait_for(self, *, spans: int, timeout_s: float = 30.0) -> None:
        give_up = time.monotonic() + timeout_s
        while len(self.spans) < spans:
            assert time.monotonic() < give_up, self.spans
            time.sleep(0.02)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _attributes(pairs) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [each.string_value for each in value.values] if kind == "array_value" else value
    return found


def _span(span, process: str) -> Sent:
    return Sent(
        name=span.name,
        trace=span.trace_id.hex(),
        span=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        links=[link.span_id.hex() for link in span.links],
        process=process,
        attributes=_attributes(span.attributes),
        failed=span.status.code == 2,
    )
