"""Results of a simulation: means and standard errors over seeds.

The folds of a seed are put together first: a seed's EM is over all questions of the judged table.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ragbandit.router.config.settings import RewardSettings
from ragbandit.router.learning.monitoring.price import Price, means_of, price_of
from ragbandit.router.offline.simulation.first_pass import FirstPass, first_pass
from ragbandit.router.offline.simulation.frontier import (
    STEPS_READ,
    SWEEP,
    FrontierPoint,
    MixtureLine,
    cheapest_right,
    greedy,
    interpolated,
    mean_and_error,
    one_hot,
    point_of,
    rewards_of,
)
from ragbandit.router.offline.simulation.run import Played, SimulationRun, Timed
from ragbandit.router.offline.simulation.table import LabelledTable
from ragbandit.router.offline.types import Matrix
from ragbandit.shared.types import ArmName, Json


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One point of a frontier, mean over seeds; weight None where there is none to set."""

    weight: float | None
    em: float
    steps: float
    above_line: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Seconds:
    """Means per call while learning (decision of a fitted policy: while predicting), and of all runs together."""

    decision: float | None
    update: float | None
    total: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Results of a policy on one dataset: EM is over these rows alone."""

    n: int
    em: float
    steps: float
    arms: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """One policy at one weight of cost, over all seeds. Numbers with _se have the standard error over seeds there."""

    policy: str
    #: lambda while learning; None for a row that does not depend on it
    weight: float | None
    #: percent
    em: float
    em_se: float | None
    #: mean per question of the table
    steps: float
    steps_se: float | None
    #: EM minus the mixture's at the same steps
    above_line: float
    above_line_se: float | None
    #: shares of the questions, by arm
    arms: Mapping[str, float]
    #: above_line over that of the cheapest-right oracle; None where that one gains nothing
    oracle_share: float | None
    frontier: tuple[Step, ...]
    above_line_at: Mapping[str, float | None]
    above_line_at_se: Mapping[str, float | None]
    by_dataset: Mapping[str, Share]
    #: mean reward of the training pass; None where nothing was learned one by one
    online_reward: float | None = None
    #: by how much the best arm of every question would have beaten it
    online_regret: float | None = None
    #: that pass question by question, against always one arm; None where nothing was learned one by one
    first_pass: FirstPass | None = None
    seconds: Seconds | None = None
    #: 0 for a row that needs no run
    seeds: int = 0
    #: questions of the judged table, and questions in the denominator of EM
    n: int = 0
    total: int = 0
    faults: int = 0
    refused: int = 0
    reason: str | None = None
    full_information: bool = False
    params: Mapping[str, Json] = field(default_factory=dict)
    #: of the row "line": the two arms it mixes
    between: tuple[ArmName, ArmName] | None = None
    #: of the row "oracle-by-reward": what the weight says of the table that was learned
    price: Price | None = None

    def as_json(self) -> dict[str, Any]:
        """The row as it is printed: `lambda` for weight, which Python has taken."""
        values = asdict(self)
        for name in ("between", "price"):
            if values[name] is None:
                del values[name]
        values["frontier"] = [{"lambda": step.pop("weight"), **step} for step in values["frontier"]]
        return {"policy": values.pop("policy"), "lambda": values.pop("weight"), **values}


def passes_of(rows: Sequence[Simulated]) -> list[tuple[Simulated, FirstPass]]:
    """The rows that learned question by question, with their first passes."""
    return [(row, row.first_pass) for row in rows if row.first_pass is not None]


@dataclass(frozen=True, kw_only=True)
class Seed:
    """Predictions of a policy under one seed, all folds together; matrices (n, arms)."""

    shares: Matrix
    quality: Matrix | None
    cost: Matrix | None
    runs: Sequence[Played]


@dataclass(frozen=True, kw_only=True)
class SeedGroup:
    """All seeds of one policy at one weight."""

    policy: str
    params: Mapping[str, Json]
    weight: float
    seeds: Sequence[Seed]


def by_seed(runs: Sequence[SimulationRun], results: Sequence[Played], *, table: LabelledTable) -> list[SeedGroup]:
    """The runs put together, in the order in which policies and weights were given."""
    groups: dict[tuple[str, float], tuple[SimulationRun, dict[int, list[Played]]]] = {}
    for run, one in zip(runs, results, strict=True):
        groups.setdefault((run.policy, run.weight), (run, {}))[1].setdefault(run.seed, []).append(one)
    return [
        SeedGroup(
            policy=run.policy,
            params=run.params,
            weight=run.weight,
            seeds=[_pooled(folds, rows=len(table.rows)) for folds in seeds.values()],
        )
        for run, seeds in groups.values()
    ]


def _pooled(folds: Sequence[Played], *, rows: int) -> Seed:
    places = np.concatenate([fold.test for fold in folds])
    assert len(places) == rows, "every row is predicted once"
    order = np.argsort(places)

    def joined(parts: Sequence[Matrix | None]) -> Matrix | None:
        there = [part for part in parts if part is not None]
        return np.concatenate(there)[order] if len(there) == len(parts) else None

    return Seed(
        shares=np.concatenate([fold.shares for fold in folds])[order],
        quality=joined([fold.quality for fold in folds]),
        cost=joined([fold.cost for fold in folds]),
        runs=folds,
    )


#: a frontier: (weight, where each seed stands)
Points = Sequence[tuple[float | None, Sequence[FrontierPoint]]]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Common scale of all rows: the judged table, the denominator, the line."""

    table: LabelledTable
    total: int
    line: MixtureLine
    #: the table that is learned, for what each arm would have earned while a policy learned
    learned: LabelledTable
    reward: RewardSettings
    #: the arm that a pass is compared with; None: the best fixed one
    incumbent: str | None = None
    #: what a pass may lose against it at most before `harmed` counts it
    harm: float = 0.05

    def point(self, shares: Matrix) -> FrontierPoint:
        """Point of these shares."""
        return point_of(shares, table=self.table, total=self.total)

    def rows(self, groups: Sequence[SeedGroup]) -> list[Simulated]:
        """One row per policy and weight."""
        stands = {(g.policy, g.weight): [self.point(seed.shares) for seed in g.seeds] for g in groups}
        rows = []
        for group in groups:
            whole = group.seeds[0].runs[0].full_information
            given: Points = [
                (None if whole else weight, stood)
                for (name, weight), stood in sorted(stands.items())
                if name == group.policy
            ]
            rows.append(self._learned(group, frontier=self._swept(group) or given))
        return rows

    def _learned(self, group: SeedGroup, *, frontier: Points) -> Simulated:
        played = [run for seed in group.seeds for run in seed.runs]
        whole = played[0].full_information
        passed = None if whole else self._passed(group)
        return self.row(
            group.policy,
            weight=None if whole else group.weight,
            shares=[seed.shares for seed in group.seeds],
            frontier=frontier,
            online_reward=None if passed is None else passed.reward,
            online_regret=None if passed is None else passed.oracle - passed.reward,
            first_pass=passed,
            seconds=Seconds(
                decision=_per_call([run.decisions for run in played]),
                update=_per_call([run.updates for run in played]),
                total=math.fsum(run.seconds for run in played),
            ),
            seeds=len(group.seeds),
            faults=sum(run.faults for run in played),
            refused=sum(run.refused for run in played),
            reason=next((run.reason for run in played if run.reason), None),
            full_information=whole,
            params=group.params,
        )

    def _passed(self, group: SeedGroup) -> FirstPass:
        return first_pass(
            [seed.runs for seed in group.seeds],
            arms=self.learned.arms,
            rewards=self._rewards(self.learned, weight=group.weight),
            incumbent=self.incumbent,
            harm=self.harm,
        )

    def _rewards(self, table: LabelledTable, *, weight: float, bounded: bool = True) -> Matrix:
        bounds = (self.reward.minimum, self.reward.maximum) if bounded else (-math.inf, math.inf)
        return rewards_of(table, weight=weight, price=self.reward.cost["steps"], bounds=bounds)

    def row(
        self, policy: str, *, weight: float | None, shares: Sequence[Matrix], frontier: Points, **more: Any
    ) -> Simulated:
        """The row of these shares, one matrix per seed."""
        points = [self.point(one) for one in shares]
        em, em_se = mean_and_error([point.em for point in points])
        steps, steps_se = mean_and_error([point.steps for point in points])
        above, above_se = mean_and_error([self.line.above(point) for point in points])
        best = self.line.above(self.point(self._one_hot(cheapest_right(self.table))))
        at, at_se = self._read(frontier)
        mean: Matrix = np.mean(shares, axis=0)
        return Simulated(
            policy=policy,
            weight=weight,
            em=em,
            em_se=em_se,
            steps=steps,
            steps_se=steps_se,
            above_line=above,
            above_line_se=above_se,
            arms=self._arms(mean),
            oracle_share=above / best if best > 0.0 else None,
            frontier=tuple(self._step(weight, stood) for weight, stood in frontier),
            above_line_at=at,
            above_line_at_se=at_se,
            by_dataset=self._by_dataset(mean),
            n=len(self.table.rows),
            total=self.total,
            **more,
        )

    def baselines(self, *, weights: Sequence[float]) -> list[Simulated]:
        """Rows without a learner: always one arm, uniform, half of the line each, the oracles."""
        count, arms = self.table.correct.shape
        rows = [
            self._plain(f"always-{arm}", np.eye(arms)[[column] * count]) for column, arm in enumerate(self.table.arms)
        ]
        rows.append(self._plain("uniform", np.full((count, arms), 1.0 / arms)))
        rows.append(self._halves())
        rows.append(self._plain("oracle", self._one_hot(cheapest_right(self.table))))

        def oracle(weight: float, *, bounded: bool) -> Matrix:
            rewards = self._rewards(self.table, weight=weight, bounded=bounded)
            return self._one_hot(greedy(rewards, cost=self.table.steps))

        # A frontier knows no bounds, for policies neither: clipped, all answers of one price would be alike.
        swept = [(weight, [self.point(oracle(weight, bounded=False))]) for weight in SWEEP]
        return rows + [
            self.row(
                "oracle-by-reward",
                weight=weight,
                shares=[oracle(weight, bounded=True)],
                frontier=swept,
                price=self._price(weight),
            )
            for weight in weights
        ]

    def _price(self, weight: float) -> Price:
        price, rows = self.reward.cost["steps"], self.learned.rows
        answers = ((arm, row.correct[arm], price * row.steps[arm], 1.0, 1.0) for row in rows for arm in row.correct)
        return price_of(means_of(answers), weight=weight)

    def _plain(self, name: str, shares: Matrix) -> Simulated:
        return self.row(name, weight=None, shares=[shares], frontier=[(None, [self.point(shares)])])

    def _halves(self) -> Simulated:
        """The middle of the line; its frontier are the two ends."""
        shares = np.zeros_like(self.table.correct)
        for arm in self.line.arms:
            shares[:, self.table.arms.index(arm)] += 0.5
        ends = [(None, [self.line.cheap]), (None, [self.line.dear])]
        return self.row("line", weight=None, shares=[shares], frontier=ends, between=self.line.arms)

    def _one_hot(self, choices: Any) -> Matrix:
        return one_hot(choices, arms=len(self.table.arms))

    def _swept(self, group: SeedGroup) -> Points:
        """From the quality and the cost that one learner expects; empty if it does not keep them apart."""
        heads = [(s.quality, s.cost) for s in group.seeds if s.quality is not None and s.cost is not None]
        if len(heads) < len(group.seeds):
            return []
        return [
            (weight, [self.point(self._one_hot(greedy(q - weight * c, cost=c))) for q, c in heads]) for weight in SWEEP
        ]

    def _step(self, weight: float | None, stood: Sequence[FrontierPoint]) -> Step:
        return Step(
            weight=weight,
            em=mean_and_error([point.em for point in stood])[0],
            steps=mean_and_error([point.steps for point in stood])[0],
            above_line=mean_and_error([self.line.above(point) for point in stood])[0],
        )

    def _read(self, points: Points) -> tuple[dict[str, float | None], dict[str, float | None]]:
        """EM above the line at the steps where frontiers are compared; None where a seed does not reach them."""
        at: dict[str, float | None] = {}
        error: dict[str, float | None] = {}
        for steps in STEPS_READ:
            seeds = [
                interpolated(frontier, steps=steps) for frontier in zip(*(stood for _, stood in points), strict=True)
            ]
            reached = [em - self.line.at(steps) for em in seeds if em is not None]
            key = f"{steps:g}"
            at[key], error[key] = mean_and_error(reached) if len(reached) == len(seeds) else (None, None)
        return at, error

    def _arms(self, shares: Matrix) -> dict[str, float]:
        return dict(zip(self.table.arms, map(float, shares.mean(axis=0)), strict=True))

    def _by_dataset(self, shares: Matrix) -> dict[str, Share]:
        names = np.array([name or "" for name in self.table.datasets])
        shares_of = {}
        for name in sorted(set(names) - {""}):
            mine = np.flatnonzero(names == name)
            shares_of[str(name)] = Share(
                n=len(mine),
                em=100.0 * float((shares[mine] * self.table.correct[mine]).sum()) / len(mine),
                steps=float((shares[mine] * self.table.steps[mine]).sum()) / len(mine),
                arms=self._arms(shares[mine]),
            )
        return shares_of


def _per_call(timed: Sequence[Timed]) -> float | None:
    calls = sum(one.calls for one in timed)
    return math.fsum(one.seconds for one in timed) / calls if calls else None
