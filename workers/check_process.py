"""Check process: runs `reward.check` where it can hang, crash or take all memory without taking the worker along.

The child is this module: `python -m ragbandit.workers.check_process FD`. It imports the function once, and calls it for
each answer that comes through a pipe. The first message is {"check", "params", "path"}; then each is the function's
arguments, and each reply {"value"} or {"error"}.
"""

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from ragbandit.router.config.settings import RewardSettings
from ragbandit.shared.child_process import end_with_parent
from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.plugins import import_class
from ragbandit.shared.types import Source
from ragbandit.strategies.base import Passage

#: most characters of a reason: an exception may contain the answer
_REASON: Final = 300
#: longest import of the function's module, seconds
_START_S: Final = 60.0


class CheckFailed(ArmFailed):
    """The check said nothing that is a score."""


class CheckProcess:
    """The process of a check, begun when it is needed and killed, with what it has begun, when its time is over.

    Threads that ask at once wait for each other. field: the setting that names it.
    """

    def __init__(self, settings: RewardSettings, *, field: str = "reward.check") -> None:
        self.name = str(settings.check)
        self._settings, self._field = settings, field
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def score(self, *, question: str, answer: str | None, sources: Sequence[Passage | Source]) -> float | None:
        """Score of an answer, by its question and sources. Raises CheckFailed."""
        shown = [{name: getattr(each, name) for name in ("id", "title", "text", "url")} for each in sources]
        given = {"answer": answer, "question": question, "sources": shown}
        with self._lock:
            if self._pipe is None:
                self._start()
            value = self._asked(given, seconds=self._settings.check_s)
        return None if value is None else float(value)

    def start(self) -> None:
        """Import the function. Raises ConfigError."""
        try:
            self._start()
        except CheckFailed as error:
            remedy = "name a function with the arguments answer, question and sources, and those in check_params"
            raise ConfigError(error.message, field=self._field, remedy=remedy) from error

    def _start(self) -> None:
        self._pipe, theirs = Pipe()
        with closing(theirs):
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # it is killed as a group
            )
        settings = self._settings
        try:
            self._asked({"check": settings.check, "params": settings.check_params, "path": sys.path}, seconds=_START_S)
        except CheckFailed:
            self.end()  # the next answer imports it again: its file may be whole by then
            raise

    def _asked(self, given: Mapping[str, Any], *, seconds: float) -> Any:
        assert self._pipe is not None
        try:
            self._pipe.send_bytes(json.dumps(given).encode())
            reply = json.loads(self._pipe.recv_bytes()) if self._pipe.poll(seconds) else None
        except (EOFError, OSError):
            reply = {"error": f"its process ended with status {self.end()}"}
        except TypeError as error:  # for example a date in check_params
            reply = {"error": f"it is given JSON alone: {error}"}
        if reply is None:
            self.end()
            raise CheckFailed(f"it did not end within {seconds:g} s, and was killed")
        if "error" in reply:
            raise CheckFailed(str(reply["error"])[:_REASON])
        return reply["value"]

    async def close(self) -> None:
        """`end`, as all that arms run on is closed."""
        self.end()

    def end(self) -> int | None:
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
    if settings.check is not None:
        process = CheckProcess(settings)
        try:
            process.start()
        finally:
            process.end()


def main() -> None:
    """The child: until the pipe is closed."""
    end_with_parent()
    with suppress(OSError):  # where memory runs out it is this process that goes, not the worker
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    pipe = Connection(int(sys.argv[1]))
    check: Callable[..., Any] | None = None
    with suppress(EOFError):
        while True:
            given = json.loads(pipe.recv_bytes())
            try:
                if check is None:
                    sys.path[:] = given["path"]
                    check = import_class(given["check"], where="reward.check")
                    inspect.signature(check).bind(answer="", question="", sources=[], **given["params"])
                    check = partial(check, **given["params"])
                    reply: dict[str, Any] = {"value": None}
                else:
                    reply = {"value": _score(check(**given))}
            except ConfigError as error:
                reply = {"error": error.message}
            except Exception as error:  # whatever a function of others raises
                reply = {"error": f"{type(error).__name__}: {error}"}
            pipe.send_bytes(json.dumps(reply).encode())


def _score(value: Any) -> float | None:
    """Raises ValueError if the value is not a score."""
    if inspect.isawaitable(value):
        value = asyncio.run(_awaited(value))
    if value is None:
        return None
    if isinstance(value, str | bytes) or not 0.0 <= (score := float(value)) <= 1.0:
        raise ValueError(f"it returned {value!r}, expected a number from 0 to 1, a bool or None")
    return score


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


if __name__ == "__main__":
    main()
