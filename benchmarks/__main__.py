"""`make bench`: speed, each figure with its baseline, in one go (a few minutes)."""

import argparse
import os

from ragbandit.shared.processes.this_process import cores
from ragbandit.workers.cli import spin_count

argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__).parse_args()
os.environ.setdefault("GOMP_SPINCOUNT", spin_count(cores=cores()))  # as in the service's own processes
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks import replay_speed  # noqa: E402

# First, while this process is small: Linux counts a parent's most memory as its children's.
replay_speed.main()

from benchmarks import encoder, learn, route  # noqa: E402

route.main()
learn.main()
encoder.main()
