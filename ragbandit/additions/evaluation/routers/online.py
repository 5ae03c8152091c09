"""Measures of routers that learn online: reward and regret of their passes, question by question.

The regret of a decision is the reward of the question's best arm minus the reward of the drawn arm. The best arm is
known only after the decision, so every router has some regret; compare it with the regret of other routers and of each
fixed arm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from ragbandit.additions.evaluation.routers.play import PolicyPlay
from ragbandit.additions.evaluation.routers.routing_table import RoutingTable
from ragbandit.additions.evaluation.routers.rows import Estimate, estimate
from ragbandit.router.comparison.assessment import CURVE_POINTS
from ragbandit.router.offline.passes import Played as Pass, break_even
from ragbandit.shared.types import Matrix, Vector


@dataclass(frozen=True, kw_only=True, slots=True)
class OnlineCurve:
    """Means over the passes, after each number of questions in `questions`."""

    questions: tuple[int, ...]
    #: mean reward per question so far, of the policy and of the best fixed arm on the same questions
    reward: tuple[float, ...]
    fixed: tuple[float, ...]
    #: sum of the regret so far, of the policy and of the best fixed arm
    regret: tuple[float, ...]
    fixed_regret: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class OnlineRow:
    """Sums over a pass. Each sum is a mean over the orders of the questions."""

    name: str
    kind: Literal["pass", "arm"]
    #: length of a pass
    questions: int
    reward: Estimate
    #: reward minus the reward of the best fixed arm on the same questions
    above_best: Estimate
    regret: Estimate
    #: sum of the quality / sum of the dollars; None if dollars are not known, or nothing was paid
    quality_per_dollar: Estimate | None
    #: number of questions after which the reward stays above the best fixed arm's, in the median pass; None if it does
    #: so in fewer than half of the passes
    break_even: int | None = None
    curve: OnlineCurve | None = None

    def as_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in ("name", "kind", "questions", "break_even")}
        for name in ("reward", "above_best", "regret", "quality_per_dollar"):
            one: Estimate | None = getattr(self, name)
            values |= {name: None if one is None else one.mean, f"{name}_se": None if one is None else one.error}
        return values | {"curve": None if self.curve is None else asdict(self.curve)}


def online_rows(
    plays: Mapping[str, Mapping[int, Sequence[PolicyPlay]]], *, outcomes: RoutingTable
) -> tuple[OnlineRow, ...]:
    """A row for each policy with passes over these questions, and for each fixed arm; () without passes.

    plays: policy -> seed -> play of each fold. outcomes: outcomes of the questions of the passes.
    """
    learned = {name: seeds for name, seeds in plays.items() if all(len(one.order) for one in seeds[min(seeds)])}
    if not learned:
        return ()
    rows = tuple(_policy_row(name, seeds, outcomes=outcomes) for name, seeds in learned.items())
    return rows + tuple(
        _arm_row(arm, outcomes=outcomes, questions=rows[0].questions) for arm in _arms_by_reward(outcomes)
    )


def best_arm(outcomes: RoutingTable) -> int:
    """Index of the arm with the largest mean reward."""
    return int(outcomes.reward.mean(axis=0).argmax())


def _arms_by_reward(outcomes: RoutingTable) -> list[int]:
    return [int(arm) for arm in np.argsort(-outcomes.reward.mean(axis=0), kind="stable")]


def _policy_row(name: str, seeds: Mapping[int, Sequence[PolicyPlay]], *, outcomes: RoutingTable) -> OnlineRow:
    reward, fixed = outcomes.reward, outcomes.reward[:, best_arm(outcomes)]
    regret = reward.max(axis=1, keepdims=True) - reward
    passes = [
        [Pass(order=one.order, drawn=one.drawn, earned=reward[one.order, one.drawn]) for one in folds]
        for folds in seeds.values()
    ]
    every = [one for folds in passes for one in folds]

    def mean_totals_by_seed(values: Matrix) -> list[float]:
        """For each seed, the mean of the sums over its passes."""
        return [float(np.mean([values[one.order, one.drawn].sum() for one in folds])) for folds in passes]

    earned = mean_totals_by_seed(reward)
    best = [float(np.mean([fixed[one.order].sum() for one in folds])) for folds in passes]
    return OnlineRow(
        name=name,
        kind="pass",
        questions=min(len(one.order) for one in every),
        reward=estimate(earned),
        above_best=estimate([mine - theirs for mine, theirs in zip(earned, best, strict=True)]),
        regret=estimate(mean_totals_by_seed(regret)),
        quality_per_dollar=_per_dollar(
            mean_totals_by_seed(outcomes.table.correct), outcomes=outcomes, dollars=mean_totals_by_seed
        ),
        break_even=break_even(every, fixed=fixed)[0],
        curve=_curve(every, fixed=fixed, regret=regret, fixed_regret=regret[:, best_arm(outcomes)]),
    )


def _per_dollar(qualities: Sequence[float], *, outcomes: RoutingTable, dollars: Any) -> Estimate | None:
    if "dollars" not in outcomes.amounts:
        return None
    paid = dollars(outcomes.amounts["dollars"])
    return estimate([q / d for q, d in zip(qualities, paid, strict=True)]) if min(paid) > 0.0 else None


def _arm_row(arm: int, *, outcomes: RoutingTable, questions: int) -> OnlineRow:
    """The row of a fixed arm (index `arm`) for the number of questions of a pass. Every question counts equally."""
    reward, best = outcomes.reward, best_arm(outcomes)

    def total(values: Vector) -> Estimate:
        return Estimate(mean=questions * float(values.mean()), error=None)

    def totals(values: Matrix) -> list[float]:
        return [questions * float(values[:, arm].mean())]

    return OnlineRow(
        name=outcomes.arms[arm],
        kind="arm",
        questions=questions,
        reward=total(reward[:, arm]),
        above_best=total(reward[:, arm] - reward[:, best]),
        regret=total(reward.max(axis=1) - reward[:, arm]),
        quality_per_dollar=_per_dollar(totals(outcomes.table.correct), outcomes=outcomes, dollars=totals),
    )


def _curve(passes: Sequence[Pass], *, fixed: Vector, regret: Matrix, fixed_regret: Vector) -> OnlineCurve:
    length = min(len(one.order) for one in passes)
    counts = np.unique(np.linspace(1, length, min(length, CURVE_POINTS)).round().astype(int))

    def means(values: Sequence[Vector]) -> Vector:
        """Mean over the passes of the sums after each count."""
        return np.asarray(np.mean([np.cumsum(one)[counts - 1] for one in values], axis=0))

    return OnlineCurve(
        questions=tuple(counts.tolist()),
        reward=tuple((means([one.earned for one in passes]) / counts).tolist()),
        fixed=tuple((means([fixed[one.order] for one in passes]) / counts).tolist()),
        regret=tuple(means([regret[one.order, one.drawn] for one in passes]).tolist()),
        fixed_regret=tuple(means([fixed_regret[one.order] for one in passes]).tolist()),
    )
