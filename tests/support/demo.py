"""What the demo prepares before it runs a policy."""

import json
from pathlib import Path

from rich.console import Console

from ragbandit.examples.handbook.policies import prepared

HANDBOOK = Path(__file__).parents[2] / "examples" / "handbook"
QUESTIONS = [json.loads(line) for line in (HANDBOOK / "questions.jsonl").read_text("utf-8").splitlines()]


def run(name, data, **more):
    """`prepared` with the demo's settings, data in `data`."""
    environment = {"RAGBANDIT_CONFIG": str(HANDBOOK / "config.yaml"), "RAGBANDIT_DATA_DIR": str(data)}
    settings = {"environment": environment, "questions": QUESTIONS, "console": Console(quiet=True)}
    return prepared(name, **settings | {"ragbandit": None} | more)
