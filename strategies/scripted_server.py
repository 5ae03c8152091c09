"""An OpenAI-compatible server on this machine that says what it is told, and fails as it is told: for tests.

    with ScriptedServer(['{"choice": 2}', Reply(status=429, retry_after=0.5), "Paris"]) as server:
        client = openai.OpenAI(base_url=server.url, api_key="any")
        ...
    assert server.requests[0].body["model"] == "gpt"

It knows POST /v1/chat/completions without streaming, binds 127.0.0.1 on a free port, and takes connections at once.
A token is a word between white space, as for `ScriptedGenerator`.
"""

import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

__all__ = ["Received", "Reply", "ScriptedServer"]

_PATH = "/v1/chat/completions"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What to send back for one request."""

    #: the model's words
    text: str = ""
    #: HTTP status; other than 200 the body is an error object
    status: int = 200
    #: the Retry-After header, in seconds
    retry_after: float | None = None
    #: wait before the first byte
    seconds: float = 0.0
    #: this body instead of a completion, for example broken JSON
    body: bytes | None = None
    #: hang up after half of the body
    cut: bool = False
    #: send one byte every so many seconds: no single read times out, and the answer does not come
    drip_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """A request that came in."""

    path: str
    #: names in lower case
    headers: Mapping[str, str]
    body: Mapping[str, Any]


class ScriptedServer:
    """Answers chat completions from a script.

    replies: a sequence, one reply per request in the order of their arrival, and status 500 when it is used up; or a
    mapping from a piece of text to the reply for a request whose messages contain it, the first match winning (""
    matches every one); or a function from the request's body to the reply, called on the connection's own thread. A
    text stands for Reply(text=...). `requests` holds what came in. Use it in a `with`, or close it.
    """

    def __init__(
        self, replies: Sequence[Reply | str] | Mapping[str, Reply | str] | Callable[[Mapping[str, Any]], Reply | str]
    ) -> None:
        self.requests: list[Received] = []
        self._replies = replies
        self._used = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="scripted-server", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """What a client takes as base_url."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        """Stop; replies under way are given up."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self, seconds: float) -> None:
        """Pass the time, but no longer than until close."""
        self._closing.wait(seconds)

    @property
    def closing(self) -> bool:
        """Whether close was called."""
        return self._closing.is_set()

    def receive(self, request: Received) -> Reply:
        """Remember a request and pick its reply."""
        with self._lock:
            self.requests.append(request)
            self._used += 1
            number = self._used
        reply = self._pick(request, number=number)
        return Reply(text=reply) if isinstance(reply, str) else reply

    def _pick(self, request: Received, *, number: int) -> Reply | str:
        if request.path != _PATH:
            return Reply(status=404, text=f"the script knows {_PATH} alone")
        if callable(self._replies):
            return self._replies(request.body)
        if isinstance(self._replies, Mapping):
            said = "\n".join(str(message.get("content")) for message in request.body.get("messages", []))
            found = [reply for piece, reply in self._replies.items() if piece in said]
            return found[0] if found else Reply(status=500, text='the script has no reply for this; add one under ""')
        if number > len(self._replies):
            return Reply(status=500, text=f"the script has only {len(self._replies)} replies")
        return self._replies[number - 1]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has hung up is no news."""


def _handler(server: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """One connection, one request: HTTP/1.0 leaves none open behind a closed server."""

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = json.loads(raw or b"{}")
            reply = server.receive(Received(path=self.path, headers=headers, body=asked))
            server.wait(reply.seconds)
            body = _body(reply, asked=asked)
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if reply.retry_after is not None:
                self.send_header("Retry-After", f"{reply.retry_after:g}")
            self.end_headers()
            self._send(body, reply=reply)

        def _send(self, body: bytes, *, reply: Reply) -> None:
            if reply.cut:
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
            elif reply.drip_s is not None:
                for place in range(len(body)):
                    if server.closing:
                        return
                    self.wfile.write(body[place : place + 1])
                    self.wfile.flush()
                    server.wait(reply.drip_s)
            else:
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the base class calls it so
            """Say nothing."""

    return Handler


def _body(reply: Reply, *, asked: Mapping[str, Any]) -> bytes:
    if reply.body is not None:
        return reply.body
    if reply.status != 200:
        return json.dumps({"error": {"message": reply.text, "type": "scripted", "code": None}}).encode()
    prompt = sum(len(str(message.get("content")).split()) for message in asked.get("messages", []))
    written = len(reply.text.split())
    completion = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 0,
        "model": asked.get("model", "scripted"),
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": reply.text}},
        ],
        "usage": {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written},
    }
    return json.dumps(completion).encode()
