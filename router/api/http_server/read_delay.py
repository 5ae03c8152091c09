"""Read delay: how long a request waited in its socket before this process read it.

Where HTTP itself is the limit no queue of ours grows: requests wait in the kernel. A refusal costs about a tenth of a
decision, so refusing what has waited too long there keeps the rest in time.
"""

import asyncio
import contextlib
import socket
import struct
import sys
from typing import Final

from ragbandit.router.errors import Overloaded

__all__ = ["WAITED_S", "ReadDelay", "waited_s"]

#: key of a request's delay in its ASGI scope
WAITED_S: Final = "ragbandit.waited_s"
#: so many late requests, one after the other, are served: a machine that stood still for a moment is not overloaded
LATE: Final = 16
#: place and size of tcpi_last_data_recv, milliseconds, in Linux' struct tcp_info
_AT, _SIZE = 52, 56


def waited_s(transport: asyncio.BaseTransport) -> float:
    """Seconds since the last bytes of this connection arrived; 0 where the system does not say."""
    connection = transport.get_extra_info("socket")
    if sys.platform != "linux" or connection is None:
        return 0.0
    with contextlib.suppress(OSError):  # no TCP, or closed by now
        found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
        if len(found) == _SIZE:
            return float(struct.unpack_from("I", found, _AT)[0]) / 1000.0
    return 0.0


class ReadDelay:
    """Refuses requests that waited too long to be read. Used on the event loop alone."""

    def __init__(self) -> None:
        #: of the last request, seconds
        self.last_s = 0.0
        #: since the start
        self.refused = 0
        self._late = 0

    def check(self, delay_s: float, *, max_wait_s: float) -> None:
        """Raises Overloaded for a request that was read so late, if those before it were late too."""
        self.last_s = delay_s
        if delay_s <= max_wait_s:
            self._late = 0
            return
        self._late += 1
        if self._late > LATE:
            self.refused += 1
            message = f"the request waited {delay_s:.1f} s to be read, longer than server.max_wait_s ({max_wait_s:g} s)"
            raise Overloaded(message, remedy="try again in a second, with the same id")
