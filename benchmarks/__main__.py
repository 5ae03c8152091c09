"""`make bench`: every figure of the README, each with its baseline, in one go (about two minutes)."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in the service's own processes
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks import feedback, lag, route, search

for benchmark in (route, feedback, lag, search):
    benchmark.main()
