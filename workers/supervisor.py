"""Supervisor (`ragbandit up`): Redis, the HTTP service, answer workers and the learner, as children of one process.

A child that dies is started again, at once the first time, then with growing pauses. A Redis that no longer answers at
its socket is started again too: it may forget everything at any moment. Ctrl-C or SIGTERM ends all:
the service first, so that nothing new comes in, then the workers, all at once, then Redis. SIGHUP reads the arms of the
configuration again: the answer workers are started anew, each when it has finished what it is at, then the service
offers the arms.

The children read a copy of the configuration as it was accepted last, so that one which is started again comes back
whatever the file says by then.
"""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import yaml

from ragbandit.router.api.client import Client
from ragbandit.router.config.loading import CLASS_FOLDER, Loaded, class_folder, load, with_arms
from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import ConfigError, NotReady, RagBanditError
from ragbandit.router.jobs.processes import PARENT_VARIABLE
from ragbandit.router.jobs.redis_server import RedisServer
from ragbandit.router.policies.checks import check_policy
from ragbandit.router.serving.data_dir import prepare_data_dir
from ragbandit.router.serving.requirements import check_port
from ragbandit.router.storage.files import append_private, private_folder, write_file
from ragbandit.workers.wiring.arms import check_arms

__all__ = ["Child", "Supervisor", "end"]

log = logging.getLogger("ragbandit.up")

#: longest pause before a child is started again, seconds
MAX_PAUSE_S = 5.0
#: children that are to end finish what they are at for that long, seconds
DRAIN_S = 15.0
#: then it is cut off, and they get that long to say so
CUT_OFF_S = 5.0
#: a child that lived this long starts with a clean record
STEADY_S = 30.0
#: deaths in a row after which the log says that a child does not stay up
DEATHS = 3
#: bytes at the end of a child's log that are read, and lines and characters a line that are shown of them
TAIL_BYTES = 16_384
SHOWN_LINES = 3
SHOWN_CHARACTERS = 500
#: seconds between two looks whether Redis answers, and looks in a row without an answer before it is started again
REDIS_LOOK_S = 1.0
REDIS_MISSES = 6
#: the configuration that the children read, under data_dir
ACCEPTED = "accepted.yaml"


