"""A TCP proxy that can swallow what goes through its connections, as a firewall that has forgotten them does."""

import selectors
import socket
import threading
from pathlib import Path


class TcpProxy:
    """Forwards a port of 127.0.0.1 to a Unix socket, or to a host and port; `port` is a new one.

    `swallow` makes all connections of now silent for good: what either side sends is acknowledged and goes nowhere,
    and neither side learns that the other has closed. Connections that come after it work. A new `target` is for new
    connections, as when an address moves to another server; open connections still lead to the old one.
    """

    def __init__(self, target: Path | tuple[str, int]) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        #: each end -> the other end; None: swallowed
        self._ends: dict[socket.socket, socket.socket | None] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)
        self._thread.start()

    def swallow(self) -> int:
        """Forget all connections of now; their number."""
        with self._lock:
            known = [end for end, other in self._ends.items() if other is not None]
            self._ends.update(dict.fromkeys(known))
        return len(known) // 2

    def refuse(self) -> None:
        """Take no new connection either."""
        with self._lock:
            self._selector.unregister(self._listener)
            self._listener.close()

    def close(self) -> None:
        self._closed = True
        self._thread.join(5)
        for end in [self._listener, *self._ends]:
            end.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(0.05):
                with self._lock:
                    if key.fileobj is not self._listener:
                        self._forward(key.fileobj)
                    elif self._listener.fileno() >= 0:
                        self._accept()

    def _accept(self) -> None:
        ours, _ = self._listener.accept()
        if isinstance(self.target, Path):
            theirs, address = socket.socket(socket.AF_UNIX), str(self.target)
        else:
            theirs, address = socket.socket(), self.target
        try:
            theirs.connect(address)
        except OSError:  # there is no server
            ours.close()
            theirs.close()
            return
        for end, other in ((ours, theirs), (theirs, ours)):
            self._ends[end] = other
            self._selector.register(end, selectors.EVENT_READ)

    def _forward(self, end: socket.socket) -> None:
        other = self._ends.get(end)
        try:
            data = end.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(end)
        if other is None:
            return
        try:
            if data:
                other.sendall(data)
            else:
                other.shutdown(socket.SHUT_WR)
        except OSError:
            pass
