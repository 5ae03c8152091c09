"""Made worlds that a policy served while it learned, by the code that serves: what a service's ledger would hold."""

import numpy as np

from ragbandit.router.learning.examples import Example, made_update
from ragbandit.router.learning.lessons import policy_of
from ragbandit.router.offline.logs.records import Logged
from ragbandit.router.offline.replay import memory_log
from ragbandit.router.offline.replay.results import LoggedPolicy
from ragbandit.router.offline.replay.service import LoggedPolicies
from ragbandit.router.policies.base import apply
from ragbandit.router.policies.draw import made_decisions, outputs_of
from ragbandit.shared.types import PolicyLabel, Query, Reward

ARMS = ("no_retrieval", "single_step", "multi_step")
#: features of a question
WIDTH = 16


def served_log(settings, *, seed=0, questions=100, passes=4, late=3):
    """The log of a policy that learned while it served; each question comes once in every pass, in another order.

    Which arms answer a question right is drawn once, from its features, so that a repeated question is known. late:
    decisions that wait for their feedback at any time.
    """
    random = np.random.default_rng(seed)
    features = random.normal(size=(questions, WIDTH)).astype(np.float32)
    slopes = 1.5 * random.normal(size=(WIDTH, len(ARMS))) / np.sqrt(WIDTH)
    right = random.random((questions, len(ARMS))) < 1 / (1 + np.exp(-(np.array([-0.9, -0.3, 0.3]) + features @ slopes)))
    policy, rows, waiting = policy_of(settings), [], []
    for number in range(questions * passes):
        if number % questions == 0:
            order = random.permutation(questions)
        place = order[number % questions]
        query = Query(id=f"served-{seed}-{number:05}", text=f"question {place}")
        outputs = outputs_of(policy, [query], features=features[place][None], arms=[ARMS])
        [decision] = made_decisions(
            [query],
            run_by=["caller"],
            outputs=outputs,
            arms=[ARMS],
            features=[features[place]],
            settings=settings,
            seen=policy.seen,
            version=f"main-{len(rows)}-x",
            encoder_hash="e" * 64,
            now=1.7e9 + number,
        )
        waiting.append((decision, float(right[place, ARMS.index(decision.arm)])))
        while len(waiting) > late:
            rows.append(learned(policy, *waiting.pop(0), seq=len(rows) + 1))
    made = LoggedPolicy.of(policy.algorithm, params=policy.params)
    return memory_log(rows, logged=LoggedPolicies(labels={"main": frozenset({made})}))


def learned(policy, decision, quality, *, seq):
    """The row of the ledger, after the policy has learned it."""
    cost = float(ARMS.index(decision.arm))
    reward = Reward(
        value=quality - 0.1 * cost,
        quality=quality,
        cost=cost,
        weight=0.1,
        minimum=-1.0,
        maximum=1.0,
        terms={"steps": 1.0},
        preset="rating",
        source="explicit",
    )
    example = Example(reward=reward, feedback=())
    assert apply(policy, made_update(decision, example, label=PolicyLabel("main"), seq=seq, now=decision.made_at))
    return Logged(decision=decision, reward=reward, seq=seq)
