"""Spreading work over the workers of an executor: a pool of processes here, or Dask's on many machines."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from typing import Any, Final, TypeVar

from ragbandit.router.offline.logs.batches import UnevenFeatures
from ragbandit.shared.errors import ConfigError, NotReady, RagBanditError, required_module

__all__ = ["cluster_executor", "each_part", "process_executor"]

Job = TypeVar("Job")
Result = TypeVar("Result")

#: parts that are under way, or done and not merged yet, at most
IN_FLIGHT: Final = 64
#: a cluster without any worker is waited for that long, and looked at so often, seconds
PATIENCE_S: Final = 30.0
LOOK_S: Final = 2.0


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
    except (RagBanditError, UnevenFeatures) as error:
        return error


def _result(future: "Future[Any]") -> Any:
    try:
        found = future.result()
    except CancelledError as error:
        message = "the workers were lost, and with them the parts that they had judged"
        raise NotReady(message, field="cluster", remedy="see the scheduler's log, and try again") from error
    except Exception as error:
        # A pool that lost a process is broken; Dask gives a part to four workers before it says KilledWorker.
        if isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker":
            remedy = "see the workers' logs; give each more memory, or cut the log into smaller files"
            raise RagBanditError(f"a part ended every worker that took it: {error}", remedy=remedy) from error
        raise
    if isinstance(found, Exception):
        raise found
    return found


@contextmanager
def process_executor(workers: int) -> Iterator[Executor]:
    """So many processes of this machine, which end with the block.

    They import the script that starts them: call it under `if __name__ == "__main__":`.
    """
    with ProcessPoolExecutor(max_workers=workers, mp_context=get_context("spawn")) as pool:
        yield pool


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
        watch = _Watch(client, patience_s=patience_s)
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


class _Watch:
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
