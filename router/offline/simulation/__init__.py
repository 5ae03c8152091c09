"""Simulation: a full-information table runs through the policy and learner code that serves live traffic.

    table = read_table("table.jsonl")
    rows = simulate(table, policies={"mba": {}}, encoder=HashingEncoder)

How each number is made: docs/simulate.md.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ragbandit.router.config.settings import RewardSettings, Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.encoders.feature_cache import embedded
from ragbandit.router.offline.simulation.frontier import line_of
from ragbandit.router.offline.simulation.process_pool import played
from ragbandit.router.offline.simulation.results import Measure, Simulated, by_seed
from ragbandit.router.offline.simulation.run import SimulationData, SimulationRun
from ragbandit.router.offline.simulation.table import LabelledTable
from ragbandit.router.offline.types import Progress
from ragbandit.router.policies import known_policies, make_policy, with_settings
from ragbandit.router.policies.base import Policy, TableTrained
from ragbandit.router.policies.checks import check_arms
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import Json

__all__ = ["DEFAULT_WEIGHT", "Simulated", "simulate"]

log = logging.getLogger("ragbandit.simulation")

#: lambda where nobody says otherwise, in reward per step
DEFAULT_WEIGHT = RewardSettings().weight


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
    line: tuple[str, str] | None = None,
    incumbent: str | None = None,
    warm: int = 0,
    labelled: float = 1.0,
    jobs: int = 1,
    progress: Progress = lambda _what, _done, _total: None,
) -> list[Simulated]:
    """One row per policy and weight, then the baselines.

    policies: name or class path -> params. test: rows to predict after learning all of the table; without it the table
    is cut in folds. weights: of cost while learning; None is the settings'. total: questions in the denominator of EM;
    those not in the table count as wrong. settings: floor, fallback, prices and bounds of the reward, folder of the
    cache. encoder: makes the encoder, if some policy needs features. line: the two arms of the mixture line. incumbent:
    the arm that the rewards while learning are compared with; None: policy.incumbent, else the best fixed one. warm: so
    many rows of every pass are learned before it, with the outcomes of all arms, and not asked. labelled: chance that a
    decision's outcome is learned; the others earn all the same. jobs: processes.
    Raises InvalidInput or ConfigError for what cannot be simulated, before anything is learned.
    """
    settings = settings or Settings()
    weights = (settings.reward.weight,) if weights is None else weights
    test = None if test is None else _aligned(test, table=table)
    _check(weights=weights, seeds=seeds, labelled=labelled, settings=settings)
    policies = {
        name: with_settings(
            name, params=params, schema=settings.context, incumbent=settings.policy.incumbent is not None
        )
        for name, params in policies.items()
    }
    world = SimulationData(table=table, test=test, folds=_folds(folds, table=table, test=test), settings=settings)
    world = replace(world, warm=_warm(warm, world=world), labelled=labelled)
    measure = _measure(world, total=total, line=line, incumbent=incumbent)
    instances = _instances_of(policies, table=table)
    if any("features" in policy.needs for policy in instances.values()):
        world = _with_features(world, encoder=encoder, progress=progress)
    runs = [
        SimulationRun(policy=name, params=policies[name], weight=weight, seed=seed, fold=fold)
        for name, policy in instances.items()
        for weight in (weights[:1] if isinstance(policy, TableTrained) else weights)  # it is not told what a step costs
        for seed in range(seeds)
        for fold in range(world.folds)
    ]
    here = frozenset(name for name, policy in instances.items() if "text" in policy.needs)
    played_runs = played(runs, world=world, jobs=jobs, here=here, progress=progress)
    plain = measure.baselines(weights=weights)
    learned = measure.rows(by_seed(runs, played_runs, table=world.judged))
    return learned + [row for row in plain if row.policy not in policies]


def _aligned(test: LabelledTable, *, table: LabelledTable) -> LabelledTable:
    """The test rows with the arms in the table's order."""
    if set(test.arms) != set(table.arms):
        raise InvalidInput(
            f"has the arms {', '.join(test.arms)}, the table has {', '.join(table.arms)}",
            field="test",
            remedy="both need the same arms",
        )
    both = {row.question for row in table.rows} & {row.question for row in test.rows}
    if both:
        log.warning("%d questions of the test file are also in the table: results on them are too good", len(both))
    return replace(test, arms=table.arms)


