"""learn() of one label, as README's loop calls it after each answer, in processor time.

Baseline: to load the snapshot that the call has made, as another process of the service does.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial

from benchmarks.figures import Figure, percentiles, print_figures
from benchmarks.route import question
from ragbandit.router.config.loading import load
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router

#: labels of a run; the first half is not measured, since blocks of rows begin with few
LABELS = 200


def _processor_ms(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learn", description=__doc__)
    parser.add_argument("--encoder", default="hashing", help="encoder.model")
    encoder = parser.parse_args().encoder
    learned: list[float] = []
    loaded: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        settings = load(environ={"RAGBANDIT_DATA_DIR": folder, "RAGBANDIT_ENCODER__MODEL": encoder}).settings
        files = SnapshotFiles(settings.snapshot_root)
        with Router.open(settings, jobs=MemoryJobs()) as router:
            for number in range(LABELS):
                decision = router.route(question(number))
                router.outcome(decision.id, answer="x", steps=1)
                router.feedback(decision.id, rating=number % 3 > 0)
                learned.append(_processor_ms(router.learn))
                loaded.append(_processor_ms(partial(files.load, router.service.serving.version)))
    half = LABELS // 2
    (ours, _), (baseline, _) = percentiles(learned[half:]), percentiles(loaded[half:])
    against = "loading the snapshot"
    print_figures(
        f"learn() with {encoder}, {len(settings.arms)} arms",
        [Figure(name="one label, processor time p50", unit="ms", ours=ours, baseline=baseline, against=against)],
    )


if __name__ == "__main__":
    main()
