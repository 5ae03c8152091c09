"""A pool of processes on this machine."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from ragbandit.shared.child_process import end_with_parent
from ragbandit.shared.errors import RagBanditError

#: variables that limit numpy to one thread per process, since every core has a process of its own
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # a container may use fewer cores than the machine has
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def process_executor(
    workers: int, *, begin: Callable[..., None] | None = None, given: tuple[Any, ...] = ()
) -> Iterator[Executor]:
    """An executor of `workers` processes. They end with the block; after an error or Ctrl-C they are terminated.

    begin: called first in each process, with the arguments `given`. Processes import the script that starts them, so
    call this under `if __name__ == "__main__":`. Raises RagBanditError if a process dies.
    """
    others = set(multiprocessing.active_children())
    added = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))  # restored after the block: processes start only when they are needed
    # Not forked, since a child could deadlock: the parent may have threads of torch and of the encoder.
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(begin, given)
    )
    try:
        yield pool
    except BaseException as error:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        if isinstance(error, BrokenExecutor):
            remedy = 'use 1 job; a script with more jobs needs if __name__ == "__main__" around its own work'
            raise RagBanditError("a process of the pool died", field="jobs", remedy=remedy) from error
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        for name in added:
            os.environ.pop(name, None)


def _begin(begin: Callable[..., None] | None, given: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after Ctrl-C the parent ends this process, without a traceback
    end_with_parent()
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # the parent died before end_with_parent took effect
        raise SystemExit(0)
    if begin is not None:
        begin(*given)
