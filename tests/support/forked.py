"""The command in processes forked from one that has imported it: the imports cost 4 s of processor time at each start.

test_serve, test_command, test_judge and the demo start `serve`, `worker` and `up` whole, from their command lines.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["ragbandit.workers.cli", "ragbandit.workers.verbs.service", "ragbandit.router.api.app", __name__]
)

#: code for `Forked.first`: the process is on another host, which nobody here can look at, and whose clock is ahead
OTHER_HOST = """
import socket, time
from ragbandit.router.storage.sql import deadlines, store_clock
from ragbandit.shared.processes import steady_clock, this_process
right = time.time
time.time = lambda: right() + 90.0
for clock in (deadlines.DeadlineClock, steady_clock.SteadyClock, store_clock.StoreClock):
    clock.__init__.__kwdefaults__["wall"] = time.time
socket.gethostname = lambda: "other-host"
this_process._pid_space = lambda: "other-host"
"""


class Forked(ForkServerProcess):
    """`ragbandit ARGUMENTS` with this environment, used like subprocess.Popen; its output goes to the end of a file.

    first: Python code that the process runs before the command.
    """

    def __init__(
        self, arguments: Sequence[object], *, environment: Mapping[str, str], log: Path, first: str = ""
    ) -> None:
        super().__init__(target=_run, args=([*map(str, arguments)], dict(environment), log, first))
        self.start()

    def send_signal(self, number: int) -> None:
        if self.is_alive():
            os.kill(self.pid or 0, number)

    def wait(self, timeout_s: float) -> int:
        self.join(timeout_s)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired("ragbandit", timeout_s)
        return self.exitcode


def _run(arguments: list[str], environment: dict[str, str], log: Path, first: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    if "LD_PRELOAD" in environment:
        os.execv(sys.executable, [sys.executable, "-m", "ragbandit", *arguments])
    sys.argv = ["ragbandit", *arguments]
    from ragbandit.workers.cli import main

    exec(first, {})
    main()
