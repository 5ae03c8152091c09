"""The tutorial's caller: asks a running service for a pipeline, and reports the outcome (docs/tutorial.md).

The outcome of each pipeline for each question was recorded (examples/handbook/table.jsonl), so no model is needed.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ragbandit import Client
from ragbandit.shared.errors import RagBanditError

TABLE = Path(__file__).parent / "handbook" / "table.jsonl"
#: cost of a step in examples/tutorial.yaml, in right answers
STEP = 0.05
ARMS = ("no_retrieval", "single_step", "multi_step")


def main() -> None:
    """Ask the questions of the table in several passes; print the results of routing in each pass."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", default=os.environ.get("RAGBANDIT_URL", "http://localhost:8100"))
    parser.add_argument("--limit", type=int, default=300, help="number of questions")
    parser.add_argument("--passes", type=int, default=6, help="number of times that each question is asked")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()][: arguments.limit]
    with Client(arguments.url) as client:
        for number in range(1, arguments.passes + 1):
            gave = [(arm, row["correct"][arm], row["steps"][arm]) for row in rows if (arm := ask(client, row))]
            shares = ", ".join(f"{name} {sum(arm == name for arm, _, _ in gave)}" for name in ARMS)
            print(f"pass {number}        {summary([(right, steps) for _, right, steps in gave])}; {shares}")
    print("always one pipeline, on the same questions:")
    for arm in ARMS:
        print(f"  {arm:13} {summary([(row['correct'][arm], row['steps'][arm]) for row in rows])}")


def ask(client: Client, row: dict[str, Any]) -> str:
    """Route one question, look up the outcome of the chosen arm, and report it. Returns the arm."""
    decision = client.route(row["question"])
    arm = decision["arm"]
    client.outcome(decision["decision_id"], answer="recorded", steps=row["steps"][arm])
    client.feedback(decision["decision_id"], rating=row["correct"][arm])
    return arm


def summary(gave: Sequence[tuple[float, float]]) -> str:
    """Share of right answers and steps a question, and the reward at the price of the configuration."""
    right = sum(right for right, _ in gave) / len(gave)
    steps = sum(steps for _, steps in gave) / len(gave)
    return f"{right:.0%} right, {steps:.2f} steps, reward {right - STEP * steps:.3f}"


if __name__ == "__main__":
    try:
        main()
    except RagBanditError as error:
        raise SystemExit(f"{error.code}: {error}") from error
