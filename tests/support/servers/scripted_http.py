"""An HTTP server whose replies are scripted, to say what a service of ours would not say at will."""

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """One reply. hang_up: the connection is closed instead, without a byte."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    #: before the reply, and between the bytes of its body, seconds
    delay_s: float = 0.0
    drip_s: float = 0.0
    hang_up: bool = False


def json_reply(value, *, status=200, **headers):
    """A reply in JSON; headers by name, with _ for -."""
    named = {name.replace("_", "-"): str(text) for name, text in headers.items()}
    return Scripted(status=status, body=json.dumps(value).encode(), headers=named)


class ScriptedHttp:
    """Replies in order, the last again and again; or what `answer` gives for the JSON body.

    `seen` has (path, headers, JSON body) of every request, `bodies` the bytes.
    """

    def __init__(self, *replies: Scripted, answer=None) -> None:
        self.seen: list[tuple[str, dict[str, str], object]] = []
        self.bodies: list[bytes] = []
        self._replies, self._answer = list(replies), answer
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def _next(self):
        if self._answer is not None:
            return self._answer(self.seen[-1][2])
        with self._lock:
            return self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]

    def _handler(scripted):  # noqa: N805 - the handler has a self of its own
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                sent = self.rfile.read(int(self.headers.get("content-length", 0)))
                scripted.bodies.append(sent)
                scripted.seen.append(
                    (self.path, dict(self.headers), json.loads(sent.partition(b"\n")[0]) if sent else None)
                )
                reply = scripted._next()
                if scripted._ended.wait(reply.delay_s) or reply.hang_up:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                usual = {"content-type": "application/json", "content-length": str(len(reply.body))}
                for name, value in (usual | reply.headers).items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    self._write(reply)
                except OSError:  # the client has gone
                    self.close_connection = True

            do_GET = do_PUT = do_HEAD = do_POST  # noqa: N815 - as the server calls it

            def _write(self, reply):
                if not reply.drip_s:
                    self.wfile.write(reply.body)
                    return
                for byte in reply.body:
                    if scripted._ended.is_set():
                        return
                    self.wfile.write(bytes([byte]))
                    time.sleep(reply.drip_s)

            def log_message(self, *_):
                pass

        return Handler
