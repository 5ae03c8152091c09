"""The first pass: what a policy earns while it learns, against always one arm, question by question.

A pass is the training part of one run, in the order in which it was learned. Everything here is arithmetic on what was
earned there and on what the table says that each arm would have earned on the same questions.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ragbandit.router.offline.simulation.frontier import mean_and_error
from ragbandit.router.offline.simulation.run import Played
from ragbandit.router.offline.types import Matrix
from ragbandit.shared.types import ArmName, Vector

#: Shortest prefix that a worst prefix is looked for in, questions: of fewer, one wrong answer moves the ratio by much.
LEAST_PREFIX = 100
#: points of a curve at most
_POINTS = 40
#: the band of a curve, in quantiles over the passes
_BAND = (0.1, 0.9)


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEven:
    """From which question on the sum of rewards is never again below the incumbent's, in each pass."""

    #: the middle pass; None where fewer than half of them get there
    question: int | None
    #: of the curve that is the mean over the passes; None where it ends below
    of_mean: int | None
    #: passes that get there, in [0, 1]
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WorstPrefix:
    """The first questions of a pass that ended worst against the incumbent, over all passes and lengths from
    LEAST_PREFIX on.
    """

    #: sum of rewards over the incumbent's; None where the incumbent's is not above 0
    ratio: float | None
    #: length of that prefix; of the one of least difference where there is no ratio
    questions: int
    seed: int
    fold: int
    #: least sum of rewards minus the incumbent's
    difference: float
    #: passes with a prefix below (1 - harm) times the incumbent's, in [0, 1]
    harmed: float
    harm: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Sums after so many questions: mean over the passes, and the quantiles .1 and .9 over them."""

    questions: int
    #: rewards minus the incumbent's
    ahead: float
    ahead_low: float
    ahead_high: float
    #: rewards of the best arm of every question minus the policy's
    regret: float
    regret_low: float
    regret_high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstPass:
    """What a policy earned while it learned, over all its passes. Rewards are means per question."""

    incumbent: ArmName
    #: the arm that earns most if it is always taken
    best_fixed: ArmName
    reward: float
    #: over seeds; None with one
    reward_se: float | None
    #: what always one arm earns on the same questions
    always: Mapping[ArmName, float]
    #: what the best arm of every question earns
    oracle: float
    #: runs, and questions of the shortest one
    passes: int
    questions: int
    #: decisions whose outcome was learned, mean over the passes
    labels: float
    break_even: BreakEven
    worst_prefix: WorstPrefix
    curve: tuple[Stretch, ...]


def first_pass(
    seeds: Sequence[Sequence[Played]], *, arms: Sequence[ArmName], rewards: Matrix, incumbent: str | None, harm: float
) -> FirstPass:
    """The passes of one policy, a sequence of runs per seed.

    rewards: of every row and arm of the table that was learned, (n, arms). incumbent: the arm to compare with; None:
    the one of the highest mean reward, the first of equal ones.
    """
    runs = [run for folds in seeds for run in folds]
    known = [rewards[run.order] for run in runs]  # a pass each: (questions, arms)
    column = int(rewards.mean(axis=0).argmax()) if incumbent is None else list(arms).index(ArmName(incumbent))
    always = {arm: _mean([one[:, place] for one in known]) for place, arm in enumerate(arms)}
    cut = min(len(run.order) for run in runs)
    ahead = np.array([np.cumsum(run.earned - one[:, column])[:cut] for run, one in zip(runs, known, strict=True)])
    regret = np.array([np.cumsum(one.max(axis=1) - run.earned)[:cut] for run, one in zip(runs, known, strict=True)])
    reward, reward_se = mean_and_error([_mean([run.earned for run in folds]) for folds in seeds])
    return FirstPass(
        incumbent=arms[column],
        best_fixed=max(arms, key=lambda arm: always[arm]),
        reward=reward,
        reward_se=reward_se,
        always=always,
        oracle=_mean([one.max(axis=1) for one in known]),
        passes=len(runs),
        questions=cut,
        labels=math.fsum(run.labels for run in runs) / len(runs),
        break_even=_break_even(ahead),
        worst_prefix=_worst(runs, known=[one[:, column] for one in known], harm=harm),
        curve=_curve(ahead, regret=regret),
    )


def _mean(parts: Sequence[Vector]) -> float:
    return math.fsum(float(v) for part in parts for v in part) / max(1, sum(map(len, parts)))


def _break_even(ahead: Matrix) -> BreakEven:
    """ahead: (passes, questions), sums."""
    questions = [_passed_for_good(row) for row in ahead]
    reached = sorted(one for one in questions if one is not None)
    middle = (len(questions) + 1) // 2  # the lower of two in the middle
    return BreakEven(
        question=reached[middle - 1] if len(reached) >= middle else None,
        of_mean=_passed_for_good(ahead.mean(axis=0)),
        share=len(reached) / len(questions),
    )


def _passed_for_good(ahead: Vector) -> int | None:
    """The first question, from 1, from which on no sum is below 0; None where the last one is."""
    below = np.flatnonzero(ahead < -1e-9)  # the sums of the same rewards in another order are equal
    first = int(below[-1]) + 2 if len(below) else 1
    return first if first <= len(ahead) else None


def _worst(runs: Sequence[Played], *, known: Sequence[Vector], harm: float) -> WorstPrefix:
    """known: the incumbent's rewards in every pass."""
    prefixes = []
    for run, incumbent in zip(runs, known, strict=True):
        first = min(LEAST_PREFIX, len(run.order)) - 1
        ours, theirs = np.cumsum(run.earned)[first:], np.cumsum(incumbent)[first:]
        least = int((ours - theirs).argmin())
        if (theirs > 0.0).all():
            ratios = ours / theirs
            at = int(ratios.argmin())
            ratio: float | None = float(ratios[at])
        else:
            at, ratio = least, None
        unharmed = float((ours - (1.0 - harm) * theirs).min()) >= -1e-9
        prefixes.append((ratio, float((ours - theirs)[least]), first + at + 1, run, unharmed))
    no_ratio = any(ratio is None for ratio, *_ in prefixes)
    ratio, _, questions, run, _ = min(prefixes, key=lambda one: one[1] if no_ratio or one[0] is None else one[0])
    return WorstPrefix(
        ratio=None if no_ratio else ratio,
        questions=questions,
        seed=run.seed,
        fold=run.fold,
        difference=min(difference for _, difference, *_ in prefixes),
        harmed=sum(not unharmed for *_, unharmed in prefixes) / len(prefixes),
        harm=harm,
    )


def _curve(ahead: Matrix, *, regret: Matrix) -> tuple[Stretch, ...]:
    count = ahead.shape[1]
    step = next(size for size in _steps() if count <= size * _POINTS)
    stretches = []
    for questions in [*range(step, count, step), count]:
        values: dict[str, float] = {}
        for name, sums in (("ahead", ahead[:, questions - 1]), ("regret", regret[:, questions - 1])):
            low, high = map(float, np.quantile(sums, _BAND))
            values |= {name: float(sums.mean()), f"{name}_low": low, f"{name}_high": high}
        stretches.append(Stretch(questions=questions, **values))
    return tuple(stretches)


def _steps() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50 and so on."""
    for power in itertools.count():
        yield from (factor * 10**power for factor in (1, 2, 5))
