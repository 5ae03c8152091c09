"""Simulation: a full-information table runs through the policy and learner code that serves live traffic.

table = read_table("table.jsonl")
rows = simulate(table, policies={"mba": {}}, encoder=HashingEncoder)
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ragbandit.router.config.settings import RewardSettings, Settings
from ragbandit.router.encoders.base import Encoder, embedded
from ragbandit.router.offline.estimation import Progress, no_progress
from ragbandit.router.offline.logs.tables import LabelledTable
from ragbandit.router.offline.simulation.measure import (
    FirstPass,
    FrontierPoint,
    above_line,
    arm_seconds,
    cheapest_right,
    check_labelled,
    first_pass,
    greedy,
    line_arms,
    mean_and_error,
    one_hot,
    point_of,
    rewards_of,
    right_arms,
)
from ragbandit.router.offline.simulation.run import Played, SimulationData, SimulationRun, played
from ragbandit.router.policies import known_policies, make_policy, with_settings
from ragbandit.router.policies.base import Policy, TableTrained
from ragbandit.router.policies.checks import check_arms
from ragbandit.router.policies.confusion import LabelShares, shares_by_label
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import ArmName, Json, Matrix

__all__ = ["DEFAULT_WEIGHT", "Simulated", "simulate"]

log = logging.getLogger("ragbandit.simulation")

#: default cost weight (lambda), in reward per step
DEFAULT_WEIGHT = RewardSettings().weight


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """A policy at one cost weight, over all seeds. Fields with _se are standard errors over the seeds."""

    policy: str
    #: cost weight (lambda) while learning; None for a row that does not depend on the weight
    weight: float | None
    em: float  #: exact match, percent
    em_se: float | None
    steps: float  #: mean number of steps per question
    steps_se: float | None
    above_line: float  #: exact match minus the exact match of the mixture line at the same number of steps
    above_line_se: float | None
    arms: Mapping[ArmName, float]
    #: shares of the arms for each group of questions with the same cheapest right arm; the last group has no right arm
    confusion: Sequence[LabelShares[ArmName]]
    by_hops: Sequence[LabelShares[int]]  #: shares of the arms per number of hops
    by_dataset: Sequence[LabelShares[str]]  #: shares of the arms per data set
    seconds: float | None  #: mean seconds per question; None if the table has no seconds
    #: mean seconds of the questions that an arm gets; an arm without questions has None, a table without seconds too
    arm_seconds: Mapping[ArmName, float | None] | None
    #: above_line divided by the above_line of the cheapest-right oracle; None if this oracle gains nothing
    oracle_share: float | None
    #: rewards while learning, compared with each fixed arm; None if the policy does not learn question by question
    first_pass: FirstPass | None = None
    seeds: int = 0
    n: int = 0  #: number of questions in the judged table
    total: int = 0  #: number of questions in the denominator of `em`
    faults: int = 0
    refused: int = 0
    reason: str | None = None
    full_information: bool = False
    params: Mapping[str, Json] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The row as it is printed. The field `weight` has the key `lambda`, a name that Python does not allow."""
        values = asdict(self)
        return {"policy": values.pop("policy"), "lambda": values.pop("weight"), **values}


