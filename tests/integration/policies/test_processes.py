"""Policies of numpy in other processes, with another hash seed and another number of threads."""

import os
import subprocess
import sys

#: each prints what a process learned and answers
CODES = {
    "mba": """
from dataclasses import replace
from ragbandit.router.policies.linear.mba import MbaRag
from ragbandit.testing.policies import pmf_of, sha_of, taught
from ragbandit.testing.policy_examples import made_reward, made_updates
rows = [row if row.seq < 400 else replace(row, reward=made_reward(0.0)) for row in made_updates(700, size=24)]
policy = taught(lambda: MbaRag(memory=50.0, alarm=100.0), rows)
assert policy.alarms
print(sha_of(policy), pmf_of(policy), policy.alarms, sha_of(taught(MbaRag, made_updates(200, size=200))))
""",
}


def test_runs_are_bit_identical():
    """Two processes, with another hash seed and another number of BLAS threads, learn and answer the very same."""
    printed = set()
    for threads in ("1", "2"):
        more = {"PYTHONHASHSEED": threads, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        command = [sys.executable, "-c", "".join(CODES.values())]
        run = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, check=True, timeout=60)
        printed.add(run.stdout)
    assert len(printed) == 1
