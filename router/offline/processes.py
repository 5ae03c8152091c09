"""Processes that share work: a pool on this machine, or the workers of a Dask cluster."""

import logging
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, TypeVar

from ragbandit.shared.child_process import PARENT_VARIABLE, die_with_parent
from ragbandit.shared.errors import ConfigError, NotReady, RagBanditError, required_module

Job = TypeVar("Job")
Result = TypeVar("Result")

#: parts that are under way, or done and not merged yet, at most
IN_FLIGHT: Final = 64
#: a cluster without any worker is waited for that long, and looked at so often, seconds
PATIENCE_S: Final = 30.0
LOOK_S: Final = 2.0


def cores() -> int:
    """Number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # a container may have fewer than the machine
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def each_part(
    work: Callable[[Job], Result], jobs: Sequence[Job], *, executor: Executor | None, told: Callable[[int], None]
) -> Iterator[Result]:
    """The results of all jobs, in their order. executor: None: this process. told: how many jobs are done.

    Raises what `work` raises; NotReady where the workers are lost, RagBanditError for a part that ends its workers.
    """
    if executor is None:
        for done, job in enumerate(jobs, start=1):
            yield work(job)
            told(done)
        return
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
    """So many processes of this machine, which end with the block; on any error, Ctrl-C included, at once.

    begin: what a process does first, with what is `given`. They import the script that starts them: call it under
    `if __name__ == "__main__":`. Raises RagBanditError where a process dies.
    """
    others = set(multiprocessing.active_children())
    # For the processes: numbers are crunched by one per core, not by many threads in each.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    os.environ[PARENT_VARIABLE] = str(os.getpid())
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


def _begin(begin: Callable[..., None] | None, given: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends them: none of them prints a traceback
    die_with_parent()
    if begin is not None:
        begin(*given)


@contextmanager
def cluster_executor(address: str, *, patience_s: float = PATIENCE_S) -> Iterator[Executor]:
    """The workers of a Dask cluster, by the address of its scheduler; a lost worker's parts go to the others.

    patience_s: how long the cluster may be without workers. Raises ConfigError where nobody answers in time, NotReady
    for a cluster without workers.
    """
    distributed = required_module("distributed", extra="cluster", field="cluster")
    logging.getLogger("distributed").setLevel(logging.ERROR)  # it tells of every worker that comes and goes
    try:
        client = distributed.Client(address, timeout=patience_s)
    except (OSError, TimeoutError, ValueError) as error:
        raise ConfigError(f"{address}: {error}", field="cluster", remedy="start `dask scheduler` there") from error
    with client:
        watch = _ClusterWatch(client, patience_s=patience_s)
        try:
            yield client.get_executor(pure=False)
        except NotReady as error:
            if watch.gave_up:
                message = f"the cluster has had no workers for {patience_s:g} s"
                remedy = "start `dask worker` with the scheduler's address"
                raise NotReady(message, field="cluster", remedy=remedy) from error
            raise
        finally:
            watch.end()


class _ClusterWatch:
    """Cancels all parts of a cluster that has had no workers for too long: their futures would wait for ever."""

    def __init__(self, client: Any, *, patience_s: float) -> None:
        self.gave_up = False
        self._client, self._patience_s = client, patience_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="cluster-watch", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        idle_s = 0.0
        look_s = min(LOOK_S, self._patience_s / 2)
        while not self._over.wait(look_s):
            idle_s = 0.0 if self._client.scheduler_info()["workers"] else idle_s + look_s
            if idle_s >= self._patience_s:
                self.gave_up = True
                future = required_module("distributed", extra="cluster").Future
                self._client.cancel([future(key, self._client) for key in list(self._client.futures)])
                return

    def end(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()
