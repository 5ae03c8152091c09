"""Rows of results as papers print them: quality, steps and time of policies, arms and oracle, by data set and by label.

The input of a row is a router's shares: for each question, the probability of each arm.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from ragbandit.additions.evaluation.routers.play import PolicyPlay
from ragbandit.additions.evaluation.routers.routing_table import RoutingTable, mixture_shares
from ragbandit.router.offline.labels import Confusion, confusion_of
from ragbandit.router.offline.passes import mean_and_error
from ragbandit.shared.types import ArmName, Indices, Matrix

#: name of a mean -> its value. Qualities in [0, 1]; "time" is seconds / seconds of the arm `RoutingTable.time_one`
MeansByName = Mapping[str, float]
#: name of the oracle, which takes the cheapest right arm of each question
ORACLE: Final = "oracle"
UNIFORM, MIXTURE = "uniform", "mixture"
Kind = Literal["policy", "first pass", "arm", "baseline"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean over the seeds, and its standard error, which is None with one seed."""

    mean: float
    error: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterRow:
    """Results of a router, a fixed arm or a baseline, over all seeds."""

    name: str
    kind: Kind
    seeds: int
    #: means over all questions, and over the data sets' means
    all: Mapping[str, Estimate]
    mean_of_datasets: Mapping[str, Estimate]
    by_dataset: Mapping[str, Mapping[str, Estimate]]
    #: quality minus the quality of the best random mixture of two arms at the same cost
    above_mixture: Estimate
    #: `above_mixture` divided by the oracle's; None if the oracle is not above the mixture
    oracle_share: float | None
    #: quality / dollars; None if dollars are not known, or nothing is paid
    quality_per_dollar: Estimate | None
    confusion: Confusion
    #: arm -> share of the questions that it answers
    arms: Mapping[ArmName, float]
    #: arm -> mean seconds of these answers; None if it answers none, or the table has no seconds
    arm_seconds: Mapping[ArmName, float | None]
    fault: str | None = None
    #: restriction of the numbers, for example that a policy never picked; None without one
    remark: str | None = None

    @property
    def label(self) -> str:
        """The name in tables, with the remark."""
        return self.name if self.remark is None else f"{self.name} ({self.remark})"

    def as_json(self) -> dict[str, Any]:
        def numbers(means: Mapping[str, Estimate]) -> dict[str, Any]:
            values = {name: one.mean for name, one in means.items()}
            return values | {f"{name}_se": one.error for name, one in means.items() if one.error is not None}

        return {
            "name": self.name,
            "kind": self.kind,
            "seeds": self.seeds,
            **numbers(self.all),
            "mean_of_datasets": numbers(self.mean_of_datasets),
            "by_dataset": {name: numbers(means) for name, means in self.by_dataset.items()},
            "above_mixture": self.above_mixture.mean,
            "above_mixture_se": self.above_mixture.error,
            "oracle_share": self.oracle_share,
            "quality_per_dollar": None if self.quality_per_dollar is None else self.quality_per_dollar.mean,
            **self.confusion.as_json(),
            "arms": dict(self.arms),
            "arm_seconds": dict(self.arm_seconds),
            "fault": self.fault,
            "remark": self.remark,
        }


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shares:
    """Choices with one seed: questions (n,), shares of the arms (n, K), seconds of choosing for a question."""

    places: Indices
    shares: Matrix
    seconds: float = 0.0


def rows_of_policy(
    name: str, plays: Mapping[int, Sequence[PolicyPlay]], *, train: RoutingTable, test: RoutingTable
) -> Iterator[RouterRow]:
    """Yield the row of the greedy policy, then of its first pass if it made one. plays: seed -> play of each fold."""
    faults = [one.fault for folds in plays.values() for one in folds if one.fault is not None]
    greedy = [
        Shares(
            places=np.concatenate([one.test for one in folds]),
            shares=np.concatenate([one.shares for one in folds]),
            seconds=math.fsum(one.seconds for one in folds) / len(folds),
        )
        for folds in plays.values()
    ]
    fault, has_passes = next(iter(faults), None), all(len(one.order) for folds in plays.values() for one in folds)
    if any(len(one.places) for one in greedy):  # a stream predicts no question
        yield row_of(name, greedy, outcomes=test, kind="policy", fault=fault)
        fault = None
    if has_passes:
        every, count = np.eye(len(train.arms)), len(train.arms)
        passes = [
            Shares(
                places=np.concatenate([one.order for one in folds]),
                shares=np.concatenate([every[one.drawn] for one in folds]).reshape(-1, count),
                seconds=math.fsum(one.seconds for one in folds) / len(folds),
            )
            for folds in plays.values()
        ]
        yield row_of(f"{name}, first pass", passes, outcomes=train, kind="first pass", fault=fault)


def baseline_rows(outcomes: RoutingTable, *, at: float | None) -> Iterator[RouterRow]:
    """Yield the rows of each fixed arm, uniform, a mixture and the oracle. at: cost of the mixture; None to omit it."""
    count, n = len(outcomes.arms), len(outcomes.table.rows)
    every = np.eye(count)
    for place, arm in enumerate(outcomes.arms):
        yield _baseline_row(arm, np.tile(every[place], (n, 1)), outcomes=outcomes, kind="arm")
    yield _baseline_row(UNIFORM, np.full((n, count), 1.0 / count), outcomes=outcomes)
    if at is not None:
        costs, qualities = outcomes.cost.mean(axis=0), outcomes.table.correct.mean(axis=0)
        mixed = mixture_shares(at, costs=costs, qualities=qualities)
        yield _baseline_row(MIXTURE, np.tile(mixed, (n, 1)), outcomes=outcomes)
    yield _baseline_row(ORACLE, every[outcomes.cheapest_right], outcomes=outcomes)


