"""Calls a user's function, which may hang, in threads that delay neither other arms nor the end of the process."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ragbandit.shared.errors import ArmFailed

#: maximum number of hanging calls of one function, that is of cancelled calls that have not returned
MOST_HUNG: Final = 64


class FunctionCalls:
    """Calls of a function, each in a daemon thread that is named after the arm. Usable on several event loops."""

    def __init__(self, function: Callable[..., Any], *, arm: str) -> None:
        self._function, self._arm = function, arm
        self._lock = threading.Lock()
        self._hung = 0

    async def call(self, argument: object) -> Any:
        """Call the function. Raises its errors, and ArmFailed if MOST_HUNG earlier calls hang."""
        if self._hung >= MOST_HUNG:
            message = f"{self._hung} calls of the function of the arm {self._arm} have not returned"
            raise ArmFailed(message, remedy="let the function wait with a timeout, and start the worker again")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        call = partial(contextvars.copy_context().run, self._function, argument)
        given_up, returned = False, False

        def run() -> None:
            nonlocal returned
            result: object = None
            error: BaseException | None = None
            try:
                result = call()
            except (StopIteration, KeyboardInterrupt, SystemExit) as raised:
                # A Future refuses StopIteration; the others would look like Ctrl-C and the end of this process.
                error = RuntimeError(f"the function raised {raised!r:.80}")
            except BaseException as raised:
                error = raised
            with self._lock:
                returned = True
                self._hung -= given_up
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle, done, result, error)

        threading.Thread(target=run, name=f"arm {self._arm}", daemon=True).start()
        try:
            return await done
        except asyncio.CancelledError:
            with self._lock:
                given_up = not returned and not given_up
                self._hung += given_up
            raise


def _settle(done: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
