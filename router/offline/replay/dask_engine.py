"""Replay in parts by Dask: worker processes of this machine, or a cluster. Needs the extra `cluster`."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ragbandit.router.errors import ConfigError, RagBanditError, required_module

__all__ = ["DaskEngine"]

Job = TypeVar("Job")
Result = TypeVar("Result")


class DaskEngine:
    """Parts by the workers of a Dask client. A worker that is lost costs time only: its parts are judged again."""

    def __init__(self, client: Any) -> None:
        """client: a `distributed.Client`."""
        self.client = client

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
    def cluster(cls, address: str, *, patience_s: float = 30.0) -> Iterator["DaskEngine"]:
        """A running cluster, by the address of its scheduler. Raises ConfigError where nobody answers in time."""
        distributed = _distributed()
        try:
            client = distributed.Client(address, timeout=patience_s)
        except (OSError, TimeoutError, ValueError) as error:
            raise ConfigError(f"{address}: {error}", field="cluster", remedy="start `dask scheduler` there") from error
        with client:
            yield cls(client)

    def reduce(
        self,
        work: Callable[[Job], Result],
        jobs: Sequence[Job],
        *,
        merge: Callable[[Result, Result], Result],
        told: Callable[[int], None],
    ) -> Result:
        """As `Engine` says; what comes back is merged two by two, where it lies."""
        distributed = _distributed()
        made = [self.client.submit(_told, work, job, pure=False) for job in jobs]
        level = made
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=False)
            merged = [self.client.submit(_merged, merge, one, other, pure=False) for one, other in pairs]
            level = [*merged, *level[len(merged) * 2 :]]
        for done, _ in enumerate(distributed.as_completed(made), start=1):
            told(done)
        found = level[0].result()
        if isinstance(found, RagBanditError):
            raise found
        return found  # type: ignore[no-any-return]


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
