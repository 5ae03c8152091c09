"""Estimates of the Open Bandit Pipeline on small synthetic logs: an oracle that shares no code with ours.

The package declares Python below 3.11, so it may be missing here. Its values are therefore recorded in
obp_values.json, which this command writes:

    python -m tests.support.logs.obp_values

It needs obp 0.5.7. The logs come from the standard library's generator, which promises the same numbers
in every version.
"""

import json
import random
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

RECORDED = Path(__file__).with_name("obp_values.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A recipe for a log: skew is the power of the pmfs' parts, the higher the farther from uniform."""

    seed: int
    rows: int
    arms: int
    skew: float
    binary: bool
    deterministic: bool = False

    @property
    def name(self) -> str:
        kind = "deterministic" if self.deterministic else "stochastic"
        return f"{self.rows}x{self.arms} skew {self.skew:g} seed {self.seed} {kind}"


CASES = (
    Case(seed=1, rows=500, arms=2, skew=1.0, binary=True),
    Case(seed=2, rows=400, arms=3, skew=3.0, binary=True),
    Case(seed=3, rows=400, arms=3, skew=2.0, binary=False, deterministic=True),
    Case(seed=4, rows=300, arms=6, skew=4.0, binary=False),
    Case(seed=5, rows=40, arms=4, skew=2.0, binary=True, deterministic=True),
)


def log_of(case):
    """The arguments of our estimators: reward, action, logged, candidate, predicted."""
    source = random.Random(case.seed)

    def uniform(*shape):
        return np.array([source.random() for _ in range(int(np.prod(shape)))]).reshape(shape)

    shape = case.rows, case.arms
    logged = uniform(*shape) ** case.skew + 0.01
    logged /= logged.sum(axis=1, keepdims=True)
    candidate = uniform(*shape) ** case.skew
    candidate /= candidate.sum(axis=1, keepdims=True)
    if case.deterministic:
        candidate = np.eye(case.arms)[candidate.argmax(axis=1)]
    action = np.minimum((logged.cumsum(axis=1) < uniform(case.rows)[:, None]).sum(axis=1), case.arms - 1)
    means = 0.2 + 0.6 * uniform(*shape)
    mean, draw = means[np.arange(case.rows), action], uniform(case.rows)
    reward = (draw < mean).astype(float) if case.binary else 3.0 * (mean + 0.3 * (draw - 0.5)) - 2.0
    predicted = means + 0.5 * (uniform(*shape) - 0.5)
    return {"reward": reward, "action": action, "logged": logged, "candidate": candidate, "predicted": predicted}


def obp_inputs(log):
    """The same log as OBP takes it: pscore (n,), arrays of arms (n, K, 1)."""
    return {
        "reward": log["reward"],
        "action": log["action"],
        "position": np.zeros(len(log["action"]), dtype=int),  # some of its classes fail without
        "pscore": log["logged"][np.arange(len(log["action"])), log["action"]],
        "action_dist": log["candidate"][:, :, None],
        "estimated_rewards_by_reg_model": log["predicted"][:, :, None],
    }


def value_of(log):
    """The doubly robust estimate by OBP."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from obp.ope import DoublyRobust

        return float(DoublyRobust().estimate_policy_value(**obp_inputs(log)))


if __name__ == "__main__":
    recorded = {each.name: value_of(log_of(each)) for each in CASES}
    RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