class Child:
    """One process and its record."""

    def __init__(
        self, name: str, *, arguments: Sequence[str], log_folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._environment = dict(environment or {})
        self.arguments = list(arguments)
        self.log_file = log_folder / f"{name}.log"
        self.restarts = 0
        #: how its process ended last; None: it never did
        self.death: str | None = None
        self._deaths = 0
        #: bytes that its log had when it was started last
        self._logged = 0
        self._started = 0.0
        self._due = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        #: told to end, to be started anew
        self.renewing = False

    def start(self) -> None:
        """Start the process."""
        environment = os.environ | self._environment | {PARENT_VARIABLE: str(os.getpid())}
        with append_private(self.log_file) as output:
            self._logged = output.tell()
            self.process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "ragbandit", *self.arguments],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # ctrl-C reaches us alone, and we end the children in order
            )
        self._started = time.monotonic()

    def tend(self) -> None:
        """Start it again if it died and its pause is over."""
        if self.process is None or self.process.poll() is None:
            return
        now = time.monotonic()
        if self.renewing:
            self.renewing, self._due = False, 0.0
            self.start()
            return
        if self._due == 0.0:
            self._deaths = 1 if now - self._started > STEADY_S else self._deaths + 1
            pause = 0.0 if self._deaths == 1 else min(MAX_PAUSE_S, 0.25 * 2**self._deaths)
            self._due = now + pause
            self._log_death(self.process.returncode)
        if now >= self._due:
            self._due = 0.0
            self.restarts += 1
            self.start()

    def _log_death(self, code: int) -> None:
        self.death = f"{self.name} {_ending(code, log=self.last_lines())}"
        facts = {"action": "died", "child": self.name, "code": code}
        if self._deaths == DEATHS:
            message = "%s; %d times in a row, so it may not come up without help; log: %s"
            log.error(message, self.death, self._deaths, self.log_file, extra=facts)
        else:
            log.warning("%s; restarting; log: %s", self.death, self.log_file, extra=facts)

    def last_lines(self) -> str:
        """The last lines that it logged since it was started."""
        return _last_lines(self.log_file, after=self._logged)

    def renew(self) -> None:
        """Have it end when it has finished what it is at; `tend` starts it anew."""
        if self.lives() and not self.renewing:  # a second SIGTERM would cut it off
            self.renewing = True
            self.send(signal.SIGTERM)

    def lives(self) -> bool:
        """True while its process runs."""
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send its process this signal, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, timeout_s: float) -> None:
        """Until its process has ended, for timeout_s at most."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)


def end(children: Sequence[Child], *, drain_s: float = DRAIN_S, cut_off_s: float = CUT_OFF_S) -> None:
    """SIGTERM to all at once; after drain_s a second one, which cuts off what they are at; SIGKILL after cut_off_s."""
    for child in children:
        if not child.renewing:  # it has had its first one
            child.send(signal.SIGTERM)
    _wait(children, timeout_s=drain_s)
    for child in children:
        child.send(signal.SIGTERM)
    _wait(children, timeout_s=cut_off_s)
    for child in children:
        if child.lives():
            log.warning(
                "%s did not end in time and is killed", child.name, extra={"action": "kill", "child": child.name}
            )
            child.send(signal.SIGKILL)
            child.wait(5)


def _wait(children: Sequence[Child], *, timeout_s: float) -> None:
    give_up = time.monotonic() + timeout_s
    for child in children:
        child.wait(max(0.0, give_up - time.monotonic()))


class Supervisor:
    """The whole service on one machine."""

    def __init__(self, loaded: Loaded) -> None:
        self.settings = settings = loaded.settings
        data = Path(settings.data_dir)
        folder = data / "logs"
        prepare_data_dir(settings)
        private_folder(folder)
        self.redis = RedisServer(settings) if settings.redis_url is None else None
        # The file that was read, so that one that has gone since is missed.
        self._file = loaded.file
        self._tree = loaded.tree
        self._accepted = data / ACCEPTED
        more = ["--config", str(self._accepted)]
        commands = [("api", ["serve", *more])]
        commands += [
            (f"answer-{number}", ["worker", "--queue", "answer", *more])
            for number in range(1, (settings.workers.answer if settings.worker_arms else 0) + 1)
        ]
        commands.append(("learn", ["worker", "--queue", "learn", *more]))
        # Their file is a copy that lies elsewhere; classes are found beside the original.
        environment = {} if self._file is None else {CLASS_FOLDER: class_folder(self._file)}
        self.children = [
            Child(name, arguments=arguments, log_folder=folder, environment=environment) for name, arguments in commands
        ]
        self._stop = threading.Event()
        self._reload = threading.Event()
        #: the service offers the arms when the workers know them
        self._tell_last = False
        self._redis_looked_at, self._redis_misses = 0.0, 0
        self._lock: IO[bytes] | None = None

    @property
    def url(self) -> str:
        """URL of the HTTP service."""
        return f"http://{self.settings.server.host}:{self.settings.server.port}"

    def start(self) -> None:
        """Start Redis and all children; returns at once, `wait_ready` waits."""
        signal.signal(signal.SIGHUP, lambda *_: self._reload.set())
        if self.settings.server.port == 0:
            raise ConfigError(
                "port 0 lets the system choose one, and clients would not know it",
                field="server.port",
                remedy="set a port from 1 to 65535",
            )
        self._lock = _locked(Path(self.settings.data_dir) / "up.lock")
        check_port(self.settings.server)
        self._hand_on(self._tree)
        if self.redis is not None:
            self.redis.start()
        for child in self.children:
            child.start()

    def wait_ready(self, *, timeout_s: float = 120.0) -> None:
        """Until the service answers. Raises NotReady with the place of the log."""
        give_up = time.monotonic() + timeout_s
        with Client(self.url, timeout_s=5) as client:
            while not client.ready():
                api = self.children[0]
                if api.restarts >= 3 or time.monotonic() > give_up:
                    reason = api.death or f"its last log lines: {api.last_lines()}"
                    raise NotReady(f"the service did not start: {reason}", remedy=f"see {api.log_file}")
                self._tend()
                self._stop.wait(0.2)

    def run(self) -> None:
        """Tend the children until `stop` or a signal."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stop.set())
        while not self._stop.wait(0.2):
            if self._reload.is_set():
                self._reload.clear()
                self.reload()
            self._tend()

    def reload(self) -> None:
        """Have the children read the arms of the configuration again; queued answers wait for a worker as ever.

        Arms that go leave the service before the workers, arms that come reach the workers before the service. A
        configuration that cannot be used is logged, and everything stays as it is. Settings other than the arms stay
        as they were at the start, which is logged too.
        """
        try:
            loaded = load(self._file)
            self._say_what_waits(loaded.settings)
            taken = with_arms(self.settings, loaded.settings.arms)
            check_arms(taken)
            check_policy(taken)
            if taken.worker_arms and not self._workers():
                raise ConfigError("no answer workers run here", field="arms", remedy="start `ragbandit up` again")
            self._file = loaded.file
            tree = {key: value for key, value in self._tree.items() if key != "arms"}
            self._hand_on(tree | {key: value for key, value in loaded.tree.items() if key == "arms"})
        except RagBanditError as error:
            message = "the new configuration cannot be used; the arms stay as they were"
            log.error(message, extra={"action": "offer", "reason": str(error)})
            return
        self._tell_last = bool(set(taken.worker_arms) - set(self.settings.worker_arms))
        self.settings = taken
        log.info(
            "the arms of the new configuration are in use", extra={"action": "offer", "arms": ", ".join(taken.arms)}
        )
        if not self._tell_last:
            self._tell_api()
        for child in self._workers():
            child.renew()

    def _say_what_waits(self, found: Settings) -> None:
        changed = [name for name, value in found if name != "arms" and value != getattr(self.settings, name)]
        if changed:
            facts = {"action": "offer", "changed": ", ".join(changed)}
            log.warning(
                "only arms change while `ragbandit up` runs; start it again for the other settings", extra=facts
            )

    def _hand_on(self, tree: Mapping[str, Any]) -> None:
        """Write what the children read. Nothing of the environment is in it: they have that themselves."""
        origin = "no file" if self._file is None else ascii(str(self._file.absolute()))
        head = f"# `ragbandit up` took this over from {origin}: edit that.\n"
        # In ASCII: there are letters that PyYAML reads otherwise than it writes them.
        text = (head + yaml.safe_dump(dict(tree), sort_keys=False)).encode("ascii")
        try:
            write_file(self._accepted, text, durable=False)
        except OSError as error:
            raise ConfigError(
                f"{self._accepted} cannot be written: {error.strerror}",
                field="data_dir",
                remedy="give a folder that can be written",
            ) from error
        self._tree = tree

    def _workers(self) -> list[Child]:
        return [child for child in self.children if child.name.startswith("answer-")]

    def _tell_api(self) -> None:
        self.children[0].send(signal.SIGHUP)

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
        if self._tell_last and not any(child.renewing for child in self._workers()):
            self._tell_last = False
            self._tell_api()

    def _tend_redis(self, redis: RedisServer) -> None:
        """Start Redis again if its process has ended, or has not answered REDIS_MISSES times in a row."""
        facts = {"action": "died", "child": "redis"}
        if redis.pid is None:
            ending = _ending(redis.exit_code or 0, log=_last_lines(redis.log_file))
            log.warning("redis %s; restarting; log: %s", ending, redis.log_file, extra=facts)
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


def _ending(code: int, *, log: str) -> str:
    """The end of a process in words. code: as of subprocess; log: its last lines."""
    if code >= 0:
        return f"exited with status {code}; {f'last lines: {log}' if log else 'it has logged nothing'}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed ({name}{'; out of memory?' if -code == signal.SIGKILL else ''})"


def _last_lines(file: Path, *, after: int = 0) -> str:
    """The last lines of a log, read from this byte on; empty if there are none."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(after, size - TAIL_BYTES))
            lines = opened.read().decode("utf-8", "replace").strip().splitlines()
    except FileNotFoundError:
        lines = []
    return " | ".join(line[:SHOWN_CHARACTERS] for line in lines[-SHOWN_LINES:] if line.strip())


def _locked(file: Path) -> IO[bytes]:
    """An open file that only one process holds; the kernel lets go of it however that process ends."""
    opened = append_private(file)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        opened.close()
        raise ConfigError(
            "another `ragbandit up` runs on this folder",
            field="data_dir",
            remedy="stop it, or give this one a data_dir of its own",
        ) from error
    return opened
