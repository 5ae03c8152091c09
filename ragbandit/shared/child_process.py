"""Child processes of `ragbandit up`: restarts with growing pauses, shutdown in steps, and identities of processes."""

import ctypes
import gc
import hashlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ragbandit.shared.errors import NotReady
from ragbandit.shared.files import append_private
from ragbandit.shared.steady_clock import OFFSET_VARIABLE, steady_clock

log = logging.getLogger("ragbandit.up")

#: environment variable with the process id of `ragbandit up`, for its children
PARENT_VARIABLE = "_RAGBANDIT_PARENT"
#: exit status of a child that must not be restarted, since it would fail again (EX_CONFIG of sysexits.h)
LASTING = 78
#: time for children to finish their work after the first SIGTERM, seconds
DRAIN_S = 15.0
#: a child that lived longer than this, seconds, is restarted without a pause
STEADY_S = 30.0


class Child:
    """A supervised process. Its output is appended to `log_folder`/NAME.log."""

    #: called in the new process before its program starts; None if nothing should be called
    prepare: Callable[[], None] | None = None

    def __init__(
        self, name: str, *, arguments: Sequence[str], log_folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._environment = dict(environment or {})
        self.arguments = list(arguments)
        self.log_file = log_folder / f"{name}.log"
        self.restarts = 0
        #: message about the last death of the process; None if it has not died
        self.death: str | None = None
        self._deaths = 0
        #: size of the log at the last start of the process
        self._logged_bytes = 0
        self._started = 0.0
        self._due = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """The command line of the process."""
        return [sys.executable, "-m", "ragbandit", *self.arguments]

    def start(self) -> None:
        """Start the process."""
        inherited = {PARENT_VARIABLE: str(os.getpid()), OFFSET_VARIABLE: repr(steady_clock().offset)}
        environment = os.environ | self._environment | inherited
        with append_private(self.log_file) as output:
            self._logged_bytes = output.tell()
            self.process = subprocess.Popen(  # noqa: S603 - our own command
                self.command(),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches only the parent, which then ends the children
                preexec_fn=self.prepare,
            )
        self._started = time.monotonic()

    def tend(self) -> None:
        """Restart the process if it is dead and the pause is over. Raises NotReady if a restart would not help."""
        if self.process is None or self.process.poll() is None:
            return
        now = time.monotonic()
        if self._due == 0.0:
            self._deaths = 1 if now - self._started > STEADY_S else self._deaths + 1
            pause = 0.0 if self._deaths == 1 else min(5.0, 0.25 * 2**self._deaths)
            self._due = now + pause
            self._log_death(self.process.returncode)
            if self.process.returncode == LASTING:
                raise NotReady(self.death or "", remedy=f"see {self.log_file}")
        if now >= self._due:
            self._due = 0.0
            self.restarts += 1
            self.start()

    def _log_death(self, code: int) -> None:
        self.death = f"{self.name} {ending(code, log=self.last_lines())}"
        facts = {"action": "died", "child": self.name, "code": code}
        if code == LASTING:
            log.error("%s; log: %s", self.death, self.log_file, extra=facts)
        elif self._deaths == 3:
            message = "%s; %d times in a row, so it may not come up without help; log: %s"
            log.error(message, self.death, self._deaths, self.log_file, extra=facts)
        else:
            log.warning("%s; restarting; log: %s", self.death, self.log_file, extra=facts)

    def last_lines(self) -> str:
        """The last three lines that the process has logged since its start, each cut to 500 characters."""
        try:
            with self.log_file.open("rb") as opened:
                size = opened.seek(0, os.SEEK_END)
                opened.seek(max(self._logged_bytes, size - 16_384))
                lines = opened.read().decode("utf-8", "replace").strip().splitlines()
        except FileNotFoundError:
            lines = []
        return " | ".join(line[:500] for line in lines[-3:] if line.strip())

    def lives(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process if it runs."""
        if self.process is not None:
            self.process.send_signal(number)

    def wait(self, timeout_s: float) -> None:
        """Wait until the process has ended, at most `timeout_s` seconds."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)


def end(children: Sequence[Child], *, drain_s: float = DRAIN_S, cut_off_s: float = 5.0) -> None:
    """Send SIGTERM to all children, again after `drain_s` to cancel their work, and SIGKILL `cut_off_s` later."""
    for timeout_s in (drain_s, cut_off_s):
        for child in children:
            child.send(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        for child in children:
            child.wait(max(0.0, deadline - time.monotonic()))
    for child in children:
        if child.lives():
            log.warning(
                "%s did not end in time and is killed", child.name, extra={"action": "kill", "child": child.name}
            )
            child.send(signal.SIGKILL)
            child.wait(5)


def ending(code: int, *, log: str) -> str:
    """Describe the end of a process. code: `returncode` of subprocess. log: the last log lines."""
    if code >= 0:
        return f"exited with status {code}; {f'last lines: {log}' if log else 'it has logged nothing'}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed ({name}{'; out of memory?' if -code == signal.SIGKILL else ''})"


def die_with_parent() -> None:
    """On Linux, make this child of `ragbandit up` end with its parent, even if the parent is killed."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or not sys.platform.startswith("linux"):
        return
    end_with_parent()
    if os.getppid() != int(parent):  # the parent died before the signal was registered
        raise SystemExit(0)


def cores() -> int:
    """Number of cores that this process may use: a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent() -> None:
    """On Linux, let the kernel send SIGTERM to this process when its parent dies."""
    if sys.platform.startswith("linux"):
        parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)


def keep_what_is_loaded() -> None:
    """Exclude all present objects from garbage collection: with a model loaded, a full collection takes 80 ms."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessIdentity:
    """Identity of a process. It stays unique when the process id is reused."""

    host: str
    pid: int
    #: start time in ticks since boot; "" if unknown
    started: str
    #: hash of the boot id and the pid namespace; "" if unknown, for example on macOS
    pid_space: str

    @classmethod
    def from_key(cls, key: str) -> "ProcessIdentity | None":
        """Parse a `key`, or a `lease_holder`, which begins with a key. Returns None if the key is invalid."""
        parts = key.partition("/")[0].split(":")
        if len(parts) != 4 or not parts[1].isdecimal() or len(parts[1]) > 10:
            return None
        return cls(host=parts[0], pid=int(parts[1]), started=parts[2], pid_space=parts[3])

    @property
    def key(self) -> str:
        """HOST:PID:START:PID_SPACE, at most 102 characters."""
        return f"{self.host}:{self.pid}:{self.started}:{self.pid_space}"

    def is_alive(self) -> bool | None:
        """Whether the process runs; None if it belongs to another host or container, or if this is unknown."""
        if not self.pid_space or self.pid_space != this_process().pid_space:
            return None
        return _started(self.pid) == self.started


@cache
def this_process() -> ProcessIdentity:
    """Identity of the calling process. A process must not fork after the first call, since the result is cached."""
    pid = os.getpid()
    host = socket.gethostname().replace(":", "-").replace("/", "-")[:64]
    return ProcessIdentity(host=host, pid=pid, started=_started(pid), pid_space=_pid_space())


def lease_holder(work: str) -> str:
    """A new name for this process as holder of a lease, at most 128 characters. work: one word for the kind of work."""
    return f"{this_process().key}/{work}-{uuid.uuid4().hex[:8]}"


def _started(pid: int) -> str:
    """Start time of a process in ticks since boot; "" if it has ended or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if len(fields) < 20 or fields[0] in (b"Z", b"X") else fields[19].decode("ascii")


def _pid_space() -> str:
    if not sys.platform.startswith("linux"):
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return hashlib.sha256((boot + os.readlink("/proc/self/ns/pid")).encode()).hexdigest()[:12]
    except OSError:
        return ""
