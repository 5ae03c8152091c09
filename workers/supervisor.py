"""Supervisor (`ragbandit up`): Redis, the HTTP service, answer workers and the learner, as children of one process.

A child that dies is started again, at once the first time, then with growing pauses. A Redis that no longer answers at
its socket is started again too: it may forget everything at any moment. Ctrl-C or SIGTERM ends all:
the service first, so that nothing new comes in, then the workers, all at once, then Redis.

The children read a copy of the configuration as it was accepted at the start, so that one which is started again comes
back whatever the file says by then.
"""

import contextlib
import logging
import signal
import threading
import time
from pathlib import Path
from typing import IO

import yaml

from ragbandit.client import Client
from ragbandit.router.config.loading import CLASS_FOLDER, LoadedSettings, class_folder
from ragbandit.router.queue.redis_server import RedisServer
from ragbandit.router.serving.setup.requirements import check_port, hold, hold_store, prepare_data_dir
from ragbandit.shared.child_process import Child, end, ending, last_lines
from ragbandit.shared.errors import ConfigError, NotReady
from ragbandit.shared.files import private_folder, write_file

log = logging.getLogger("ragbandit.up")

#: seconds between two looks whether Redis answers, and looks in a row without an answer before it is started again
REDIS_LOOK_S = 1.0
REDIS_MISSES = 6
#: the configuration that the children read, under data_dir
ACCEPTED = "accepted.yaml"


class Supervisor:
    """The whole service on one machine."""

    def __init__(self, loaded: LoadedSettings) -> None:
        self.settings = settings = loaded.settings
        data = Path(settings.data_dir)
        folder = data / "logs"
        prepare_data_dir(settings)
        private_folder(folder)
        self.redis = RedisServer(settings) if settings.redis_url is None else None
        self._loaded = loaded
        self._accepted = data / ACCEPTED
        more = ["--config", str(self._accepted)]
        commands = [("api", ["serve", *more])]
        commands += [
            (f"answer-{number}", ["worker", "--queue", "answer", *more])
            for number in range(1, (settings.workers.answer if settings.worker_arms else 0) + 1)
        ]
        if settings.judge.generator is not None:
            commands.append(("judge", ["worker", "--queue", "judge", *more]))
        commands.append(("learn", ["worker", "--queue", "learn", *more]))
        # Their file is a copy that lies elsewhere; classes are found beside the original.
        environment = {} if loaded.file is None else {CLASS_FOLDER: class_folder(loaded.file)}
        self.children = [
            Child(name, arguments=arguments, log_folder=folder, environment=environment) for name, arguments in commands
        ]
        self._stop = threading.Event()
        self._redis_looked_at, self._redis_misses = 0.0, 0
        self._lock: IO[bytes] | None = None

    @property
    def url(self) -> str:
        """URL of the HTTP service."""
        return f"http://{self.settings.server.host}:{self.settings.server.port}"

    @property
    def admin_url(self) -> str:
        """URL of what operators ask."""
        server = self.settings.server
        return self.url if server.admin_port is None else f"http://{server.admin_host}:{server.admin_port}"

    def start(self) -> None:
        """Start Redis and all children; returns at once, `wait_ready` waits."""
        zero = [name for name in ("port", "admin_port") if getattr(self.settings.server, name) == 0]
        if zero:
            raise ConfigError(
                "port 0 lets the system choose one, and clients would not know it",
                field=f"server.{zero[0]}",
                remedy="set a port from 1 to 65535",
            )
        lock = Path(self.settings.data_dir) / "up.lock"
        self._lock = hold(lock, process="ragbandit up", at=self.url, field="data_dir")
        with hold_store(self.settings, at=self.url) or contextlib.nullcontext():
            pass  # a `serve` that runs without `up` is named here, not in the log of a child
        check_port(self.settings.server)
        self._hand_on()
        if self.redis is not None:
            self.redis.start()
        for child in self.children:
            child.start()

    def wait_ready(self, *, timeout_s: float = 120.0) -> None:
        """Until the service answers. Raises NotReady with the place of the log."""
        give_up = time.monotonic() + timeout_s
        with Client(self.admin_url, timeout_s=5) as client:
            while not client.ready():
                api = self.children[0]
                if api.restarts >= 3 or time.monotonic() > give_up:
                    reason = api.death or f"its last log lines: {api.last_lines()}"
                    raise NotReady(f"the service did not start: {reason}", remedy=f"see {api.log_file}")
                self._tend()
                self._stop.wait(0.2)

    def run(self) -> None:
        """Tend the children until `stop` or a signal."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stop.set())
        while not self._stop.wait(0.2):
            self._tend()

    def _hand_on(self) -> None:
        """Write what the children read. Nothing of the environment is in it: they have that themselves."""
        file = self._loaded.file
        origin = "no file" if file is None else ascii(str(file.absolute()))
        head = f"# `ragbandit up` took this over from {origin}: edit that.\n"
        # In ASCII: there are letters that PyYAML reads otherwise than it writes them.
        text = (head + yaml.safe_dump(dict(self._loaded.tree), sort_keys=False)).encode("ascii")
        try:
            write_file(self._accepted, text, durable=False)
        except OSError as error:
            raise ConfigError(
                f"{self._accepted} cannot be written: {error.strerror}",
                field="data_dir",
                remedy="give a folder that can be written",
            ) from error

    def stop(self) -> None:
        """End everything that was started."""
        self._stop.set()
        api, *workers = self.children
        end([api])
        end(workers)
        if self.redis is not None:
            self.redis.stop()
        if self._lock is not None:
            self._lock.close()

    def _tend(self) -> None:
        if self.redis is not None and not self._stop.is_set():
            self._tend_redis(self.redis)
        for child in self.children:
            child.tend()

    def _tend_redis(self, redis: RedisServer) -> None:
        """Start Redis again if its process has ended, or has not answered REDIS_MISSES times in a row."""
        facts = {"action": "died", "child": "redis"}
        if redis.pid is None:
            how = ending(redis.exit_code or 0, log=last_lines(redis.log_file))
            log.warning("redis %s; restarting; log: %s", how, redis.log_file, extra=facts)
        else:
            if time.monotonic() < self._redis_looked_at + REDIS_LOOK_S:
                return
            # Counted in looks, not in seconds: on a machine that stands still for a while nobody has looked.
            self._redis_misses = 0 if redis.answers() else self._redis_misses + 1
            self._redis_looked_at = time.monotonic()
            if self._redis_misses < REDIS_MISSES:
                return
            message = "redis does not answer at %s; restarting it (answers are delayed, nothing is lost); log: %s"
            log.error(message, redis.socket, redis.log_file, extra=facts)
            redis.stop()
        redis.start()
        self._redis_misses = 0
