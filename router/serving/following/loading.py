"""Loading of candidates on threads of their own: one that hangs holds up neither a start nor the champion."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from ragbandit.router.serving.deciding.runner import as_fault
from ragbandit.shared.errors import NotReady

Loaded = TypeVar("Loaded")


class CandidateLoader(Generic[Loaded]):
    """Loads by name. One thread for each name at most, however long it takes; what it loads late is there later."""

    def __init__(self, *, wait_s: float) -> None:
        """wait_s: how long what is asked for the first time is waited for."""
        self.wait_s = wait_s
        self._pending: dict[str, Future[Loaded]] = {}

    def loaded(self, name: str, load: Callable[[], Loaded]) -> Loaded:
        """What `load` gives. Raises what it raises, and NotReady while it has not come back; then ask again."""
        pending, wait_s = self._pending.get(name), 0.0
        if pending is None:
            pending, wait_s = Future(), self.wait_s
            self._pending[name] = pending
            threading.Thread(target=_run, args=(load, pending), name=f"ragbandit-load-{name}", daemon=True).start()
        wait([pending], wait_s)
        if not pending.done():
            raise NotReady(f"it has not been loaded within {self.wait_s:g} s, and is waited for")
        del self._pending[name]
        return pending.result()


def _run(load: Callable[[], Loaded], pending: "Future[Loaded]") -> None:
    try:
        loaded = load()
    except BaseException as error:
        pending.set_exception(as_fault(error))
    else:
        pending.set_result(loaded)
