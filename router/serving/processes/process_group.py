"""`serve` with server.processes above 1: routers that share a port, and one encoder process for all of them.

A process that dies is started again. Routers whose encoder process is gone reply 503 with Retry-After until it is back.
SIGTERM and Ctrl-C end the routers first, then the encoder. SIGHUP has every router read the arms again.
"""

import contextlib
import logging
import signal
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import HASHING
from ragbandit.router.serving.processes.encoder_process import EncoderServer
from ragbandit.router.serving.processes.service_process import ServiceProcess, shared_port
from ragbandit.router.serving.setup.bootstrap import choose_encoder, encoder_of
from ragbandit.shared.child_process import Child, end, keep_what_is_loaded

log = logging.getLogger("ragbandit.service")

#: seconds between two looks at the processes
LOOK_S: Final = 0.1
#: exit code where a process could not start
FAILED: Final = 3


def run_processes(settings: Settings, *, arguments: Sequence[str]) -> int:
    """Start the processes and tend them until a signal; the exit code. arguments: of the verb, for each of them."""
    stop, reload = threading.Event(), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    signal.signal(signal.SIGHUP, lambda *_: reload.set())
    server = settings.server
    with (
        tempfile.TemporaryDirectory(prefix="ragbandit-") as folder,
        # It holds the port, and since it does not listen it gets no connection.
        shared_port(server.host, server.port) as held,
        contextlib.ExitStack() as more,
    ):
        admin = None
        if server.admin_port is not None:
            admin = more.enter_context(shared_port(server.admin_host, server.admin_port))
        first = ServiceProcess(
            kind="router",
            number=0,
            processes=server.processes,
            folder=folder,
            port=held.getsockname()[1],
            admin_port=None if admin is None else admin.getsockname()[1],
            shared_encoder=choose_encoder(settings).model != HASHING,  # which costs less than asking another process
        )
        encoders = [_child("encoder", replace(first, kind="encoder"), arguments)] if first.shared_encoder else []
        places = [replace(first, number=number) for number in range(server.processes)]
        routers = [_child(f"router-{place.number}", place, arguments) for place in places]
        try:
            started = _started(encoders, sockets=[first.encoder_socket], stop=stop) and _started(
                routers, sockets=[place.metrics_socket for place in places], stop=stop
            )
            if not started and not stop.is_set():
                return FAILED
            while not stop.wait(LOOK_S):
                for child in (*encoders, *routers):
                    child.tend()
                if reload.is_set():
                    reload.clear()
                    for child in routers:
                        child.send(signal.SIGHUP)
        finally:
            end(routers, drain_s=server.shutdown_s + 5.0)
            end(encoders)
    return 0


def run_encoder(settings: Settings, *, place: ServiceProcess) -> None:
    """Be the encoder process, until SIGTERM."""
    server = EncoderServer(encoder_of(settings), path=place.encoder_socket)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: threading.Thread(target=server.close, daemon=True).start())
    log.info("the encoder process encodes for %d routers", place.processes, extra={"action": "encode"})
    keep_what_is_loaded()
    server.run()


def _child(name: str, place: ServiceProcess, arguments: Sequence[str]) -> Child:
    return Child(name, arguments=["serve", *arguments], log_folder=None, environment=place.environment())


def _started(children: Sequence[Child], *, sockets: Sequence[Path], stop: threading.Event) -> bool:
    """Start the children and wait until their sockets are there; False if one of them ended before, or on `stop`.

    What fails at the start fails again: it has said why, and is not started a second time.
    """
    for child in children:
        child.start()
    while children and not all(path.exists() for path in sockets):
        if stop.wait(LOOK_S):
            return False
        for child in children:
            if not child.lives():
                log.error("%s did not start, so the service ends", child.name, extra={"action": "died"})
                return False
    return True
