"""Spans: links, and a receiver that is away or hangs."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("opentelemetry.sdk")

from ragbandit.router.telemetry import otel
from tests.support.telemetry import Memory


@pytest.fixture
def hanging(monkeypatch):
    """A receiver that takes requests and replies when the event is set."""
    replies = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            replies.wait(30)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    yield replies
    replies.set()
    for ending in threading.enumerate():
        if ending.name == "ragbandit-telemetry":
            ending.join(30)
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_a_receiver_that_hangs_holds_up_nobody(hanging, monkeypatch):
    """Spans beyond the queue are made and dropped without a wait, and closing ends while nothing was taken yet."""
    monkeypatch.setattr(otel, "_CLOSE_S", 0.1)
    tracing = otel.open_telemetry(process="service")
    for number in range(3000):
        with tracing.span("more than the queue of 2,048 holds", attributes={"number": number}):
            pass
    tracing.close()
    assert not hanging.is_set()  # it has replied to nothing


def test_a_run_that_is_tried_again_begins_a_trace_with_a_link():
    """The caller's trace may be over, so the new span has no parent, and a link to the span of the decision."""
    memory, parent = Memory(), f"00-{'a' * 32}-{'b' * 16}-01"
    with memory.tracing.span("again", link={"traceparent": parent}):
        pass
    span = memory.span("again")
    assert (span.parent, [f"{link.context.span_id:016x}" for link in span.links]) == (None, ["b" * 16])
