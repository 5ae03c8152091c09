"""In a network namespace of its own: a router whose open connections to PostgreSQL lose every packet from now on.

Run as `unshare -n python -m tests.support.servers.dropped_packets SOCKET DATABASE FOLDER`; writes after how many
seconds a route worked again.
"""

import subprocess
import sys
import time
from pathlib import Path

from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.memory_jobs import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.shared.errors import StoreError
from tests.support.servers.tcp_proxy import TcpProxy


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _drop(ports: list[int]) -> None:
    """Drop what is sent from these ports and to them, silently."""
    _ip("rule", "add", "pref", "10", "lookup", "local")
    _ip("rule", "del", "pref", "0")  # it comes before every rule of ours
    for port in ports:
        for side in ("sport", "dport"):
            _ip("rule", "add", "pref", "5", "ipproto", "tcp", side, str(port), "blackhole")


def main(socket: str, database: str, folder: str) -> None:
    _ip("link", "set", "lo", "up")
    proxy = TcpProxy(Path(socket))
    url = f"postgresql+psycopg://postgres@127.0.0.1:{proxy.port}/{database}"
    settings = {"data_dir": folder, "database_url": url, "encoder": {"model": "hashing", "dimension": 8}}
    with Router.open(Settings.model_validate(settings), jobs=MemoryJobs()) as router:
        router.route("before")
        _drop(proxy.client_ports())
        began = time.monotonic()
        while True:
            try:
                router.route("after")
                break
            except StoreError as error:
                sys.stderr.write(f"{error}\n")
        sys.stdout.write(str(time.monotonic() - began))
    proxy.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
