"""`make bench`: every figure of docs/benchmarks.md, each with its baseline, in one go (about eight minutes)."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in the service's own processes
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks import replay_speed

# First, while this process is small: Linux counts a parent's most memory as its children's.
replay_speed.main([])

from benchmarks import encoder, feedback, gateway, lag, policy_speed, route  # noqa: E402

for benchmark in (route, encoder, feedback, lag, policy_speed, gateway):
    benchmark.main()
