"""Process pool of a simulation: results depend on the runs alone, not on the number of processes."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

from ragbandit.router.offline.simulation.run import Played, SimulationData, SimulationRun, play
from ragbandit.router.offline.types import Progress
from ragbandit.shared.child_process import PARENT_VARIABLE, die_with_parent
from ragbandit.shared.errors import RagBanditError

#: numbers are crunched by one process per core, not by many threads in each
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

#: in a process of the pool: what it was started with
_world: SimulationData | None = None


def cores() -> int:
    """Number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # a container may have fewer than the machine
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def played(
    runs: Sequence[SimulationRun],
    *,
    world: SimulationData,
    jobs: int,
    here: frozenset[str],
    progress: Progress,
) -> list[Played]:
    """Every run's result, in the order of the runs.

    jobs: processes; 1 starts none. here: policies that are run in this process one after the other, since a model of
    theirs takes all cores by itself.
    """
    away = [] if jobs == 1 else [index for index, run in enumerate(runs) if run.policy not in here]
    results: dict[int, Played] = {}
    progress("runs", 0, len(runs))
    if away:
        with started(world, jobs=min(jobs, len(away))) as pool:
            with _interrupts_held():
                futures = {pool.submit(_play, runs[index]): index for index in away}
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                progress("runs", len(results), len(runs))
    for index, run in enumerate(runs):
        if index not in results:
            name = f"{run.policy}, seed {run.seed}, fold {run.fold}"
            results[index] = play(run, world=world, progress=partial(progress, name))
            progress("runs", len(results), len(runs))
    return [results[index] for index in range(len(runs))]


@contextlib.contextmanager
def started(world: object, *, jobs: int, begin: Callable[[Path], None] | None = None) -> Iterator[ProcessPoolExecutor]:
    """Processes that have the world; on any error, Ctrl-C included, they end at once.

    begin: what a process does first, given the file where the world is pickled; None: it is ready for `played`.
    """
    others = set(multiprocessing.active_children())
    # Spawned, not forked: the parent may have threads of torch and of the encoder.
    context = multiprocessing.get_context("spawn")
    with _environment(_ONE_THREAD | {PARENT_VARIABLE: str(os.getpid())}), tempfile.TemporaryDirectory() as folder:
        # By file: an argument of that size would have each process wait for the one before to read it.
        file = Path(folder) / "world"
        file.write_bytes(pickle.dumps(world))
        pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=begin or _begin, initargs=(file,))
        try:
            yield pool
        except BaseException as error:
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            if isinstance(error, BrokenProcessPool):
                raise RagBanditError(
                    "a process of the simulation died",
                    field="jobs",
                    remedy='use 1; a script that uses more needs if __name__ == "__main__" around its own work',
                ) from error
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits until the end of this block, and for ever in the processes that are started in it.

    It reaches them as well as us: we end them, so that not each of them says so with a traceback.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    # The mask is for the processes, which inherit it; any other thread of ours may take the signal all the same.
    handler = signal.signal(signal.SIGINT, lambda number, _frame: held.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if held:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """These variables for the processes started meanwhile."""
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _begin(file: Path) -> None:
    global _world
    die_with_parent()
    _world = pickle.loads(file.read_bytes())  # noqa: S301 - our parent wrote it a moment ago, where nobody else can


def _play(run: SimulationRun) -> Played:
    assert _world is not None
    return play(run, world=_world)
