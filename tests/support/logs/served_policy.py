"""Logs of a policy that learned while it served, by the code that serves: each question comes in every pass."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import make_update
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.replay import (
    OpenLog,
    memory_log,
)
from ragbandit.router.policies import untrained_policy
from ragbandit.router.policies.base import Policy, apply_update
from ragbandit.router.policies.draw import Offer, make_decisions, outputs_of
from ragbandit.shared.types import IMPORTED, ArmName, Decision, DecisionId, Flags, PolicyLabel, Query, Reward

ARMS = (ArmName("no_retrieval"), ArmName("single_step"), ArmName("multi_step"))
#: features of a question; what one more step costs
WIDTH, PRICE = 16, 0.1
VERDICTS = ("same policy", "not known yet", "as good", "better", "worse")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How a service was used."""

    questions: int = 100
    #: how often each comes
    passes: int = 4
    #: labelled questions, of all arms, that the ledger began with
    warm: int = 0
    #: decisions that wait for their feedback at any time
    late: int = 3


@dataclass(frozen=True, kw_only=True)
class World:
    """A service's log, and what is true of its questions."""

    settings: Settings
    log: OpenLog
    #: which arms answer a question right, shape (questions, K), and the question of each decision
    right: Flags
    asked: Mapping[DecisionId, int]


def lived(settings: Settings, *, seed: int = 0, shape: Shape | None = None) -> World:
    """A world. Each question comes once in every pass, in another order."""
    shape, random = shape or Shape(), np.random.default_rng(seed)
    count = shape.questions + shape.warm
    features = random.normal(size=(count, WIDTH)).astype(np.float32)
    slopes = 1.5 * random.normal(size=(WIDTH, len(ARMS))) / np.sqrt(WIDTH)
    chances = 1.0 / (1.0 + np.exp(-(np.array([-0.9, -0.3, 0.3]) + features @ slopes)))
    right = random.random((count, len(ARMS))) < chances
    policy, rows, waiting, asked = (
        untrained_policy(settings.policy_definition),
        list[Logged](),
        list[Decision](),
        dict[DecisionId, int](),
    )
    for decision, place in _labelled(settings, seed=seed, shape=shape, features=features):
        asked[decision.id] = place
        rows.append(learned(policy, decision, right=right[place], seq=len(rows) + 1))
    rounds = [random.permutation(shape.questions) for _ in range(shape.passes)]
    for number, place in enumerate(np.concatenate(rounds).tolist()):
        [decision] = _decided(
            policy, place, number=number, settings=settings, features=features, seen=len(rows), seed=seed
        )
        asked[decision.id] = place
        waiting.append(decision)
        while len(waiting) > (shape.late if number + 1 < len(rounds) * shape.questions else 0):
            first = waiting.pop(0)
            rows.append(learned(policy, first, right=right[asked[first.id]], seq=len(rows) + 1))
    return World(settings=settings, log=memory_log(rows), right=right, asked=asked)


def _labelled(settings: Settings, *, seed: int, shape: Shape, features: Any) -> Iterator[tuple[Decision, int]]:
    """The rows of a warm start, a row for each question and arm, with the place of the question."""
    for place in range(shape.questions, shape.questions + shape.warm):
        for arm in ARMS:
            key = DecisionId(f"warm-{seed}-{place}-{arm}")
            [decision] = make_decisions(
                [Offer(query=Query(id=key, text=f"question {place}"), run_by="caller", arms=ARMS)],
                outputs=[ValueError("a table")],
                features=[features[place]],
                settings=settings.policy,
                learned={},
                version="",
                encoder_hash="e" * 64,
                now=1.6e9 + place,
            )
            share = 1.0 / len(ARMS)
            drawn: dict[str, Any] = {"arm": arm, "pmf": (share,) * len(ARMS), "propensity": share}
            drawn |= {"facts": {IMPORTED: "table"}}
            yield replace(decision, fault=None, floor=0.0, **drawn), place


def _decided(
    policy: Policy, place: int, *, number: int, settings: Settings, features: Any, seen: int, seed: int
) -> list[Decision]:
    """The decision on one question, by the code that serves; seen: updates that the policy has learned."""
    query = Query(id=DecisionId(f"served-{seed}-{number:05}"), text=f"question {place}")
    return make_decisions(
        [Offer(query=query, run_by="caller", arms=ARMS)],
        outputs=outputs_of(policy, [query], features=features[place][None], arms=[ARMS]),
        features=[features[place]],
        settings=settings.policy,
        learned=policy.seen,
        version=f"main-{seen}-x",
        encoder_hash="e" * 64,
        now=1.7e9 + number,
    )


def learned(policy: Policy, decision: Decision, *, right: Flags, seq: int) -> Logged:
    """The row of the ledger, after the policy has learned it; right: which arms answer its question, (K,)."""
    place = ARMS.index(decision.arm)
    quality, cost = float(right[place]), float(place)
    reward = Reward(
        value=quality - PRICE * cost,
        quality=quality,
        cost=cost,
        weight=PRICE,
        minimum=-1.0,
        maximum=1.0,
        terms={"steps": 1.0},
        preset="rating",
        source="explicit",
    )
    assert apply_update(policy, make_update(decision, reward, label=PolicyLabel("main"), seq=seq, now=decision.made_at))
    return Logged(decision=decision, reward=reward, seq=seq)
