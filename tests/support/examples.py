"""Examples: a decision that verifies, arms as callers may name them, and settings of hypothesis without chance."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import settings

from ragbandit.router.policies.draw import choose, seed_of
from ragbandit.router.serving.checks.questions import new_id
from ragbandit.shared.types import Decision, DecisionId, Query

#: hypothesis without chance and without a stop watch: the same examples on every machine
steady = settings(derandomize=True, deadline=None, max_examples=30)


def made_decision(key: str | None = None, *, question: str = "Who wrote Dracula?", **changes: Any) -> Decision:
    """A decision that verifies: the arm is the one that the id's seed draws."""
    identity = DecisionId(key) if key else new_id()
    arms, pmf = ("no_retrieval", "single_step", "multi_step"), (0.5, 0.25, 0.25)
    seed = seed_of(identity)
    drawn = choose(pmf, seed=seed)
    decision = Decision(
        id=identity,
        query=Query(id=identity, text=question),
        arm=arms[drawn],
        arms=arms,
        pmf=pmf,
        propensity=pmf[drawn],
        scores=None,
        policy="main",
        version="main-0-none",
        encoder_hash="e" * 64,
        seed=seed,
        floor=0.02,
        explored=drawn != 0,
        fault=None,
        facts={},
        run_by="caller",
        features=np.ones(8, dtype=np.float32),
        made_at=1_700_000_000.0,
    )
    return replace(decision, **changes)
