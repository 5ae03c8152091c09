"""Policies of numpy in other processes, with another hash seed and another number of threads."""

import os
import subprocess
import sys

from ragbandit.router.policies.linear.mba import MbaRag
from ragbandit.testing.policies import pmf_of, sha_of, taught
from ragbandit.testing.policy_examples import made_updates


def test_two_runs_of_mba_are_bit_identical():
    """Two processes, with another hash seed and another number of BLAS threads, learn and answer the very same."""
    code = (
        "from ragbandit.router.policies.linear.mba import MbaRag\n"
        "from ragbandit.testing.policy_examples import made_updates\n"
        "from ragbandit.testing.policies import pmf_of, sha_of, taught\n"
        "policy = taught(lambda: MbaRag(memory=50.0, alarm=2.0), made_updates(300, size=24))\n"
        "print(sha_of(policy), pmf_of(policy), policy.alarms)\n"
        "print(sha_of(taught(MbaRag, made_updates(200, size=200))))"
    )
    said = set()
    for threads in ("1", "2"):
        more = {"PYTHONHASHSEED": threads, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        run = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | more, capture_output=True, text=True, check=True, timeout=60
        )
        said.add(run.stdout)
    policy = taught(lambda: MbaRag(memory=50.0, alarm=2.0), made_updates(300, size=24))
    assert policy.alarms
    wide = sha_of(taught(MbaRag, made_updates(200, size=200)))
    said.add(f"{sha_of(policy)} {pmf_of(policy)} {policy.alarms}\n{wide}\n")
    assert len(said) == 1


def test_two_runs_of_lints_are_bit_identical():
    """Two processes, with another hash seed and another number of BLAS threads, learn and answer the very same."""
    code = (
        "from ragbandit.router.policies.base import pmf_of_one\n"
        "from ragbandit.router.policies.linear.thompson import LinTs\n"
        "from ragbandit.testing.policy_examples import ARMS, made_features, made_query, made_updates\n"
        "from ragbandit.testing.policies import sha_of, taught\n"
        "policy = taught(LinTs, made_updates(200, size=200))\n"
        "print(sha_of(policy), pmf_of_one(policy, made_query(1), features=made_features(1, size=200), arms=ARMS))"
    )
    said = set()
    for threads in ("1", "2"):
        more = {"PYTHONHASHSEED": threads, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        run = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | more, capture_output=True, text=True, check=True, timeout=60
        )
        said.add(run.stdout)
    assert len(said) == 1
