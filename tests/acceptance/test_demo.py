"""The loop with the real models: DistilBERT decides, SmolLM2 answers, BM25 finds, the policy learns."""

import json
import os
import subprocess
import sys

import pytest

from .conftest import ROOT


@pytest.mark.models
@pytest.mark.timeout(280)
def test_a_short_demo(tmp_path):
    """Twelve questions of the demo are answered by the real models, judged, learned and verified."""
    command = [
        sys.executable,
        "-m",
        "examples.handbook.demo",
        "--passes",
        "1",
        "--limit",
        "12",
        "--data",
        str(tmp_path),
    ]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=260)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ok"]
    assert (report["decided"], report["learned"], report["waiting"]) == (12, 9, 3)
    assert report["duplicates_recognised"] == report["duplicates_sent"] == 8
    assert report["late_feedback"] == 5
    assert report["replay_sha256"] == report["live_sha256"]
    assert report["failed"] == 0
    assert sum(row["n"] for row in report["arms"].values()) == 12
