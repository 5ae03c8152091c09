"""`make bench`: speed, each figure with its baseline, in one go (a few minutes)."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in the service's own processes
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks import replay_speed

# First, while this process is small: Linux counts a parent's most memory as its children's.
replay_speed.main()

from benchmarks import encoder, learn, route  # noqa: E402

route.main()
learn.main()
encoder.main()
