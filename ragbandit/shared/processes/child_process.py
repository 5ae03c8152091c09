"""Child processes: starts programs, waits for them with a limit, and ends them.

Computations that are spread over processes use the executors of `concurrent.futures` instead.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType

from ragbandit.shared.files import append_private
from ragbandit.shared.processes.steady_clock import OFFSET_VARIABLE, steady_clock
from ragbandit.shared.processes.this_process import PARENT_VARIABLE

log = logging.getLogger("ragbandit.up")

#: time for children to finish their work after the first SIGTERM, seconds
DRAIN_S = 15.0
#: longest wait for a process after SIGKILL, seconds. A process in a system call that does not end survives the signal
KILL_S = 10.0


class ChildProcess:
    """A program that runs as a child of this process, in a session of its own and without standard input."""

    #: called in the new process before its program starts; None if nothing should be called
    prepare: Callable[[], None] | None = None

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str],
        log_file: Path | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
        pass_fds: Collection[int] = (),
    ) -> None:
        """log_file: file to which the program's output is appended; None to write to the output of this process.

        pass_fds: file descriptors of this process that the program inherits
        """
        self.name, self.command, self.log_file = name, command, log_file
        self._environment, self._pass_fds = environment, pass_fds
        #: size of the log at the last start of the process
        self._logged_bytes = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program."""
        inherited = {PARENT_VARIABLE: str(os.getpid()), OFFSET_VARIABLE: repr(steady_clock().offset)}
        with ExitStack() as files:
            output = None
            if self.log_file is not None:
                output = files.enter_context(append_private(self.log_file))
                self._logged_bytes = output.tell()
            self.process = subprocess.Popen(  # noqa: S603 - our own command
                self.command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=os.environ | self._environment | inherited,
                pass_fds=self._pass_fds,
                start_new_session=True,  # Ctrl-C reaches only the parent; `kill` reaches the children of the program
                preexec_fn=self.prepare,
            )

    def is_running(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process if it runs."""
        if self.process is not None:
            self.process.send_signal(number)

    def wait(self, timeout_s: float) -> int | None:
        """Wait at most `timeout_s` for the process to end. Returns its status; None if it runs on, or never began."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                return self.process.wait(timeout_s)
        return None

    def kill(self) -> int | None:
        """Kill the process with its own children. Returns its status; None if it runs on for KILL_S, or never began."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.wait(KILL_S)

    def last_lines(self) -> str:
        """The last three lines that the process has logged since its start, each cut to 500 characters."""
        lines = list[str]()
        if self.log_file is not None:
            with suppress(FileNotFoundError), self.log_file.open("rb") as opened:
                size = opened.seek(0, os.SEEK_END)
                opened.seek(max(self._logged_bytes, size - 16_384))
                lines = opened.read().decode("utf-8", "replace").strip().splitlines()
        return " | ".join(line[:500] for line in lines[-3:] if line.strip())


def end_children(children: Sequence[ChildProcess], *, drain_s: float = DRAIN_S, cut_off_s: float = 5.0) -> None:
    """Send SIGTERM to all children, again after `drain_s` to cancel their work, and SIGKILL `cut_off_s` later."""
    for timeout_s in (drain_s, cut_off_s):
        for child in children:
            child.send(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        for child in children:
            child.wait(max(0.0, deadline - time.monotonic()))
    for child in children:
        if child.is_running():
            extra = {"action": "kill", "child": child.name}
            log.warning("%s did not end in time and is killed", child.name, extra=extra)
            child.kill()


def describe_exit(code: int, *, log: str) -> str:
    """Describe the end of a process. code: `returncode` of subprocess. log: the last log lines."""
    if code >= 0:
        return f"exited with status {code}; {f'last lines: {log}' if log else 'it has logged nothing'}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed ({name}{'; out of memory?' if -code == signal.SIGKILL else ''})"
