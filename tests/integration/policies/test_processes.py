"""Policies of numpy in other processes, with another hash seed and another number of threads."""

import json
import os
import subprocess
import sys

import pytest

CODE = """
import json
from dataclasses import replace
from ragbandit.router.policies.mba import MbaRag
from ragbandit.testing.policies import pmf_of, taught
from ragbandit.testing.policy_examples import made_reward, made_updates
rows = [row if row.seq < 400 else replace(row, reward=made_reward(0.0)) for row in made_updates(700, size=24)]
policy = taught(lambda: MbaRag(memory=50.0, alarm=100.0), rows)
assert policy.alarms
print(json.dumps([policy.alarms, [list(pmf_of(policy, seed=n).values()) for n in range(9)]]))
"""


def test_processes_learn_the_same():
    """Two processes, with another hash seed and number of BLAS threads, find the same alarms, and pmfs to 1e-9."""
    said = []
    for threads in ("1", "2"):
        more = {"PYTHONHASHSEED": threads, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        command = [sys.executable, "-c", CODE]
        run = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, check=True, timeout=60)
        said.append(json.loads(run.stdout))
    (alarms, scores), (others, other_scores) = said
    assert alarms == others
    for one, other in zip(scores, other_scores, strict=True):
        assert one == pytest.approx(other, abs=1e-9)
