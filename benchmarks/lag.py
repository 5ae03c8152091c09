"""From accepted feedback to the router that has learned it: real Redis, a real RQ learner process, real files.

Baseline: the same system without notifications, so that the learner and the router find their work by polling the
database. It is what happens while Redis is down.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import yaml

from benchmarks.figures import Figure, percentiles, print_figures
from benchmarks.service_process import environment
from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.jobs import RedisJobs, connect
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.queue.redis_server import RedisServer, redis_url
from ragbandit.router.serving.router import Router

COUNT, COUNT_POLLING = 200, 15


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        config.write_text(yaml.safe_dump({"data_dir": folder, "encoder": {"model": "hashing", "dimension": 256}}))
        settings = load(config, environ={}).settings
        redis = RedisServer(settings)
        redis.start()
        command = [sys.executable, "-m", "ragbandit", "worker", "--queue", "learn", "--config", str(config)]
        with Path(folder, "learn.log").open("wb") as output:
            learner = subprocess.Popen(command, stdout=output, stderr=output, env=environment())
        try:
            heard = _lags(settings, polling=False, count=COUNT)
            alone = _lags(settings, polling=True, count=COUNT_POLLING)
        finally:
            learner.terminate()
            learner.wait(20)
            redis.stop()
    ours, baseline = percentiles(heard), percentiles(alone)
    against = "no notifications: polls of 1 and 2 s instead"
    print_figures(
        f"feedback to live policy, one at a time ({COUNT} and {COUNT_POLLING} samples)",
        [
            Figure(name="p50", unit="ms", ours=ours[0], baseline=baseline[0], against=against),
            Figure(name="p99", unit="ms", ours=ours[1], baseline=baseline[1], against=against),
        ],
    )


def _lags(settings: Settings, *, polling: bool, count: int) -> list[float]:
    """Milliseconds from the receipt to the swap, for feedback sent one after the other."""
    jobs = MemoryJobs() if polling else RedisJobs(connect(redis_url(settings)))
    found = []
    chance = np.random.default_rng(5)
    with Router.open(settings, jobs=jobs) as router:
        for number in range(count + 5):
            decision = router.route(f"question {number} {polling}")
            router.outcome(decision.id, answer="Paris", steps=1)
            time.sleep(chance.uniform(0.0, 0.2 if polling else 0.02))
            swaps = router.following.snapshots.swaps
            began = time.perf_counter()
            router.feedback(decision.id, label=["Paris"])
            while router.following.snapshots.swaps == swaps:
                assert time.perf_counter() - began < 60, "the learner does not answer"
                time.sleep(0.0005)
            found.append((time.perf_counter() - began) * 1000)
    return found[5:]  # the first ones start the learner


if __name__ == "__main__":
    main()
