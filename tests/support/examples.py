"""Examples: a decision that verifies, a labelled table, and settings of hypothesis without chance."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import settings

from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.offline.logs.tables import LabelledTable
from ragbandit.router.policies.draw import draw_index, seed_of
from ragbandit.router.serving.checks.questions import new_id
from ragbandit.router.storage.paired_answers import PairedAnswer
from ragbandit.shared.types import ArmName, Cost, Decision, DecisionId, Query, TableRow


class CountingEncoder(HashingEncoder):
    """A hashing encoder of 8 features that knows which batches it has been given."""

    def __init__(self) -> None:
        super().__init__(8)
        self.given: list[list[str]] = []

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        self.given.append(list(texts))
        return super().encode(texts)


#: hypothesis without chance and without a stop watch: the same examples on every machine
steady = settings(derandomize=True, deadline=None, max_examples=30)


def made_decision(key: str | None = None, *, question: str = "Who wrote Dracula?", **changes: Any) -> Decision:
    """A decision that verifies: the arm is the one that the id's seed draws."""
    identity = DecisionId(key) if key else new_id()
    arms, pmf = ("no_retrieval", "single_step", "multi_step"), (0.5, 0.25, 0.25)
    seed = seed_of(identity)
    drawn = draw_index(pmf, seed=seed)
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


def made_paired_answer(decision: Decision, *, arm: str, **changes: Any) -> PairedAnswer:
    """An answer of this arm for a paired comparison."""
    values: dict[str, Any] = {"version": "v", "judge": "j", "rater": "judge m", "is_stored": False}
    values |= {"status": "answered", "answer": "Paris", "stop_reason": "answered", "error": None}
    values |= {"cost": Cost(dollars=0.01), "steps": 1.0, "quality": 1.0, "unjudged": None}
    values |= {"dollars": 0.012, "actor": "cli:ann@host", "made_at": 9.0}
    return PairedAnswer(decision_id=decision.id, arm=ArmName(arm), **values | changes)


def made_table(
    correct: Sequence[Sequence[float]],
    steps: Sequence[Sequence[float]],
    *,
    arms: Sequence[str] = ("none", "single_step", "multi_step"),
    texts: Sequence[str] = ("",),
) -> LabelledTable:
    """A table of these two matrices. texts: beginnings of the questions, one after the other."""
    rows = tuple(
        TableRow(
            id=f"q{i}",
            question=f"{texts[i % len(texts)]}{i}?",
            correct=dict(zip(arms, c, strict=True)),
            steps=dict(zip(arms, s, strict=True)),
        )
        for i, (c, s) in enumerate(zip(correct, steps, strict=True))
    )
    return LabelledTable(rows=rows, arms=arms)
