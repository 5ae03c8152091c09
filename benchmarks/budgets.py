"""Dollar budgets: what a made day costs where the price is paced, against one that runs free and one that is cut off.

    python -m benchmarks.budgets

A service of three arms, in dollars a question: cheap 0.0004, standard 0.002, premium 0.02; half of its questions are
lookups (right 90, 91, 93 times in 100), half need reasoning (35, 60, 90). `mba` has learned 600 questions at weight 10
(a right answer is worth 10 cents), and learns 30 of 100 answers as the day goes on. 6,000 questions come in a day, most
at 15:00, least at 3:00 UTC. Free, the policy spends what it will; the budget is a third of that. Outcomes come after
5 s, and the service reads what is spent every 2 s.
"""

import argparse
import json
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from ragbandit.router.api.limiting.budgets import FRESH_S, price_factor
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy
from ragbandit.router.policies.draw import with_floor
from ragbandit.shared.types import ArmName, DecisionId, PolicyLabel, Query, Reward, Update

ARMS = (ArmName("cheap"), ArmName("standard"), ArmName("premium"))
DOLLARS = (0.0004, 0.002, 0.02)
RIGHT = ((0.90, 0.91, 0.93), (0.35, 0.60, 0.90))
WEIGHT, LABELLED, FLOOR, LATENCY_S = 10.0, 0.3, 0.04 / 3, 5.0
QUESTIONS, TAUGHT, WIDTH, DAY_S = 6_000, 600, 16, 86_400.0


@dataclass(kw_only=True)
class Day:
    """A day as it was served: of each question its hour, factor, arm, dollars and whether it was right."""

    rows: list[tuple[float, float, int, float, bool]] = field(default_factory=list)
    refused: int = 0

    @property
    def dollars(self) -> float:
        return sum(row[3] for row in self.rows)

    def right(self) -> float:
        """Right answers of 100 questions that came; a refused one is not."""
        return 100.0 * sum(row[4] for row in self.rows) / (len(self.rows) + self.refused)


def served(seed: int, *, budget: float | None, stop: bool = False, paced: bool = True) -> Day:
    """A day under a budget (None: free). stop: refuse what is beyond; paced: raise the price."""
    rng, day = np.random.default_rng(seed), Day()
    policy = make_policy("mba", params={})
    for number in range(TAUGHT):
        features, kind = question(rng)
        arm = int(rng.integers(3))
        learn(policy, number, features=features, arm=arm, right=rng.random() < RIGHT[kind][arm], propensity=1 / 3)
    pending: deque[tuple[float, float]] = deque()
    spent, known, read_at = 0.0, 0.0, -1.0
    for number, at in enumerate(arrivals(rng), start=TAUGHT):
        features, kind = question(rng)
        draw, luck, labelled = rng.random(3)
        while pending and pending[0][0] <= at:
            spent += pending.popleft()[1]
        if at >= read_at + FRESH_S:
            known, read_at = spent, at
        if budget is not None and stop and known >= budget:
            day.refused += 1
            continue
        factor = 1.0 if budget is None or not paced else price_factor(spent=known / budget, elapsed=at / DAY_S)
        weight = None if factor == 1.0 else WEIGHT * factor
        query = Query(text="", cost_weight=weight)
        (output,) = policy.pmf([query], features=features[None, :], arms=[ARMS])
        pmf = with_floor(output.pmf, floor=FLOOR)
        arm = min(int(np.searchsorted(np.cumsum(pmf), draw)), 2)
        right = bool(luck < RIGHT[kind][arm])
        pending.append((at + LATENCY_S, DOLLARS[arm]))
        day.rows.append((at / 3600.0, factor, arm, DOLLARS[arm], right))
        if labelled < LABELLED:
            learn(policy, number, features=features, arm=arm, right=right, propensity=pmf[arm], weight=weight)
    return day


def question(rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Features of a question, and its kind, which they show with noise."""
    kind = int(rng.random() < 0.5)
    features = rng.normal(size=WIDTH).astype(np.float32)
    features[0] = (2.0 * kind - 1.0) * 2.0 + 0.7 * features[0]
    return features, kind


def arrivals(rng: np.random.Generator) -> np.ndarray:
    """Seconds of the day at which the questions come, in order."""
    grid = np.arange(0.0, DAY_S, 60.0)
    share = np.cumsum(1.0 - 0.8 * np.cos(2.0 * np.pi * (grid / DAY_S - 3.0 / 24.0)))
    return np.sort(np.interp(rng.random(QUESTIONS), share / share[-1], grid))


def learn(
    policy: Policy,
    number: int,
    *,
    features: np.ndarray,
    arm: int,
    right: bool,
    propensity: float,
    weight: float | None = None,
) -> None:
    """One row of the ledger, at the weight of cost that it was served at."""
    price = WEIGHT if weight is None else weight
    value = max(-1.0, float(right) - price * DOLLARS[arm])
    reward = Reward(
        value=value, quality=float(right), cost=DOLLARS[arm], weight=price, minimum=-1.0, maximum=1.0,
        preset="exact_match", source="explicit", terms={"dollars": 1.0},
    )  # fmt: skip
    row = Update(
        policy=PolicyLabel("main"), seq=number + 1, decision_id=DecisionId(f"d{number}"), made_at=float(number),
        query=Query(text="", cost_weight=weight), arm=ARMS[arm], arms=(ARMS[arm],), pmf=(propensity,), scores=None,
        propensity=propensity, features=features, reward=reward, feedback_ids=(),
    )  # fmt: skip
    policy.learn(row)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    table: dict[str, list[dict[str, float]]] = {"free": [], "paced": [], "cut off": []}
    hours: list[list[float]] = []
    for seed in range(given.seeds):
        free = served(seed, budget=None)
        budget = free.dollars / 3.0
        days = {
            "free": free,
            "paced": served(seed, budget=budget),
            "cut off": served(seed, budget=budget, stop=True, paced=False),
        }
        for name, day in days.items():
            late = [row for row in day.rows if row[0] >= 22.0]
            table[name].append(
                {
                    "spent": day.dollars / budget,
                    "right": day.right(),
                    "refused": 100.0 * day.refused / QUESTIONS,
                    "late factor": float(np.median([row[1] for row in late])) if late else float("nan"),
                    "late dear": 100.0 * float(np.mean([row[2] > 0 for row in late])) if late else 0.0,
                }
            )
        hours.append([float(np.median([r[1] for r in days["paced"].rows if int(r[0]) == h])) for h in range(24)])
    if given.json:
        print(json.dumps({"days": table, "median factor by hour": np.median(hours, axis=0).tolist()}, indent=2))
        return
    print(f"{given.seeds} days of {QUESTIONS:,} questions, the budget a third of what is spent free\n")
    print("| | dollars spent, of the budget | right of 100 | refused of 100 | factor after 22:00 | dearer arms then |")
    print("|---|---|---|---|---|---|")
    for name, rows in table.items():
        spent = [row["spent"] for row in rows]
        mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
        print(
            f"| {name} | {np.mean(spent):.3f} ({min(spent):.3f} to {max(spent):.3f}) | {mean['right']:.1f} | "
            f"{mean['refused']:.1f} | {mean['late factor']:.1f} | {mean['late dear']:.0f} % |"
        )
    factors = np.median(hours, axis=0)
    print("\nmedian factor by hour: " + " ".join(f"{hour}:{factors[hour]:.3g}" for hour in range(0, 24, 3)))


if __name__ == "__main__":
    main()
