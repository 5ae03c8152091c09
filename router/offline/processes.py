"""Work for an executor: threads, a pool of processes of this machine, or another executor such as Dask's."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, TypeVar

from ragbandit.shared.child_process import end_with_parent
from ragbandit.shared.errors import NotReady, RagBanditError

Job = TypeVar("Job")
Result = TypeVar("Result")

#: most parts that are running, or finished and not merged yet
IN_FLIGHT: Final = 64
#: a process per core crunches numbers, not many threads in each
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def cores() -> int:
    """Number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # a container may have fewer than the machine
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def each_part(
    work: Callable[[Job], Result], jobs: Sequence[Job], *, executor: Executor, told: Callable[[int], None]
) -> Iterator[Result]:
    """The results of all jobs, in their order. told: is called with the number of finished jobs.

    Raises what `work` raises; NotReady if the workers are lost, RagBanditError for a part that ends its workers.
    """
    waiting, coming = deque[Future[Result | Exception]](), iter(jobs)
    try:
        for done in range(1, len(jobs) + 1):
            more = islice(coming, IN_FLIGHT - len(waiting))
            waiting.extend(executor.submit(_caught, work, job) for job in more)
            yield _result(waiting.popleft())
            told(done)
    finally:
        for future in waiting:
            future.cancel()


def _caught(work: Callable[[Job], Result], job: Job) -> Result | Exception:
    # Our errors travel as results: no executor tries such a part again or logs a traceback.
    try:
        return work(job)
    except RagBanditError as error:
        return error


def _result(future: "Future[Any]") -> Any:
    try:
        result = future.result()
    except CancelledError as error:
        message = "the workers were lost, and with them the parts that they had judged"
        raise NotReady(message, field="cluster", remedy="see the scheduler's log, and try again") from error
    except Exception as error:
        # A pool that lost a process is broken; Dask gives a part to four workers before it says KilledWorker.
        if isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker":
            remedy = "see the workers' logs; give each more memory, or cut the log into smaller files"
            raise RagBanditError(f"a part ended every worker that took it: {error}", remedy=remedy) from error
        raise
    if isinstance(result, Exception):
        raise result
    return result


@contextmanager
def process_executor(
    workers: int, *, begin: Callable[..., None] | None = None, given: tuple[Any, ...] = ()
) -> Iterator[Executor]:
    """An executor of `workers` processes of this machine. They end with the block, on an error or Ctrl-C at once.

    begin: called first in each process, with the arguments `given`. Processes import the script that starts them, so
    call this under `if __name__ == "__main__":`. Raises RagBanditError if a process dies.
    """
    others = set(multiprocessing.active_children())
    added = [name for name in _THREADS if name not in os.environ]  # for processes, which start as parts come
    os.environ.update(dict.fromkeys(added, "1"))
    # Spawned, not forked: the parent may have threads of torch and of the encoder.
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(begin, given)
    )
    try:
        yield pool
    except BaseException as error:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        if isinstance(error, BrokenExecutor):
            raise RagBanditError(
                "a process of the pool died",
                field="jobs",
                remedy='use 1; a script that uses more needs if __name__ == "__main__" around its own work',
            ) from error
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        for name in added:
            os.environ.pop(name, None)


def _begin(begin: Callable[..., None] | None, given: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends them: none of them prints a traceback
    end_with_parent()
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it died before we asked
        raise SystemExit(0)
    if begin is not None:
        begin(*given)