def _check(*, weights: Sequence[float], seeds: int, labelled: float, settings: Settings) -> None:
    if seeds < 1:
        raise InvalidInput(f"{seeds} seeds", field="seeds", remedy="use 1 or more")
    if not 0.0 < labelled <= 1.0:
        remedy = "use more than 0 and at most 1, for example 0.3"
        raise InvalidInput(f"{labelled!r} is no share of the decisions", field="labelled", remedy=remedy)
    if not weights or len(set(weights)) != len(weights):
        raise InvalidInput("needs values, each once", field="lambda", remedy="for example 0.05")
    for weight in weights:
        if not (math.isfinite(weight) and weight >= 0):
            raise InvalidInput(f"{weight!r} is no weight of cost", field="lambda", remedy="use 0 or more")
    if not settings.reward.cost.get("steps", 0.0) > 0.0:
        raise ConfigError(
            "steps have no price: they are the only cost that a table knows",
            field="reward.cost",
            remedy="add steps: 1.0, or simulate with another configuration",
        )


def _folds(folds: int, *, table: LabelledTable, test: LabelledTable | None) -> int:
    """Number of folds: passes of learning per seed; one where the test rows are in another file."""
    if test is not None:
        return 1
    if not 2 <= folds <= len(table.rows):
        raise InvalidInput(f"{folds} folds of {len(table.rows)} rows", field="folds", remedy="use 2 up to one per row")
    return folds


def _warm(count: int, *, world: SimulationData) -> int:
    """The rows that are learned before a pass; at least one is left to ask."""
    rows = len(world.table.rows)
    least = rows if world.test is not None else rows - math.ceil(rows / world.folds)
    if not 0 <= count < least:
        raise InvalidInput(f"{count} rows of a pass of {least}", field="warm", remedy="use 0 or more, and fewer rows")
    return count


def _measure(
    world: SimulationData, *, total: int | None, line: tuple[str, str] | None, incumbent: str | None
) -> Measure:
    judged, arms = world.judged, world.table.arms
    rows = len(judged.rows)
    total = rows if total is None else total
    if total < rows:
        raise InvalidInput(
            f"{total} is less than the {rows} rows that are judged",
            field="total",
            remedy="count the questions that the table leaves out too, or drop it",
        )
    policy = world.settings.policy
    if incumbent is None and policy.incumbent in arms:
        incumbent = policy.incumbent
    if incumbent is not None and incumbent not in arms:
        raise InvalidInput(f"unknown arm {incumbent!r}", field="incumbent", remedy=f"use one of {', '.join(arms)}")
    return Measure(
        table=judged,
        total=total,
        line=line_of(judged, total=total, arms=line),
        learned=world.table,
        reward=world.settings.reward,
        incumbent=incumbent,
        harm=policy.harm,
    )


def _instances_of(policies: Mapping[str, Mapping[str, Json]], *, table: LabelledTable) -> dict[str, Policy]:
    """One of each, to ask what it needs. Raises ConfigError for one that cannot be made, or names an arm not there."""
    if not policies:
        raise InvalidInput("names none", field="policy", remedy=f"known: {', '.join(known_policies())}")
    instances = {name: make_policy(name, params=params) for name, params in policies.items()}
    for name, policy in instances.items():
        check_arms(policy, arms=table.arms, where=name, trains=True)
    return instances


def _with_features(
    world: SimulationData, *, encoder: Callable[[], Encoder] | None, progress: Progress
) -> SimulationData:
    if encoder is None:
        raise ConfigError("a policy needs features", field="encoder", remedy="pass encoder=, a function that makes one")
    progress("loading the encoder", 0, 0)
    loaded = encoder()
    folder = Path(world.settings.data_dir) / "cache" / "features"
    tables = [world.table] if world.test is None else [world.table, world.test]
    texts = [row.question for table in tables for row in table.rows]
    rows = embedded(texts, encoder=loaded, folder=folder, progress=partial(progress, "questions encoded"))
    cut = len(world.table.rows)
    return replace(
        world,
        features=rows[:cut],
        test_features=rows[cut:] if world.test is not None else None,
        encoder_hash=loaded.hash,
    )
