"""Check process: runs `reward.check` where it can hang, crash or take all memory without taking the worker along."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final

from ragbandit.router.config.settings import RewardSettings
from ragbandit.shared.errors import ConfigError

#: characters of a reason that are told: an exception may have the answer in it
_REASON: Final = 300
#: longest import of the function's module, seconds
_START_S: Final = 60.0


class CheckFailed(Exception):
    """The check said nothing that is a score."""


class CheckProcess:
    """The process of a check, begun when it is needed and killed, with what it has begun, when its time is over.

    For one thread at a time.
    """

    def __init__(self, settings: RewardSettings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def score(self, **given: Any) -> float | None:
        """What the check says of an answer, a question and its sources. Raises CheckFailed."""
        if self._pipe is None:
            self.start()
        value = self._asked(given, seconds=self._settings.check_s)
        return None if value is None else float(value)

    def start(self) -> None:
        """Import the function. Raises CheckFailed."""
        self._pipe, theirs = Pipe()
        with closing(theirs):
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", __name__.replace(".process", ".child"), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # it is killed as a group
            )
        settings = self._settings
        try:
            self._asked({"check": settings.check, "params": settings.check_params, "path": sys.path}, seconds=_START_S)
        except CheckFailed:
            self.close()  # the next answer imports it again: its file may be whole by then
            raise

    def _asked(self, given: Mapping[str, Any], *, seconds: float) -> Any:
        assert self._pipe is not None
        try:
            self._pipe.send_bytes(json.dumps(given).encode())
            reply = json.loads(self._pipe.recv_bytes()) if self._pipe.poll(seconds) else None
        except (EOFError, OSError):
            reply = {"error": f"its process ended with status {self.close()}"}
        if reply is None:
            self.close()
            raise CheckFailed(f"it did not end within {seconds:g} s, and was killed")
        if "error" in reply:
            raise CheckFailed(str(reply["error"])[:_REASON])
        return reply["value"]

    def close(self) -> int | None:
        """End the process and all that it has begun; its exit status."""
        process, self._process = self._process, None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if process is None:
            return None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def check_reward_check(settings: RewardSettings) -> None:
    """Refuse a check that cannot be imported, or does not take what it is given. Raises ConfigError."""
    if settings.check is None:
        return
    with closing(CheckProcess(settings)) as process:
        try:
            process.start()
        except CheckFailed as error:
            raise ConfigError(
                str(error),
                field="reward.check",
                remedy="name a function with the arguments answer, question and sources, and those in check_params",
            ) from error
