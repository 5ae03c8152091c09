"""Aims on a routing table: is a mean of steps held, and does a share of the best arm's quality give what it says?

    python -m benchmarks.aims --table ../shared/data/routing/flan_t5_xl_dev.jsonl

The questions come one by one in a random order, several times over; `mba` draws an arm at the weight that the aim has
on its frontier (`router/learning/monitoring/frontier.py`), and learns the arm's exact match and steps. The frontier is
computed anew every 100 questions, from the newest 100, and its cost is scaled by the newest 500 outcomes, as the
learner does. Until the first one, the weight is 0.05. Features: counted style and hashed words (`encoder.model:
hashing`).
"""

import argparse
import itertools
from collections import deque
from pathlib import Path

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import policy_of
from ragbandit.router.learning.monitoring.frontier import OUTCOMES, QUESTIONS, cost_scale, frontier_of
from ragbandit.router.offline.logs.tables import LabelledTable, read_table
from ragbandit.router.policies.base import Policy
from ragbandit.router.policies.draw import made_decisions, outputs_of
from ragbandit.router.serving.deciding.question import served_weight
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.types import ArmName, Cost, Decision, DecisionId, Outcome, PolicyLabel, Query, Reward, Update

TABLE = Path(__file__).parents[2] / "shared" / "data" / "routing" / "flan_t5_xl_dev.jsonl"
AIMS = ({"steps": 1.3}, {"steps": 1.8}, {"steps": 2.2}, {"quality": 0.8}, {"quality": 0.9}, {"quality": 1.0})
#: questions of a stream that are not counted: the policy has no frontier, or hardly one
COLD = 500


def stream(
    table: LabelledTable, features: np.ndarray, *, aim: dict[str, float], questions: int, seed: int
) -> np.ndarray:
    """Correct and steps of the arm that each question got, (questions, 2)."""
    settings, rng = Settings(), np.random.default_rng(seed)
    policy, frontier = policy_of(settings), None
    orders = (rng.permutation(len(table.rows)) for _ in itertools.count())
    made: list[tuple[float, float]] = []
    newest: deque[Decision] = deque(maxlen=QUESTIONS)
    outcomes: deque[tuple[Decision, Outcome]] = deque(maxlen=OUTCOMES)
    for number, place in enumerate(itertools.islice(itertools.chain.from_iterable(orders), questions)):
        query = Query(id=DecisionId(f"{seed}-{number}"), text="", aim=aim)
        weight = served_weight(query, settings=settings, policy=policy, frontier=frontier)
        (decision,) = decided(policy, query, weight, features=features[place], arms=table.arms, settings=settings)
        arm = table.arms.index(decision.arm)
        correct, steps = float(table.correct[place, arm]), float(table.steps[place, arm])
        made.append((correct, steps))
        newest.append(decision)
        outcomes.append((decision, outcome(decision.id, steps=steps)))
        policy.learn(update(decision, number, correct=correct, steps=steps, weight=0.05 if weight is None else weight))
        if (number + 1) % 100 == 0:
            scale = cost_scale(list(outcomes), terms=settings.reward.cost)
            frontier = frontier_of(policy, list(newest), settings=settings, scale=scale) or frontier
    return np.array(made)


def decided(
    policy: Policy,
    query: Query,
    weight: float | None,
    *,
    features: np.ndarray,
    arms: tuple[ArmName, ...],
    settings: Settings,
) -> list[Decision]:
    """The decision of one question at this weight."""
    served = Query(id=query.id, text="", cost_weight=weight)
    outputs = outputs_of(policy, [served], features=features[None], arms=[arms])
    return made_decisions(
        [query], run_by=["caller"], outputs=outputs, arms=[arms], features=[features], settings=settings,
        seen=policy.seen, version="", encoder_hash="", now=0.0, cost_weights=[weight],
    )  # fmt: skip


def outcome(decision_id: DecisionId, *, steps: float) -> Outcome:
    """What the arm cost."""
    return Outcome(
        decision_id=decision_id, status="answered", answer=None, trace=(), cost=Cost(), steps=steps, stop_reason="",
        error=None, run_by="caller", made_by={}, made_at=0.0,
    )  # fmt: skip


def update(decision: Decision, number: int, *, correct: float, steps: float, weight: float) -> Update:
    """The row of the ledger."""
    reward = Reward(
        value=max(-1.0, correct - weight * steps), quality=correct, cost=steps, weight=weight, minimum=-1.0,
        maximum=1.0, terms={"steps": 1.0}, preset="exact_match", source="explicit",
    )  # fmt: skip
    return Update(
        policy=PolicyLabel("main"), seq=number + 1, decision_id=decision.id, arm=decision.arm, query=decision.served,
        arms=decision.arms, pmf=decision.pmf, scores=decision.scores, propensity=decision.propensity, reward=reward,
        feedback_ids=(), features=decision.features, made_at=0.0,
    )  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--questions", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    table = read_table(given.table)
    encoder = make_encoder(Settings.model_validate({"encoder": {"model": "hashing"}}).encoder)
    features = encoder.encode([row.question for row in table.rows])
    best = float(table.correct.mean(axis=0).max())
    print(
        f"{given.table.name}: the best fixed arm is right {100 * best:.1f} of 100; "
        f"questions {COLD} to {given.questions}\n"
    )
    print("| aim | mean steps | right of 100 | share of the best arm's |")
    print("|---|---|---|---|")
    for aim in AIMS:
        means = np.array(
            [
                stream(table, features, aim=aim, questions=given.questions, seed=s)[COLD:].mean(axis=0)
                for s in range(given.seeds)
            ]
        )
        (right, steps), low, high = means.mean(axis=0), means.min(axis=0), means.max(axis=0)
        ((name, value),) = aim.items()
        print(
            f"| {name} {value:g} | {steps:.3f} ({low[1]:.3f} to {high[1]:.3f}) | {100 * right:.1f} "
            f"({100 * low[0]:.1f} to {100 * high[0]:.1f}) | {right / best:.3f} |"
        )


if __name__ == "__main__":
    main()
