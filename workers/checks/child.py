"""Child process of a check: imports the function once, and calls it for each answer that comes through a pipe.

    python -m ragbandit.workers.checks.child FD

The first message is {"check", "params", "path"}; then each is the function's arguments, and each reply {"value"} or
{"error"}.
"""

import asyncio
import inspect
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ragbandit.shared.child_process import end_with_parent
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.plugins import import_class


def main() -> None:
    """Until the pipe is closed."""
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
    """Raises ValueError for what is no score."""
    if inspect.isawaitable(value):
        value = asyncio.run(_awaited(value))
    if value is None:
        return None
    if isinstance(value, str | bytes) or not 0.0 <= (score := float(value)) <= 1.0:
        raise ValueError(f"it returned {value!r}, which is no number from 0 to 1, no bool and not None")
    return score


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


if __name__ == "__main__":
    main()