def simulate(
    table: LabelledTable,
    *,
    policies: Mapping[str, Mapping[str, Json]],
    test: LabelledTable | None = None,
    folds: int = 5,
    weights: Sequence[float] | None = None,
    seeds: int = 5,
    total: int | None = None,
    settings: Settings | None = None,
    encoder: Callable[[], Encoder] | None = None,
    incumbent: str | None = None,
    warm: int = 0,
    labelled: float = 1.0,
    jobs: int = 1,
    progress: Progress = no_progress,
) -> list[Simulated]:
    """Returns a row for each policy and cost weight, then the baselines. docs/simulate.md explains the numbers.

    policies: name or class path -> params.
    test: rows to predict after the whole table is learned; None to predict folds of the table.
    weights: cost weights while learning; default reward.weight.
    total: number of questions by which exact match (EM) is divided; default the number of judged rows.
    settings: give floor, fallback, prices and bounds of the reward, and the folder of cached features.
    encoder: makes the encoder.
    incumbent: arm that learning is compared with; default policy.incumbent, else the best fixed arm.
    warm: number of first rows of a pass that are learned with the outcomes of all arms.
    labelled: probability that the outcome of a decision is learned.
    jobs: number of processes.
    Raises InvalidInput or ConfigError before anything is learned.
    """
    settings = settings or Settings()
    weights = (settings.reward.weight,) if weights is None else weights
    judged = table if test is None else _aligned(test, table=table)
    if test is None and not 2 <= folds <= len(table.rows):
        message = f"{len(table.rows)} rows cannot be split into {folds} folds"
        raise InvalidInput(message, field="folds", remedy="use at least 2 folds, and at most one per row")
    folds = folds if test is None else 1
    world = SimulationData(table=table, judged=judged, folds=folds, settings=settings, warm=warm, labelled=labelled)
    total = len(judged.rows) if total is None else total
    if incumbent is None and settings.policy.incumbent in table.arms:
        incumbent = settings.policy.incumbent
    measure = _Measure(world=world, total=total, incumbent=incumbent)
    _check(measure, weights=weights, seeds=seeds)
    policies = {
        name: with_settings(
            name,
            params=params,
            schema=settings.context,
            facts=settings.arm_facts,
            incumbent=settings.policy.incumbent is not None,
        )
        for name, params in policies.items()
    }
    instances = _instances_of(policies, table=table)
    if any("features" in policy.needs for policy in instances.values()):
        world = _with_features(world, encoder=encoder, progress=progress)
    runs = [
        SimulationRun(policy=name, params=policies[name], weight=weight, seed=seed, fold=fold)
        for name, policy in instances.items()
        # A TableTrained policy does not depend on the cost weight, so it runs at one weight only.
        for weight in (weights[:1] if isinstance(policy, TableTrained) else weights)
        for seed in range(seeds)
        for fold in range(world.folds)
    ]
    here = frozenset(name for name, policy in instances.items() if "text" in policy.needs)
    played_runs = played(runs, world=world, jobs=jobs, here=here, progress=progress)
    groups: dict[tuple[str, float], dict[int, list[Played]]] = {}
    for run, one in zip(runs, played_runs, strict=True):
        groups.setdefault((run.policy, run.weight), {}).setdefault(run.seed, []).append(one)
    learned = measure.learned({key: list(seeds.values()) for key, seeds in groups.items()}, params=policies)
    return learned + [row for row in measure.baselines(weights=weights) if row.policy not in policies]


def _aligned(test: LabelledTable, *, table: LabelledTable) -> LabelledTable:
    if set(test.arms) != set(table.arms):
        message = f"has the arms {', '.join(test.arms)}, the table has {', '.join(table.arms)}"
        raise InvalidInput(message, field="test", remedy="both need the same arms")
    both = {row.question for row in table.rows} & {row.question for row in test.rows}
    if both:
        log.warning("%d questions of the test file are also in the table: results on them are too good", len(both))
    return replace(test, arms=table.arms)


def _check(measure: "_Measure", *, weights: Sequence[float], seeds: int) -> None:
    world, arms, settings = measure.world, measure.world.table.arms, measure.world.settings
    rows, judged, warm = len(world.table.rows), len(world.judged.rows), world.warm
    asked = rows if world.folds == 1 else rows - math.ceil(rows / world.folds)  # questions of a pass
    odd = [one for one in weights if not (math.isfinite(one) and one >= 0)]
    more = "count the questions that the table leaves out too, or drop it"
    known = measure.incumbent is None or measure.incumbent in arms
    check_labelled(world.labelled)
    for holds, field_, message, remedy in (
        (seeds >= 1, "seeds", f"{seeds} seeds", "use 1 or more"),
        (weights and len(set(weights)) == len(weights), "lambda", "needs values, each once", "for example 0.05"),
        (not odd, "lambda", f"{next(iter(odd), None)!r} is no weight of cost", "use 0 or more"),
        (0 <= warm < asked, "warm", f"{warm} rows of a pass of {asked}", "use 0 or more, and fewer rows"),
        (measure.total >= judged, "total", f"{measure.total} is less than the {judged} rows that are judged", more),
        (known, "incumbent", f"unknown arm {measure.incumbent!r}", f"use one of {', '.join(arms)}"),
    ):
        if not holds:
            raise InvalidInput(message, field=field_, remedy=remedy)
    if not settings.reward.cost.get("steps", 0.0) > 0.0:
        message = "steps have no price: they are the only cost that a table knows"
        raise ConfigError(message, field="reward.cost", remedy="add steps: 1.0, or simulate with another configuration")


