"""The tutorial's caller: asks a running service which pipeline to take, and reports what it gave (docs/tutorial.md).

What each pipeline makes of each question was recorded (examples/handbook/table.jsonl), so that no model is needed.
"""

import argparse
import json
from pathlib import Path

from ragbandit import Client

TABLE = Path(__file__).parent / "handbook" / "table.jsonl"
ARMS = ("no_retrieval", "single_step", "multi_step")


def main() -> None:
    """Ask the questions of the table; print what routing gave, a hundred questions at a time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", default="http://localhost:8100")
    parser.add_argument("--limit", type=int, default=500, help="questions to ask")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()][: arguments.limit]
    right = steps = 0.0
    taken = dict.fromkeys(ARMS, 0)
    with Client(arguments.url) as client:
        for number, row in enumerate(rows, start=1):
            decision = client.route(row["question"])
            arm = decision["arm"]
            quality, cost = row["correct"][arm], row["steps"][arm]
            client.outcome(decision["decision_id"], answer="recorded", steps=cost)
            client.feedback(decision["decision_id"], rating=quality)
            right, steps, taken[arm] = right + quality, steps + cost, taken[arm] + 1
            if number % 100 == 0 or number == len(rows):
                shares = ", ".join(f"{name} {count}" for name, count in taken.items())
                print(f"{number:4} questions: {right / number:.0%} right so far, {steps / number:.2f} steps; {shares}")
    print("always one pipeline, on the same questions:")
    for arm in ARMS:
        right = sum(row["correct"][arm] for row in rows) / len(rows)
        print(f"  {arm:13} {right:.0%} right, {sum(row['steps'][arm] for row in rows) / len(rows):.2f} steps")


if __name__ == "__main__":
    main()
