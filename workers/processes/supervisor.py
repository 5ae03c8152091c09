"""Supervisor of `ragbandit up`: Redis, the HTTP service and workers as child processes of one machine."""

import contextlib
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO

from ragbandit.client import Client
from ragbandit.router.config.loading import CLASS_FOLDER, LoadedSettings, class_folder
from ragbandit.router.config.strict_yaml import yaml_text
from ragbandit.router.queue.redis_server import RedisServer
from ragbandit.router.serving.setup.requirements import check_port, lock_file, lock_store, prepare_data_dir
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import ConfigError, NotReady
from ragbandit.shared.files import private_folder, write_file
from ragbandit.shared.processes.child_process import end_children
from ragbandit.shared.processes.supervised_process import SupervisedProcess
from ragbandit.workers.setup.generators import needs_workers

#: name of the configuration file of the child processes, in data_dir
ACCEPTED = "accepted.yaml"


class Supervisor:
    """Runs the whole service on one machine: Redis, the HTTP service, and workers as child processes."""

    def __init__(self, loaded: LoadedSettings, *, database: Database | None = None) -> None:
        """database: the run ends if the file of this store is removed. None if no file should be watched."""
        self._database = database
        self.settings = settings = loaded.settings
        data = Path(settings.data_dir)
        folder = data / "logs"
        prepare_data_dir(settings)
        private_folder(folder)
        self.redis = RedisServer(settings.data_dir) if settings.redis_url is None else None
        self._loaded = loaded
        self._accepted = data / ACCEPTED
        commands = [("api", ["serve"])]
        count = settings.workers.answer if needs_workers(settings) else 0
        commands += [(f"answer-{number}", ["worker", "--queue", "answer"]) for number in range(1, count + 1)]
        if settings.judge.generator is not None:
            commands.append(("judge", ["worker", "--queue", "judge"]))
        commands.append(("learn", ["worker", "--queue", "learn"]))
        # The children read a copy of the configuration in another folder, but import classes from the user's folder.
        environment = {} if loaded.file is None else {CLASS_FOLDER: class_folder(loaded.file)}
        self.children = [
            SupervisedProcess(
                name,
                command=[sys.executable, "-m", "ragbandit", *arguments, "--config", str(self._accepted)],
                log_folder=folder,
                environment=environment,
            )
            for name, arguments in commands
        ]
        self._stop = threading.Event()
        self._lock: IO[bytes] | None = None

    def start(self) -> None:
        for name in ("port", "admin_port"):
            if getattr(self.settings.server, name) == 0:
                message = "port 0 lets the system choose one, and clients would not know it"
                raise ConfigError(message, field=f"server.{name}", remedy="set a port from 1 to 65535")
        lock = Path(self.settings.data_dir) / "up.lock"
        self._lock = lock_file(lock, process="ragbandit up", at=self.settings.server.url, field="data_dir")
        with lock_store(self.settings, at=self.settings.server.url) or contextlib.nullcontext():
            pass  # if a `serve` without `up` holds the store, `up` fails here and not in a child's log
        check_port(self.settings.server)
        self._write_config()
        if self.redis is not None:
            self.redis.start()
        for child in self.children:
            child.start()

    def wait_ready(self, *, timeout_s: float = 120.0) -> None:
        give_up = time.monotonic() + timeout_s
        with Client(self.settings.server.admin_url, timeout_s=5) as client:
            while not client.ready():
                api = self.children[0]
                if api.restarts >= 3 or time.monotonic() > give_up:
                    reason = api.death or f"its last log lines: {api.last_lines()}"
                    raise NotReady(f"the service did not start: {reason}", remedy=f"see {api.log_file}")
                self._tend()
                self._stop.wait(0.2)

    def run(self) -> None:
        """Keep the children and Redis running until `stop` or a signal."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stop.set())
        while not self._stop.wait(0.2):
            self._tend()

    def _write_config(self) -> None:
        """Write the configuration file of the children, without values from the environment, which they inherit."""
        file = self._loaded.file
        origin = "no file" if file is None else ascii(str(file.absolute()))
        head = f"# `ragbandit up` took this over from {origin}: edit that.\n"
        # In ASCII, because PyYAML cannot read some letters that it writes.
        text = (head + yaml_text(dict(self._loaded.tree))).encode("ascii")
        try:
            write_file(self._accepted, text, durable=False)
        except OSError as error:
            message = f"{self._accepted} cannot be written: {error.strerror}"
            raise ConfigError(message, field="data_dir", remedy="give a folder that can be written") from error

    def stop(self) -> None:
        self._stop.set()
        api, *workers = self.children
        end_children([api])
        end_children(workers)
        if self.redis is not None:
            self.redis.stop()
        if self._lock is not None:
            self._lock.close()

    def _tend(self) -> None:
        if self._database is not None:
            self._database.check_file(every_s=1.0)
        if self.redis is not None and not self._stop.is_set():
            self.redis.restart_if_dead()
        for child in self.children:
            child.restart_if_dead()