def _baseline_row(name: str, shares: Matrix, *, outcomes: RoutingTable, kind: Kind = "baseline") -> RouterRow:
    places = np.arange(len(outcomes.table.rows))
    return row_of(name, [Shares(places=places, shares=shares)], outcomes=outcomes, kind=kind)


def row_of(
    name: str, seeds: Sequence[Shares], *, outcomes: RoutingTable, kind: Kind, fault: str | None = None
) -> RouterRow:
    """The row of a router, from its choices with each seed."""
    overall = _estimates([_means(one, outcomes=outcomes) for one in seeds])
    by_dataset = {
        dataset: [_means(one, outcomes=outcomes, dataset=dataset) for one in seeds] for dataset in outcomes.datasets
    }
    means = [
        {key: math.fsum(values[seed][key] for values in by_dataset.values()) / len(by_dataset) for key in overall}
        for seed in range(len(seeds) if by_dataset else 0)
    ]
    above = [_above_mixture(one, outcomes=outcomes) for one in seeds]
    oracle = Shares(
        places=np.arange(len(outcomes.table.rows)), shares=np.eye(len(outcomes.arms))[outcomes.cheapest_right]
    )
    possible = _above_mixture(oracle, outcomes=outcomes)
    pooled = Shares(
        places=np.concatenate([one.places for one in seeds]), shares=np.concatenate([one.shares for one in seeds])
    )
    return RouterRow(
        name=name,
        kind=kind,
        seeds=len(seeds),
        all=overall,
        mean_of_datasets=_estimates(means) if means else overall,
        by_dataset={dataset: _estimates(values) for dataset, values in by_dataset.items()},
        above_mixture=estimate(above),
        quality_per_dollar=_per_dollar(seeds, outcomes=outcomes),
        oracle_share=math.fsum(above) / len(above) / possible if possible > 1e-9 else None,
        confusion=confusion_of(pooled.shares, labels=outcomes.labels, arms=outcomes.arms, places=pooled.places),
        arms=dict(zip(outcomes.arms, pooled.shares.mean(axis=0).tolist(), strict=True)),
        arm_seconds=_arm_seconds(pooled, outcomes=outcomes),
        fault=fault,
    )


def _means(chosen: Shares, *, outcomes: RoutingTable, dataset: str | None = None) -> dict[str, float]:
    """Means over all questions, or over the questions of a data set."""
    places, shares = chosen.places, chosen.shares
    if dataset is not None:
        inside = np.isin(places, outcomes.datasets[dataset])
        places, shares = places[inside], shares[inside]

    def mean(values: Matrix) -> float:
        return float((shares * values[places]).sum() / len(places))

    answerable = outcomes.answerable(dataset)
    # No arm answers the questions that the table leaves out.
    means = {name: answerable * mean(values) for name, values in outcomes.qualities.items()}
    means |= {name: mean(values) for name, values in outcomes.amounts.items()}
    if outcomes.time_one is not None and "seconds" in means:
        means["seconds"] += chosen.seconds
        one = float(outcomes.amounts["seconds"][places, outcomes.arms.index(outcomes.time_one)].mean())
        if one > 0.0:
            means["time"] = means["seconds"] / one
    return means


def _above_mixture(chosen: Shares, *, outcomes: RoutingTable) -> float:
    """Quality of the choices minus the quality of the best mixture of two arms that costs as much."""
    places, right, cost = chosen.places, outcomes.table.correct, outcomes.cost
    quality, spent = (float((chosen.shares * of[places]).sum(axis=1).mean()) for of in (right, cost))
    costs, qualities = cost[places].mean(axis=0), right[places].mean(axis=0)
    mixed = float(mixture_shares(spent, costs=costs, qualities=qualities) @ qualities)
    return outcomes.answerable() * (quality - mixed)


def _per_dollar(seeds: Sequence[Shares], *, outcomes: RoutingTable) -> Estimate | None:
    """Sum of the quality / sum of the dollars, over the questions of the table; None without dollars."""
    dollars, right = outcomes.amounts.get("dollars"), outcomes.table.correct
    if dollars is None:
        return None
    paid = [float((one.shares * dollars[one.places]).sum()) for one in seeds]
    got = [float((one.shares * right[one.places]).sum()) for one in seeds]
    return estimate([q / d for q, d in zip(got, paid, strict=True)]) if min(paid) > 0.0 else None


def _arm_seconds(chosen: Shares, *, outcomes: RoutingTable) -> dict[ArmName, float | None]:
    seconds = outcomes.table.seconds
    if seconds is None:
        return dict.fromkeys(outcomes.arms)
    sums, given = (chosen.shares * seconds[chosen.places]).sum(axis=0), chosen.shares.sum(axis=0)
    return {
        arm: total / count if count > 0.0 else None
        for arm, total, count in zip(outcomes.arms, sums.tolist(), given.tolist(), strict=True)
    }


def _estimates(means: Sequence[MeansByName]) -> dict[str, Estimate]:
    return {name: estimate([one[name] for one in means]) for name in means[0]}


def estimate(values: Sequence[float]) -> Estimate:
    mean, error = mean_and_error(values)
    return Estimate(mean=mean, error=error)
