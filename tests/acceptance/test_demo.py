"""The loop of the demo: with the real models, and for policies that need something prepared.

With the models DistilBERT decides, SmolLM2 answers, BM25 finds, the policy learns.
"""

import json
import os
import subprocess
import sys

import pytest
import yaml

from .conftest import ROOT


def run_demo(data, *options):
    """Twelve questions of the demo; what it printed, and its report."""
    command = [sys.executable, "-m", "examples.handbook.demo", "--passes", "1", "--limit", "12", "--data", str(data)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}

    done = subprocess.run([*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=260)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads((data / "report.json").read_text())
    assert report["ok"]
    assert (report["decided"], report["learned"], report["waiting"]) == (12, 9, 3)
    assert report["duplicates_recognised"] == report["duplicates_sent"] == 8
    assert report["late_feedback"] == 5
    assert report["replay_sha256"] == report["live_sha256"]
    assert report["failed"] == 0
    assert sum(row["n"] for row in report["arms"].values()) == 12
    return done.stdout, report


@pytest.mark.models
@pytest.mark.timeout(280)
def test_a_short_demo(tmp_path):
    """Twelve questions of the demo are answered by the real models, judged, learned and verified."""
    run_demo(tmp_path)


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("budget", ""),  # a param that it cannot do without
        ("popularity", ""),  # a table out of the index
        ("llm", "a scripted stand-in"),  # a server in the demo's own process
    ],
)
def test_a_short_demo_of_another_policy(tmp_path, policy, said):
    """A policy that the demo has to prepare for is run, learned and verified like any other; here without models."""
    config = tmp_path / "config.yaml"
    tree = {
        "reward": {"quality": "containment"},
        "encoder": {"model": "hashing"},
        "generator": {"name": "scripted", "script": {"": "So the answer is: eight."}},
        "retriever": {"index": "handbook"},
    }
    config.write_text(yaml.safe_dump(tree))

    printed, report = run_demo(tmp_path / "data", "--policy", policy, "--config", str(config))

    assert report["policy"] == policy
    assert said in printed
