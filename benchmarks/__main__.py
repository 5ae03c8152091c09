"""`make bench`: every figure of the README, each with its baseline, in one go (about eight minutes)."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in the service's own processes
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks import arms, drift, feedback, generator, lag, policies, policy_speed, replay_speed, route, search

for benchmark in (route, feedback, lag, search, arms, generator, policy_speed, policies, drift):
    benchmark.main()
replay_speed.main([])
