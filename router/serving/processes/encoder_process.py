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
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.encoders.base import Encoder
from ragbandit.router.serving.batching.micro_batching import SERVE_S, MicroBatcher
from ragbandit.shared.errors import NotReady, RagBanditError

log = logging.getLogger("ragbandit.encoder")

#: longest frame, bytes
MAX_FRAME: Final = 256 * 2**20
#: processes that may be connected
MAX_CONNECTIONS: Final = 128
#: where no connection can be accepted, for want of open files, it is tried again so often, seconds
PAUSE_S: Final = 0.1
_DOWN: Final = "the encoder process does not run; it is being started again"


class EncoderServer:
    """Serves an encoder on a Unix socket, which only this user can reach. `close` ends it."""

    def __init__(self, encoder: Encoder, *, path: Path) -> None:
        self._encoder = encoder
        self._batcher: MicroBatcher[list[str], npt.NDArray[np.float32]] = MicroBatcher(
            self._encode, name="ragbandit-encode", limit=MAX_CONNECTIONS
        )
        self._connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closed = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Bound under another name first: who finds the socket finds it ready.
        hidden = path.with_suffix(".new")
        hidden.unlink(missing_ok=True)
        self._socket.bind(str(hidden))
        hidden.chmod(0o600)
        self._socket.listen(MAX_CONNECTIONS)
        os.replace(hidden, path)

    def run(self) -> None:
        """Accept connections until `close`."""
        self._batcher.start()
        failing = False
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if self._closed.is_set():
                    return
                if not failing:
                    facts = {"action": "accept", "reason": str(error)}
                    log.error("a router cannot be connected to the encoder process; it is tried again", extra=facts)
                failing = True
                self._closed.wait(PAUSE_S)
                continue
            failing = False
            if not self._connections.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._batcher.close()

    def _encode(self, batch: Sequence[list[str]]) -> list[npt.NDArray[np.float32] | Exception]:
        rows = self._encoder.encode([text for texts in batch for text in texts])
        ends = np.cumsum([len(texts) for texts in batch])[:-1]
        return list(np.split(rows, ends))

    def _serve(self, connection: socket.socket) -> None:
        encoder = self._encoder
        hello = {"dimension": encoder.dimension, "hash": encoder.hash, "source": encoder.source}
        try:
            with connection:
                _send(connection, json.dumps(hello).encode())
                while (raw := _receive(connection)) is not None:
                    try:
                        rows = self._batcher.submit(json.loads(raw)).result(SERVE_S)
                        reply = b"\0" + np.ascontiguousarray(rows, dtype="<f4").tobytes()
                    except Exception as error:  # the caller is told, and the next request may go well
                        log.exception("a batch could not be encoded", extra={"action": "encode"})
                        reply = b"\1" + f"{type(error).__name__}: {error}".encode("utf-8", "replace")
                    _send(connection, reply)
        except OSError:
            pass  # the process has gone
        finally:
            self._connections.release()


class RemoteEncoder:
    """The Encoder of another process. NotReady while that does not run: a caller gets 503, and tries again.

    wait_s: how long the first connection is tried. Raises NotReady.
    """

    def __init__(self, path: Path, *, wait_s: float = 0.0) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        pause, waited = threading.Event(), 0.0
        while True:
            try:
                self._connection, hello = self._connected()
                break
            except OSError as error:
                if waited >= wait_s:
                    raise NotReady(_DOWN) from error
                pause.wait(0.1)
                waited += 0.1
        self.dimension: int = hello["dimension"]
        self.hash: str = hello["hash"]
        self.source: str = hello["source"]

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Shape (n, d), float32. Raises NotReady."""
        asked = list(texts)
        with self._lock:
            try:
                reply = self._asked(json.dumps(asked).encode())
            except OSError as error:
                self._forget()
                raise NotReady(_DOWN, remedy="try again in a second, with the same id") from error
        if reply[:1] != b"\0":
            raise RagBanditError(f"the encoder process said: {reply[1:].decode('utf-8', 'replace')}")
        return np.frombuffer(reply, dtype="<f4", offset=1).astype(np.float32).reshape(len(asked), self.dimension)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._forget()

    def _asked(self, request: bytes) -> bytes:
        if self._connection is None:
            connection, hello = self._connected()
            if hello["hash"] != self.hash:
                connection.close()
                raise RagBanditError(
                    "the encoder process came back with another encoder",
                    field="encoder.model",
                    remedy="start the service again",
                )
            self._connection = connection
        _send(self._connection, request)
        reply = _receive(self._connection)
        if not reply:
            raise ConnectionError("closed")
        return reply

    def _connected(self) -> tuple[socket.socket, dict[str, Any]]:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(SERVE_S)
            connection.connect(str(self._path))
            hello = _receive(connection)
            if hello is None:
                raise ConnectionError("closed")
            return connection, json.loads(hello)
        except BaseException:
            connection.close()
            raise

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _send(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(len(frame).to_bytes(4, "big") + frame)


def _receive(connection: socket.socket) -> bytes | None:
    """The next frame; None at the end of the connection. Raises OSError."""
    head = _exactly(connection, 4)
    if head is None:
        return None
    size = int.from_bytes(head, "big")
    if size > MAX_FRAME:
        raise ConnectionError(f"a frame of {size} bytes")
    body = _exactly(connection, size)
    if body is None:
        raise ConnectionError("closed inside a frame")
    return body


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    """So many bytes; None if the connection ends first."""
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
