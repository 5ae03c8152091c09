"""A service in a process of its own, for measurements over HTTP: `serve` on a free port, with the hashing encoder."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: longest start and longest end, seconds
START_S, END_S = 60.0, 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceProcess:
    """A service that answers."""

    port: int
    pid: int
    #: its data_dir
    folder: Path


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment() -> dict[str, str]:
    """This process's environment without RagBandit's settings, which must not influence a measurement."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAGBANDIT_")}


@contextmanager
def served(
    settings: Mapping[str, Any], *, database: str | None = None, files: Mapping[str, str] | None = None
) -> Iterator[ServiceProcess]:
    """A service with these settings (section -> its fields) until the end of the block. database: URL; default SQLite
    in its data_dir. files: name -> text, written next to its configuration. Raises RuntimeError
    with the end of its log where it does not start.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in (files or {}).items():
            (folder / file).write_text(text, encoding="utf-8")
        config = {"data_dir": name, "encoder": {"model": "hashing"}, **settings}
        config["server"] = {**config.get("server", {}), "port": port}
        (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
        environ = environment() | ({} if database is None else {"DATABASE_URL": database})
        command = [sys.executable, "-m", "ragbandit"]
        given = ["--config", str(folder / "config.yaml")]
        subprocess.run([*command, "migrate", *given], env=environ, stdout=subprocess.DEVNULL, check=True)
        with (folder / "log").open("w", encoding="utf-8") as log:
            process = subprocess.Popen([*command, "serve", *given], env=environ, stdout=log, stderr=log)
        try:
            _await_start(port, process, log=folder / "log")
            yield ServiceProcess(port=port, pid=process.pid, folder=folder)
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_start(port: int, process: "subprocess.Popen[bytes]", *, log: Path) -> None:
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).read()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"the service did not start: {log.read_text(encoding='utf-8')[-1000:]}")