@dataclass(frozen=True, kw_only=True)
class _Measure:
    world: SimulationData
    total: int
    incumbent: str | None

    def learned(
        self,
        groups: Mapping[tuple[str, float], Sequence[Sequence[Played]]],
        *,
        params: Mapping[str, Mapping[str, Json]],
    ) -> list[Simulated]:
        rows = []
        for (name, weight), seeds in groups.items():
            runs = [run for folds in seeds for run in folds]
            whole = runs[0].full_information
            passed = None if whole else self._passed(seeds, weight=weight)
            row = self._row(
                name,
                weight=None if whole else weight,
                shares=[_pooled(folds) for folds in seeds],
                first_pass=passed,
                seeds=len(seeds),
                faults=sum(run.faults for run in runs),
                refused=sum(run.refused for run in runs),
                reason=next((run.reason for run in runs if run.reason), None),
                full_information=whole,
                params=params[name],
            )
            rows.append(row)
        return rows

    def baselines(self, *, weights: Sequence[float]) -> list[Simulated]:
        """Rows without learning: each fixed arm, uniform, the middle of the mixture line, and the oracles."""
        table, arms = self.world.judged, self.world.table.arms
        always = [self._always(place) for place in range(len(arms))]
        plain = {f"always-{arm}": shares for arm, shares in zip(arms, always, strict=True)}
        plain["uniform"] = np.full(table.correct.shape, 1.0 / len(arms))
        cheap, expensive = line_arms(table)
        plain["line"] = (always[cheap] + always[expensive]) / 2.0
        plain["oracle"] = one_hot(cheapest_right(table), arms=len(arms))
        rows = [self._row(name, weight=None, shares=[shares]) for name, shares in plain.items()]
        for weight in weights:
            best = greedy(self._rewards(table, weight=weight), cost=table.steps)
            rows.append(self._row("oracle-by-reward", weight=weight, shares=[one_hot(best, arms=len(arms))]))
        return rows

    def _row(self, policy: str, *, weight: float | None, shares: Sequence[Matrix], **more: Any) -> Simulated:
        points = [self._point(one) for one in shares]
        (em, em_se), (steps, steps_se) = (mean_and_error(values) for values in zip(*points, strict=True))
        table = self.world.judged
        first, last = (self._point(self._always(place)) for place in line_arms(table))
        oracle = self._point(one_hot(cheapest_right(table), arms=len(table.arms)))
        best, *lifts = (above_line(point, ends=(first, last)) for point in (oracle, *points))
        above, above_se = mean_and_error(lifts)
        mean = np.mean(shares, axis=0)
        hops, datasets = [row.hops for row in table.rows], [row.dataset for row in table.rows]
        labelled = partial(shares_by_label, shares=mean, arms=table.arms, seconds=table.seconds)
        return Simulated(
            policy=policy,
            weight=weight,
            em=em,
            em_se=em_se,
            steps=steps,
            steps_se=steps_se,
            above_line=above,
            above_line_se=above_se,
            arms=dict(zip(table.arms, map(float, mean.mean(axis=0)), strict=True)),
            confusion=labelled(right_arms(table), order=table.arms),
            by_hops=labelled(hops, order=sorted({one for one in hops if one is not None})),
            by_dataset=labelled(datasets, order=sorted({one for one in datasets if one is not None})),
            seconds=None if table.seconds is None else float((mean * table.seconds).sum()) / len(table.rows),
            arm_seconds=arm_seconds(mean, table=table),
            oracle_share=above / best if best > 0.0 else None,
            n=len(table.rows),
            total=self.total,
            **more,
        )

    def _always(self, place: int) -> Matrix:
        table = self.world.judged
        return one_hot(np.full(len(table.rows), place), arms=len(table.arms))

    def _point(self, shares: Matrix) -> FrontierPoint:
        return point_of(shares, table=self.world.judged, total=self.total)

    def _passed(self, seeds: Sequence[Sequence[Played]], *, weight: float) -> FirstPass:
        table = self.world.table
        rewards = self._rewards(table, weight=weight)
        harm = self.world.settings.policy.harm
        return first_pass(seeds, arms=table.arms, rewards=rewards, incumbent=self.incumbent, harm=harm)

    def _rewards(self, table: LabelledTable, *, weight: float) -> Matrix:
        reward = self.world.settings.reward
        return rewards_of(table, weight=weight, price=reward.cost["steps"], bounds=(reward.minimum, reward.maximum))


def _pooled(folds: Sequence[Played]) -> Matrix:
    order = np.argsort(np.concatenate([fold.test for fold in folds]))
    shares: Matrix = np.concatenate([fold.shares for fold in folds])[order]
    return shares


def _instances_of(policies: Mapping[str, Mapping[str, Json]], *, table: LabelledTable) -> dict[str, Policy]:
    if not policies:
        raise InvalidInput("no policy is named", field="policy", remedy=f"use one of {', '.join(known_policies())}")
    instances = {name: make_policy(name, params=params) for name, params in policies.items()}
    for name, policy in instances.items():
        check_arms(policy, arms=table.arms, where=name, trains=True)
    return instances


def _with_features(
    world: SimulationData, *, encoder: Callable[[], Encoder] | None, progress: Progress
) -> SimulationData:
    if encoder is None:
        remedy = "pass encoder=, a function that makes an encoder"
        raise ConfigError("a policy needs features", field="encoder", remedy=remedy)
    progress("loading the encoder", 0, 0)
    loaded, data_dir = encoder(), world.settings.data_dir
    ours, theirs = ([row.question for row in table.rows] for table in (world.table, world.judged))
    rows = embedded(ours, encoder=loaded, data_dir=data_dir, progress=progress)
    judged = rows if theirs == ours else embedded(theirs, encoder=loaded, data_dir=data_dir, progress=progress)
    return replace(world, features=rows, judged_features=judged, encoder_hash=loaded.hash)
