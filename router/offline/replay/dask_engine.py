"""Replay in parts by Dask: worker processes of this machine, or a cluster. Needs the extra `cluster`."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from ragbandit.router.errors import ConfigError, NotReady, RagBanditError, required_module

__all__ = ["DaskEngine"]

#: a cluster without any worker is waited for that long, seconds; looked at so often while a part takes its time
PATIENCE_S: Final = 30.0
LOOK_S: Final = 2.0

Job = TypeVar("Job")
Result = TypeVar("Result")


class DaskEngine:
    """Parts by the workers of a Dask client. A worker that is lost costs time only: its parts are judged again."""

    def __init__(self, client: Any, *, patience_s: float = PATIENCE_S) -> None:
        """client: a `distributed.Client`. patience_s: how long a cluster may be without workers."""
        self.client = client
        self.patience_s = patience_s

    @classmethod
    @contextmanager
    def local(cls, *, workers: int) -> Iterator["DaskEngine"]:
        """So many processes on this machine, one thread each, which end with the block.

        They import the script that starts them: call it under `if __name__ == "__main__":`.
        """
        distributed = _distributed()
        logging.getLogger("distributed").setLevel(logging.ERROR)  # it tells of every worker that comes and goes
        with (
            distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                memory_limit=0,
                silence_logs=40,
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield cls(client)

    @classmethod
    @contextmanager
    def cluster(cls, address: str, *, patience_s: float = PATIENCE_S) -> Iterator["DaskEngine"]:
        """A running cluster, by the address of its scheduler. Raises ConfigError where nobody answers in time."""
        distributed = _distributed()
        try:
            client = distributed.Client(address, timeout=patience_s)
        except (OSError, TimeoutError, ValueError) as error:
            raise ConfigError(f"{address}: {error}", field="cluster", remedy="start `dask scheduler` there") from error
        with client:
            yield cls(client, patience_s=patience_s)

    def reduce(
        self,
        work: Callable[[Job], Result],
        jobs: Sequence[Job],
        *,
        merge: Callable[[Result, Result], Result],
        told: Callable[[int], None],
    ) -> Result:
        """As `Engine` says; what comes back is merged two by two, where it lies.

        Raises NotReady for a cluster that is lost or has no workers, RagBanditError for a part that ends its workers.
        """
        made = [self.client.submit(_told, work, job, pure=False) for job in jobs]
        level = made
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=False)
            merged = [self.client.submit(_merged, merge, one, other, pure=False) for one, other in pairs]
            level = [*merged, *level[len(merged) * 2 :]]
        try:
            self._await(made, told=told)
            self._await(level, told=lambda _: None)
            found = level[0].result()
        except CancelledError as error:
            message = "the cluster was lost, and with it the parts that it had judged"
            raise NotReady(message, field="cluster", remedy="see the scheduler's log, and try again") from error
        except _distributed().KilledWorker as error:
            remedy = "see the workers' logs; give each more memory, or cut the log into smaller files"
            raise RagBanditError(f"a part ended every worker that took it: {error}", remedy=remedy) from error
        if isinstance(found, RagBanditError):
            raise found
        return found  # type: ignore[no-any-return]

    def _await(self, futures: Sequence[Any], *, told: Callable[[int], None]) -> None:
        """Wait until all are done, and as long as there are workers. told: how many are done."""
        waiting, worked = set(futures), time.monotonic()
        while waiting:
            try:
                done = _distributed().wait(waiting, timeout=LOOK_S, return_when="FIRST_COMPLETED").done
            except TimeoutError:
                done = set[Any]()
            if done or self.client.scheduler_info()["workers"]:
                worked = time.monotonic()
            elif time.monotonic() > worked + self.patience_s:
                message = f"the cluster has had no workers for {self.patience_s:g} s"
                raise NotReady(message, field="cluster", remedy="start `dask worker` with the scheduler's address")
            for each in done:
                waiting.remove(each)
                told(len(futures) - len(waiting))


def _told(work: Callable[[Job], Result], job: Job) -> Result | RagBanditError:
    # Our errors travel as results: the engine neither tries such a part again nor logs a traceback.
    try:
        return work(job)
    except RagBanditError as error:
        return error


def _merged(
    merge: Callable[[Result, Result], Result], one: Result | RagBanditError, other: Result | RagBanditError
) -> Result | RagBanditError:
    if isinstance(one, RagBanditError):
        return one
    return other if isinstance(other, RagBanditError) else merge(one, other)


def _distributed() -> Any:
    return required_module("distributed", extra="cluster", field="cluster")
