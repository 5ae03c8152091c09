"""Child processes: started again when they die, at once the first time, then with growing pauses; and how a child ends
together with the one that started it.
"""

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

#: set by `ragbandit up` for its children; outside the prefix, since it is no setting
PARENT_VARIABLE = "_RAGBANDIT_PARENT"
#: exit status of a child that would end again for the same reason, as EX_CONFIG of sysexits.h
LASTING = 78
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


class Child:
    """One process and its record. log_folder: where its output goes, as NAME.log."""

    #: called in the new process before anything else
    prepare: Callable[[], None] | None = None

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

    def command(self) -> list[str]:
        """What is run."""
        return [sys.executable, "-m", "ragbandit", *self.arguments]

    def start(self) -> None:
        """Start the process."""
        ours = {PARENT_VARIABLE: str(os.getpid()), OFFSET_VARIABLE: repr(steady_clock().offset)}
        environment = os.environ | self._environment | ours
        with append_private(self.log_file) as output:
            self._logged = output.tell()
            self.process = subprocess.Popen(  # noqa: S603 - our own command
                self.command(),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # ctrl-C reaches us alone, and we end the children in order
                preexec_fn=self.prepare,
            )
        self._started = time.monotonic()

    def tend(self) -> None:
        """Start it again if it died and its pause is over. Raises NotReady if no other start would help."""
        if self.process is None or self.process.poll() is None:
            return
        now = time.monotonic()
        if self._due == 0.0:
            self._deaths = 1 if now - self._started > STEADY_S else self._deaths + 1
            pause = 0.0 if self._deaths == 1 else min(MAX_PAUSE_S, 0.25 * 2**self._deaths)
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
        elif self._deaths == DEATHS:
            message = "%s; %d times in a row, so it may not come up without help; log: %s"
            log.error(message, self.death, self._deaths, self.log_file, extra=facts)
        else:
            log.warning("%s; restarting; log: %s", self.death, self.log_file, extra=facts)

    def last_lines(self) -> str:
        """The last lines that it logged since it was started; empty if there are none."""
        try:
            with self.log_file.open("rb") as opened:
                size = opened.seek(0, os.SEEK_END)
                opened.seek(max(self._logged, size - TAIL_BYTES))
                lines = opened.read().decode("utf-8", "replace").strip().splitlines()
        except FileNotFoundError:
            lines = []
        return " | ".join(line[:SHOWN_CHARACTERS] for line in lines[-SHOWN_LINES:] if line.strip())

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
    for patience_s in (drain_s, cut_off_s):
        for child in children:
            child.send(signal.SIGTERM)
        give_up = time.monotonic() + patience_s
        for child in children:
            child.wait(max(0.0, give_up - time.monotonic()))
    for child in children:
        if child.lives():
            log.warning(
                "%s did not end in time and is killed", child.name, extra={"action": "kill", "child": child.name}
            )
            child.send(signal.SIGKILL)
            child.wait(5)


def ending(code: int, *, log: str) -> str:
    """The end of a process in words. code: as of subprocess; log: its last lines."""
    if code >= 0:
        return f"exited with status {code}; {f'last lines: {log}' if log else 'it has logged nothing'}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed ({name}{'; out of memory?' if -code == signal.SIGKILL else ''})"


def die_with_parent() -> None:
    """On Linux, have a child of `ragbandit up` end when the supervisor is gone, however it went."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or not sys.platform.startswith("linux"):
        return
    end_with_parent()
    if os.getppid() != int(parent):  # it died before we asked
        raise SystemExit(0)


def end_with_parent() -> None:
    """Have the kernel send SIGTERM when the parent dies."""
    if sys.platform.startswith("linux"):
        parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)


def keep_what_is_loaded() -> None:
    """Have the garbage collector leave alone what is there now: packages, models, the application.

    Nothing of it is ever garbage, and with a model loaded a full collection holds up every request for 80 ms.
    """
    gc.collect()
    gc.freeze()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessIdentity:
    """A process, told from every other one that ever had its id."""

    host: str
    pid: int
    #: when the process began, in the kernel's ticks: process ids are used again; "": the kernel does not say
    started: str
    #: hash of what shares these process ids: boot and pid namespace; "": unknown, as everywhere but on Linux
    pid_space: str

    @classmethod
    def from_key(cls, key: str) -> "ProcessIdentity | None":
        """The process of a key, or of a lease holder that begins with one; None where it names none."""
        parts = key.partition("/")[0].split(":")
        if len(parts) != 4 or not parts[1].isdecimal() or len(parts[1]) > 10:
            return None
        return cls(host=parts[0], pid=int(parts[1]), started=parts[2], pid_space=parts[3])

    @property
    def key(self) -> str:
        """HOST:PID:START:PID_SPACE, 102 characters at most."""
        return f"{self.host}:{self.pid}:{self.started}:{self.pid_space}"

    def is_alive(self) -> bool | None:
        """What this host's kernel says; None: it is a process of another host or container, or nothing is known."""
        if not self.pid_space or self.pid_space != this_process().pid_space:
            return None
        return _started(self.pid) == self.started


@cache
def this_process() -> ProcessIdentity:
    """The calling process. No process forks after it has asked."""
    pid = os.getpid()
    host = socket.gethostname().replace(":", "-").replace("/", "-")[:64]
    return ProcessIdentity(host=host, pid=pid, started=_started(pid), pid_space=_pid_space())


def lease_holder(work: str) -> str:
    """A new name for this process in a lease, 128 characters at most. work: what it does, a word."""
    return f"{this_process().key}/{work}-{uuid.uuid4().hex[:8]}"


def _started(pid: int) -> str:
    """Start of a process in ticks since boot; empty if it has ended, as a zombie has too."""
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
