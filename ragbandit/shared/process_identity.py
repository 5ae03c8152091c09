"""Process identity: how a lease names the process that holds it, and whether that process still lives.

Only the kernel of a process's own host knows: of processes elsewhere nothing is said, and their leases run out.
"""

import hashlib
import os
import socket
import sys
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path


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
