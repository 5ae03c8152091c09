"""Summary of simulated passes: rewards while the policy learns, compared with each fixed arm."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ragbandit.router.comparison.assessment import LearningCurve
from ragbandit.router.offline.simulation import Played
from ragbandit.shared.formats import counted
from ragbandit.shared.types import ArmName, Matrix, Vector

#: number of questions in the shortest prefix of a pass whose ratio of rewards counts: in shorter prefixes, a single
#: answer changes the ratio too much
LEAST_PREFIX: Final = 100
#: maximum number of points of a learning curve
CURVE_POINTS: Final = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstPass:
    """Mean rewards per question of a policy while it learned, over all passes, compared with each fixed arm."""

    incumbent: ArmName
    best_fixed: ArmName
    reward: float
    always: Mapping[ArmName, float]  #: reward of each fixed arm
    oracle: float  #: reward if the best arm answers each question
    passes: int
    questions: int  #: number of questions in the shortest pass
    labels: float  #: mean number of decisions per pass whose outcome was learned
    #: number of questions after which the sum of rewards stays at least the incumbent's, in the median pass; None if
    #: fewer than half of the passes break even
    break_even: int | None
    break_even_share: float  #: share of the passes that break even
    #: smallest ratio of the policy's sum of rewards to the incumbent's sum, over all prefixes of a pass that have at
    #: least LEAST_PREFIX questions; None if a sum of the incumbent is not above 0
    worst_prefix: float | None
    #: share of passes with such a prefix in which the policy's sum is below (1 - harm) times the incumbent's sum
    harmed: float


def first_pass(
    passes: Sequence[Played], *, arms: Sequence[ArmName], rewards: Matrix, incumbent: str | None, harm: float
) -> FirstPass:
    """Summarise the passes of a policy, one per seed.

    rewards: shape (n, arms), of the learned table. incumbent: None for the arm with the highest mean reward.
    """
    known = [rewards[run.order] for run in passes]  # a pass each: (questions, arms)
    column = int(rewards.mean(axis=0).argmax()) if incumbent is None else list(arms).index(ArmName(incumbent))
    always = {arm: _mean([one[:, place] for one in known]) for place, arm in enumerate(arms)}
    sums = [(np.cumsum(run.earned), np.cumsum(one[:, column])) for run, one in zip(passes, known, strict=True)]
    even = sorted(one for one in (_passed_for_good(ours - theirs) for ours, theirs in sums) if one is not None)
    middle = (len(passes) + 1) // 2  # the lower median
    questions = min(len(run.order) for run in passes)
    first = min(LEAST_PREFIX, questions)
    tails = [(ours[first - 1 :], theirs[first - 1 :]) for ours, theirs in sums]
    ratios = [ours / theirs for ours, theirs in tails] if all((theirs > 0.0).all() for _, theirs in tails) else []
    return FirstPass(
        incumbent=arms[column],
        best_fixed=max(arms, key=lambda arm: always[arm]),
        reward=math.fsum(_mean([run.earned]) for run in passes) / len(passes),
        always=always,
        oracle=_mean([one.max(axis=1) for one in known]),
        passes=len(passes),
        questions=questions,
        labels=math.fsum(run.labels for run in passes) / len(passes),
        break_even=even[middle - 1] if len(even) >= middle else None,
        break_even_share=len(even) / len(passes),
        worst_prefix=min((float(one.min()) for one in ratios), default=None),
        harmed=sum(float((ours - (1.0 - harm) * theirs).min()) < -1e-9 for ours, theirs in tails) / len(passes),
    )


def learning_curve(
    name: str, passes: Sequence[Played], *, arms: Sequence[ArmName], rewards: Matrix, summary: FirstPass
) -> LearningCurve:
    """The mean rewards so far of the passes that `summary` summarises, at up to CURVE_POINTS numbers of questions."""
    at = np.unique(np.linspace(min(10, summary.questions), summary.questions, CURVE_POINTS).astype(np.intp))
    column = list(arms).index(summary.incumbent)
    sums = [
        np.mean([np.cumsum(values)[at - 1] for values in way], axis=0)
        for way in ([run.earned for run in passes], [rewards[run.order, column] for run in passes])
    ]
    policy, fixed = ((total / at).tolist() for total in sums)
    rated = np.round(at * (summary.labels / summary.questions)).astype(int).tolist()
    questions, even = at.tolist(), summary.break_even
    return LearningCurve(name=name, questions=questions, policy=policy, fixed=fixed, rated=rated, break_even=even)


def _mean(parts: Sequence[Vector]) -> float:
    return math.fsum(float(v) for part in parts for v in part) / max(1, sum(map(len, parts)))


def _passed_for_good(ahead: Vector) -> int | None:
    """Number of questions after which no sum is below 0; None if the last sum is below 0."""
    below = np.flatnonzero(ahead < -1e-9)  # not 0: equal rewards that are summed in another order differ by rounding
    first = int(below[-1]) + 2 if len(below) else 1
    return first if first <= len(ahead) else None


def while_learning(one: FirstPass) -> str:
    even = (
        "does not break even" if one.break_even is None else f"breaks even after {counted(one.break_even, 'question')}"
    )
    return (
        f"{one.passes} orders of {one.questions} questions: while it learns it earns {one.reward:.3f} a question and "
        f"{even}; always {one.incumbent} earns {one.always[one.incumbent]:.3f}, the best arm of each question "
        f"{one.oracle:.3f}"
    )
