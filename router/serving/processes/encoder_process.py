"""One encoder for several processes: a server on a Unix socket, and the Encoder that asks it.

A frame is a length of 4 bytes, big-endian, and so many bytes. The server begins with a JSON object that describes the
encoder. A request is a JSON list of texts; the reply is one byte, 0 before the features (float32, row by row) or 1
before a message. Requests that arrive together from several processes share one forward pass, as questions do inside
one process. Every process has one connection and one request at a time, so what waits here is bounded by their number.
"""

import json
import logging
import os
import socket
import socketserver
import threading
import time
from collections.abc import Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.encoders.base import Encoder
from ragbandit.router.serving.batching.micro_batching import SERVE_S, MicroBatcher
from ragbandit.router.telemetry.throttle import Throttle
from ragbandit.shared.errors import NotReady, RagBanditError

log = logging.getLogger("ragbandit.encoder")

#: longest frame, bytes
MAX_FRAME: Final = 256 * 2**20
#: processes that may be connected
MAX_CONNECTIONS: Final = 128
#: where no connection can be accepted, for want of open files, it is tried again so often, seconds
PAUSE_S: Final = 0.1
#: least time between two log lines about that, seconds
QUIET_S: Final = 10.0
_DOWN: Final = "the encoder process does not run; it is being started again"


class EncoderServer(socketserver.ThreadingUnixStreamServer):
    """Serves an encoder on a Unix socket, which only this user can reach. `close` ends it."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, encoder: Encoder, *, path: Path) -> None:
        # Bound under another name first: who finds the socket finds it ready.
        hidden = path.with_suffix(".new")
        hidden.unlink(missing_ok=True)
        super().__init__(str(hidden), _EncoderClient, bind_and_activate=False)
        self.encoder = encoder
        self.batcher: MicroBatcher[list[str], npt.NDArray[np.float32]] = MicroBatcher(
            self._encode, name="ragbandit-encode", limit=MAX_CONNECTIONS
        )
        self.places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._throttle = Throttle(QUIET_S)
        self.server_bind()
        hidden.chmod(0o600)
        self.server_activate()
        os.replace(hidden, path)

    def run(self) -> None:
        """Accept connections until `close`."""
        self.batcher.start()
        self.serve_forever(poll_interval=PAUSE_S)

    def close(self) -> None:
        """Take no more connections."""
        self.shutdown()
        self.server_close()
        self.batcher.close()

    def get_request(self) -> tuple[Any, Any]:
        """The next connection; where none can be accepted, for want of open files, it is tried again after PAUSE_S."""
        try:
            return super().get_request()
        except OSError as error:
            if self._throttle.lets_pass():
                facts = {"action": "accept", "reason": str(error)}
                log.error("a router cannot be connected to the encoder process; it is tried again", extra=facts)
            time.sleep(PAUSE_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is a place for one more connection."""
        del request, client_address
        return self.places.acquire(blocking=False)

    def _encode(self, batch: Sequence[list[str]]) -> list[npt.NDArray[np.float32] | Exception]:
        rows = self.encoder.encode([text for texts in batch for text in texts])
        ends = np.cumsum([len(texts) for texts in batch])[:-1]
        return list(np.split(rows, ends))


class _EncoderClient(socketserver.StreamRequestHandler):
    """One process that asks, on a thread of its own."""

    server: EncoderServer

    def handle(self) -> None:
        """Reply to its requests, until it has gone."""
        encoder = self.server.encoder
        hello: dict[str, object] = {"dimension": encoder.dimension, "hash": encoder.hash, "source": encoder.source}
        hello["origin"] = getattr(encoder, "origin", None)
        try:
            _send(self.connection, json.dumps(hello).encode())
            while (raw := _receive(self.rfile)) is not None:
                _send(self.connection, self._reply(raw))
        except OSError:
            pass  # the process has gone
        finally:
            self.server.places.release()

    def _reply(self, raw: bytes) -> bytes:
        try:
            rows = self.server.batcher.submit(json.loads(raw)).result(SERVE_S)
            return b"\0" + np.ascontiguousarray(rows, dtype="<f4").tobytes()
        except Exception as error:  # the caller is told, and the next request may go well
            log.exception("a batch could not be encoded", extra={"action": "encode"})
            return b"\1" + f"{type(error).__name__}: {error}".encode("utf-8", "replace")


class RemoteEncoder:
    """The Encoder of another process. NotReady while that does not run: a caller gets 503, and tries again.

    wait_s: how long the first connection is tried. Raises NotReady.
    """

    def __init__(self, path: Path, *, wait_s: float = 0.0) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        give_up = time.monotonic() + wait_s
        while True:
            try:
                hello = self._connect()
                break
            except OSError as error:
                if time.monotonic() >= give_up:
                    raise NotReady(_DOWN) from error
                time.sleep(PAUSE_S)
        self.dimension: int = hello["dimension"]
        self.hash: str = hello["hash"]
        self.source: str = hello["source"]
        self.origin: dict[str, str | None] | None = hello["origin"]

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Shape (n, d), float32. Raises NotReady."""
        wanted = list(texts)
        with self._lock:
            try:
                reply = self._reply_to(json.dumps(wanted).encode())
            except OSError as error:
                self._disconnect()
                raise NotReady(_DOWN, remedy="try again in a second, with the same id") from error
        if reply[:1] != b"\0":
            raise RagBanditError(f"the encoder process said: {reply[1:].decode('utf-8', 'replace')}")
        return np.frombuffer(reply, dtype="<f4", offset=1).astype(np.float32).reshape(len(wanted), self.dimension)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._disconnect()

    def _reply_to(self, request: bytes) -> bytes:
        if self._connection is None and self._connect()["hash"] != self.hash:
            self._disconnect()
            raise RagBanditError(
                "the encoder process came back with another encoder",
                field="encoder.model",
                remedy="start the service again",
            )
        assert self._connection is not None
        _send(self._connection, request)
        reply = _receive(self._stream)
        if not reply:
            raise ConnectionError("closed")
        return reply

    def _connect(self) -> dict[str, Any]:
        """Connect; what the encoder process says of its encoder. Raises OSError."""
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._stream: BinaryIO = self._connection.makefile("rb")
        try:
            self._connection.settimeout(SERVE_S)
            self._connection.connect(str(self._path))
            hello = _receive(self._stream)
            if hello is None:
                raise ConnectionError("closed")
            described: dict[str, Any] = json.loads(hello)
            return described
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._stream.close()
            self._connection.close()
            self._connection = None


def _send(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(len(frame).to_bytes(4, "big") + frame)


def _receive(stream: BinaryIO | BufferedIOBase) -> bytes | None:
    """The next frame; None at the end of the connection. Raises OSError."""
    head = stream.read(4)
    if not head:
        return None
    size = int.from_bytes(head, "big")
    if size > MAX_FRAME:
        raise ConnectionError(f"a frame of {size} bytes")
    body = stream.read(size)
    if len(head) < 4 or len(body) < size:
        raise ConnectionError("closed inside a frame")
    return body
