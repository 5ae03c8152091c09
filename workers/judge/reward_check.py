"""Runs `reward.check`, or the check of an arm, in a child process, so that a hang or crash does not harm the worker.

The child runs `python -m ragbandit.workers.judge.reward_check FD`. It reads messages from the pipe FD: first {"check",
"params", "path"}, which imports the function, then the arguments of each call. Each reply is {"value"} or {"error"}.
"""

import asyncio
import inspect
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ragbandit.router.config.learning import RewardSettings
from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.plugins import import_class
from ragbandit.shared.processes.child_process import ChildProcess
from ragbandit.shared.processes.this_process import end_with_parent
from ragbandit.shared.types import Source
from ragbandit.strategies.base import Passage


class CheckFailed(ArmFailed):
    """Raised if the check fails, or returns something that is not a score."""


class CheckProcess:
    """A child process that runs a check. A call that takes too long kills it. field: setting of the check."""

    def __init__(self, settings: RewardSettings, *, field: str = "reward.check") -> None:
        self.name = str(settings.check)
        self._settings, self._field = settings, field
        self._lock = threading.Lock()
        self._process: ChildProcess | None = None
        self._pipe: Connection | None = None

    def score(self, *, question: str, answer: str | None, sources: Sequence[Passage | Source]) -> float | None:
        """Call the check. Returns its score, from 0 to 1; None if it gave none. Raises CheckFailed."""
        texts = [{"id": source.id, "title": source.title, "text": source.text, "url": source.url} for source in sources]
        with self._lock:
            if self._pipe is None:
                self._start()
            arguments = {"answer": answer, "question": question, "sources": texts}
            value = self._call(arguments, seconds=self._settings.check_s)
        return None if value is None else float(value)

    def start(self) -> None:
        try:
            self._start()
        except CheckFailed as error:
            remedy = "name a function with the arguments answer, question and sources, and those in check_params"
            raise ConfigError(error.message, field=self._field, remedy=remedy) from error

    def _start(self) -> None:
        self._pipe, child_end = Pipe()
        with closing(child_end):
            file = child_end.fileno()
            command = [sys.executable, "-m", __name__, str(file)]
            self._process = ChildProcess("check", command=command, pass_fds=[file])
            self._process.start()
        settings = self._settings
        try:
            self._call({"check": settings.check, "params": settings.check_params, "path": sys.path}, seconds=60.0)
        except CheckFailed:
            self.end()  # the next call imports the function again: the user may have corrected it
            raise

    def _call(self, message: Mapping[str, Any], *, seconds: float) -> Any:
        assert self._pipe is not None
        try:
            self._pipe.send_bytes(json.dumps(message).encode())
            reply = json.loads(self._pipe.recv_bytes()) if self._pipe.poll(seconds) else None
        except (EOFError, OSError):
            reply = {"error": f"the check ended its process with status {self.end()}"}
        except TypeError as error:  # check_params may contain a date, which JSON cannot represent
            reply = {"error": f"check_params must be JSON: {error}"}
        if reply is None:
            self.end()
            raise CheckFailed(f"the check did not end within {seconds:g} s, and was killed")
        if "error" in reply:
            raise CheckFailed(str(reply["error"])[:300])  # the user's exception may contain the whole answer
        return reply["value"]

    async def close(self) -> None:
        """`end` as a coroutine, because all parts of an arm are closed by `await part.close()`."""
        self.end()

    def end(self) -> int | None:
        """Kill the process and its children. Returns the exit status; None if there is no process."""
        process, self._process = self._process, None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        return None if process is None else process.kill()


def check_reward_check(settings: RewardSettings) -> None:
    """Raise ConfigError if the check cannot be imported, or does not take the arguments of a check."""
    if settings.check is not None:
        process = CheckProcess(settings)
        try:
            process.start()
        finally:
            process.end()


def main() -> None:
    end_with_parent()
    with suppress(OSError):  # if memory runs out, the kernel should kill this process and not the worker
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    pipe = Connection(int(sys.argv[1]))
    check: Callable[..., Any] | None = None
    with suppress(EOFError):
        while True:
            message = json.loads(pipe.recv_bytes())
            try:
                if check is None:
                    sys.path[:] = message["path"]
                    check = import_class(message["check"], where="reward.check")
                    inspect.signature(check).bind(answer="", question="", sources=[], **message["params"])
                    check = partial(check, **message["params"])
                    reply: dict[str, Any] = {"value": None}
                else:
                    reply = {"value": _read_score(check(**message))}
            except ConfigError as error:
                reply = {"error": error.message}
            except Exception as error:  # the user's function may raise anything
                reply = {"error": f"{type(error).__name__}: {error}"}
            pipe.send_bytes(json.dumps(reply).encode())


def _read_score(value: Any) -> float | None:
    """The returned value as a score, or None. Raises ValueError or TypeError for anything else."""
    if inspect.isawaitable(value):
        value = asyncio.run(_await(value))
    if value is None:
        return None
    if isinstance(value, str | bytes) or not 0.0 <= float(value) <= 1.0:
        raise ValueError(f"the check returned {value!r}, expected a number from 0 to 1, a bool or None")
    return float(value)


async def _await(value: Awaitable[Any]) -> Any:
    return await value


if __name__ == "__main__":
    main()
