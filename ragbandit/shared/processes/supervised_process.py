"""A child process that is started again when it dies, with growing pauses."""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ragbandit.shared.errors import NotReady
from ragbandit.shared.processes.child_process import ChildProcess, describe_exit
from ragbandit.shared.processes.this_process import LASTING_FAILURE

log = logging.getLogger("ragbandit.up")

#: a child that lived longer than this, seconds, is restarted without a pause, as after its first death
STEADY_S = 30.0


class SupervisedProcess(ChildProcess):
    """A child process that regular calls of `restart_if_dead` keep running. It logs to `log_folder`/NAME.log."""

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str],
        log_folder: Path,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.log_file: Path = log_folder / f"{name}.log"
        super().__init__(name, command=command, log_file=self.log_file, environment=environment)
        self.restarts = 0
        #: message about the last death of the process; None if it has not died
        self.death: str | None = None
        self._deaths = 0
        self._started = 0.0
        #: time.monotonic() of the next start; 0.0 while the process runs
        self._due = 0.0

    def start(self) -> None:
        """Start the program."""
        super().start()
        self._started = time.monotonic()

    def restart_if_dead(self) -> None:
        """Restart the process if it is dead and the pause is over. Raises NotReady if a restart would not help."""
        if self.process is None or self.process.poll() is None:
            return
        now = time.monotonic()
        if self._due == 0.0:
            self._deaths = 1 if now - self._started > STEADY_S else self._deaths + 1
            pause = 0.0 if self._deaths == 1 else min(5.0, 0.25 * 2**self._deaths)
            self._due = now + pause
            self._log_death(self.process.returncode)
            if self.process.returncode == LASTING_FAILURE:
                raise NotReady(self.death or "", remedy=f"see {self.log_file}")
        if now >= self._due:
            self._due = 0.0
            self.restarts += 1
            self.start()

    def _log_death(self, code: int) -> None:
        self.death = f"{self.name} {describe_exit(code, log=self.last_lines())}"
        facts = {"action": "died", "child": self.name, "code": code}
        if code == LASTING_FAILURE:
            log.error("%s; log: %s", self.death, self.log_file, extra=facts)
        elif self._deaths == 3:
            message = "%s; %d times in a row, so it may not come up without help; log: %s"
            log.error(message, self.death, self._deaths, self.log_file, extra=facts)
        else:
            log.warning("%s; restarting; log: %s", self.death, self.log_file, extra=facts)
