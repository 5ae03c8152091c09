"""Examples for the contract of policies: questions, features, offers of arms, rewards and updates, drawn by a seed."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ragbandit.shared.types import ArmName, DecisionId, Features, FeedbackId, PolicyLabel, Query, Reward, Update

ARMS = (ArmName("no_retrieval"), ArmName("single_step"), ArmName("multi_step"))
LABEL = PolicyLabel("checked")
ENCODER = "e" * 64
DIMENSION = 24
_WORDS = ("who", "wrote", "dracula", "born", "city", "river", "before", "after", "both", "when", "film", "director")

#: names that callers may give to arms, and code may trip over
_ODD_NAMES = (
    "never_seen",
    "a/b",
    "mean/a",
    "données",
    "__metadata__",
    " ",
    "\x00",
    "\ud800",
    "😀",
    "A" * 64,
    "0",
    "..",
)


def made_offers(*, seed: int = 0) -> list[tuple[ArmName, ...]]:
    """One to six distinct arms each, some that were learned and some that were not, in any order."""
    rng = np.random.default_rng(seed)
    names = [*ARMS, *map(ArmName, _ODD_NAMES)]
    offers = [tuple(names[at] for at in rng.permutation(len(names))[: rng.integers(1, 7)]) for _ in range(25)]
    return [*offers, ARMS, ARMS[:1]]


def made_features(seed: int, *, size: int = DIMENSION) -> Features:
    """A question's embedding, float32, of shape (size,)."""
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


@lru_cache(4096)
def made_text(seed: int) -> str:
    """A question of five words."""
    return " ".join(np.random.default_rng(seed).choice(_WORDS, size=5)) + "?"


def made_query(seed: int) -> Query:
    """A question with a context."""
    return Query(text=made_text(seed), context={"hop": seed % 3, "user": f"u{seed % 5}"})


def made_updates(
    count: int, *, arms: Sequence[ArmName] = ARMS, seed: int = 0, size: int = DIMENSION, first: int = 1
) -> list[Update]:
    """Ledger rows with gapless seqs from `first`, arms drawn alike, rewards in [-.5, 1]; features are read-only."""
    return list(_updates(count, tuple(arms), seed=seed, size=size, first=first))


@lru_cache(64)
def _updates(count: int, arms: tuple[ArmName, ...], *, seed: int, size: int, first: int) -> tuple[Update, ...]:
    """The same rows for the same arguments: a check makes them again and again."""
    rng = np.random.default_rng([seed, first])
    rows = tuple(
        Update(
            policy=LABEL,
            seq=seq,
            decision_id=DecisionId(f"d-{seed}-{seq}"),
            arm=arms[int(rng.integers(len(arms)))],
            query=made_query(1000 * seed + seq),
            arms=arms,
            pmf=(1.0 / len(arms),) * len(arms),
            scores=None,
            propensity=float(rng.uniform(0.05, 1.0)),
            reward=made_reward(float(rng.uniform(0.0, 1.0)), cost=float(rng.uniform(0.0, 5.0))),
            feedback_ids=(FeedbackId(f"f-{seed}-{seq}"),),
            features=made_features(1000 * seed + seq, size=size),
            made_at=1.7e9 + seq,
        )
        for seq in range(first, first + count)
    )
    for row in rows:
        if row.features is not None:
            row.features.flags.writeable = False
    return rows


def made_reward(quality: float, *, cost: float = 0.0, weight: float = 0.1) -> Reward:
    """A judged answer's reward."""
    return Reward(
        value=quality - weight * cost,
        quality=quality,
        cost=cost,
        weight=weight,
        minimum=-1.0,
        maximum=1.0,
        terms={"steps": 1.0},
        preset="f1",
        source="explicit",
    )
