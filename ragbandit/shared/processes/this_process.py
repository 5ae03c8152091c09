"""Facts about the calling process: an identity that other processes can check, cores, ties to the parent."""

import ctypes
import hashlib
import os
import signal
import socket
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

#: environment variable with the process id of the parent, for its children
PARENT_VARIABLE = "_RAGBANDIT_PARENT"
#: exit status of a child that its parent must not restart, since it would fail again (EX_CONFIG of sysexits.h)
LASTING_FAILURE = 78


def die_with_parent() -> None:
    """On Linux, make this child of `ragbandit up` end with its parent, even if the parent is killed."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or not sys.platform.startswith("linux"):
        return
    end_with_parent()
    if os.getppid() != int(parent):  # the parent died before the signal was registered
        raise SystemExit(0)


def end_with_parent() -> None:
    """On Linux, let the kernel send SIGTERM to this process when its parent dies."""
    if sys.platform.startswith("linux"):
        parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)


def cores() -> int:
    """Number of cores that this process may use: a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
        """Parse a `key`, or the holder of a lease, which begins with a key. Returns None if the key is invalid."""
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
