"""A service of several processes: what one of them must know of the others, handed on in the environment."""

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

#: set by `serve` for its processes; outside the prefix, since it is no setting
_VARIABLE: Final = "_RAGBANDIT_SERVICE_PROCESS"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceProcess:
    """One of the processes of a service."""

    #: "router": serves HTTP; "encoder": encodes for all of them
    kind: Literal["router", "encoder"]
    #: place among the routers, from 0
    number: int
    #: how many routers there are
    processes: int
    #: folder of their sockets, which only this user can enter
    folder: str
    #: the port that all of them listen on
    port: int
    #: the port for operators that all of them listen on; None: they have none of their own
    admin_port: int | None
    #: whether there is an encoder process
    shared_encoder: bool

    @classmethod
    def of_environment(cls) -> "ServiceProcess | None":
        """This process's; None for a service of one process, and for the one that starts the others."""
        given = os.environ.get(_VARIABLE)
        return None if given is None else cls(**json.loads(given))

    def environment(self) -> dict[str, str]:
        """What hands it on to a child."""
        return {_VARIABLE: json.dumps(asdict(self))}

    @property
    def encoder_socket(self) -> Path:
        """Where the encoder process listens."""
        return Path(self.folder) / "encoder.sock"

    @property
    def metrics_socket(self) -> Path:
        """Where this process shows its metrics; there once it serves requests."""
        return Path(self.folder) / f"metrics-{self.number}.sock"


def shared_port(host: str, port: int) -> socket.socket:
    """A socket bound to this address beside those of the other processes: the kernel shares out the connections.

    Raises OSError.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound
