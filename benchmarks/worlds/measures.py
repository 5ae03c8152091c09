"""Figures of passes through a world, in reward per question, with errors by paired bootstrap.

A draw of the bootstrap draws questions of the table and seeds, each with replacement, and is the same for every policy,
way to begin and share of labels in a world: differences between two of them have errors of their own.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from benchmarks.worlds.passes import DEAREST, QUESTIONS, Judged, Task, World
from ragbandit.examples.handbook.learning_curve import prefixes, worst_prefix
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs.tables import table_query
from ragbandit.router.offline.passes import break_even, mean_and_error
from ragbandit.router.policies.context import ContextColumns
from ragbandit.shared.types import Indices, Matrix, Vector

#: questions after which rewards while learning are read: of a pass, labelled or not
READ: Final = (100, 300, 1000)
WHOLE, AFTER, CHEAPEST = "whole pass", "after", "cheapest right arm"
#: smallest gain of full information, or lead of the best arm, for a share in a world
WORTH: Final = 0.012
DRAWS: Final = 400
#: a block of a pass: the key of its figure, the questions before it, and those until its end
Block = tuple[str, int, int]
#: ends of blocks: of passes of up to 6,000 questions, and of longer ones
_THOUSANDS, _HALF_DECADES = (1000, 2000, 3000, 4000, 5000), (1000, 3000, 10_000, 30_000, 100_000)
#: questions of a block that has a figure, at least
_LEAST_BLOCK: Final = 100
_FOLDS, _NEIGHBOURS, _RIDGES = 10, (10, 30, 100), (1.0, 10.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """A figure and its draws, shape (DRAWS,)."""

    value: float
    draws: Vector

    @property
    def error(self) -> float:
        """Its standard error."""
        return float(self.draws.std(ddof=1))

    def __sub__(self, other: "Estimate") -> "Estimate":
        return Estimate(value=self.value - other.value, draws=self.draws - other.draws)

    def __truediv__(self, number: float) -> "Estimate":
        return Estimate(value=self.value / number, draws=self.draws / number)


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Mean over worlds; the worlds are fixed, so the error contains only passes and questions."""
    value = math.fsum(one.value for one in estimates) / len(estimates)
    return Estimate(value=value, draws=np.mean([one.draws for one in estimates], axis=0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """A policy's passes through a world, one per seed, begun in one way, with one share of labels."""

    world: str
    policy: str
    mode: str
    labelled: float
    #: against the best fixed arm: "100", "300", "1000" and blocks where the pass is so long, WHOLE, and AFTER, the
    #: greedy choice on the rest
    best: Mapping[str, Estimate]
    #: the same against the best arm of every question, by the chances; empty where they are not known
    choice: Mapping[str, Estimate]
    #: the same against the incumbent (cold: the best fixed arm)
    incumbent: Mapping[str, Estimate]
    #: against the incumbent, in the middle pass; None where it never is
    break_even: int | None
    #: least ratio to the incumbent's reward over prefixes of 100 questions or more, and the passes below 1 - harm
    worst_prefix: float | None
    harmed: int
    passes: int
    #: WHOLE against always the most expensive arm, and what always the best fixed arm earns more than that arm
    above_dearest: Estimate
    lead: float
    #: AFTER divided by the gain of full information; None if this gain is too small
    share: float | None
    #: the policy, always each arm, CHEAPEST -> (share right, its standard error over seeds, steps) on the rest
    answers: Mapping[str, tuple[float, float | None, float]]
    #: mean of a pass
    labels: float


def blocks_of(questions: int) -> list[Block]:
    """The blocks of passes of up to so many questions; none if passes are as short as by default."""
    if questions <= QUESTIONS:
        return []
    ends = _THOUSANDS if questions <= 6000 else _HALF_DECADES
    bounds = [0, *(end for end in ends if end < questions), questions]
    return [(f"{start + 1}-{end}", start, end) for start, end in pairwise(bounds)]


def measured(world: World, *, task: Task, passes: Sequence[Judged], possible: float) -> Measured:
    """What these passes, of one task with several seeds, come to. possible: gain of full information."""
    mode, blocks = task.mode, blocks_of(task.conditions.questions)
    rewards = world.rewards
    fixed, least = rewards[:, world.reference(mode)], 1.0 - Settings().policy.harm
    harmed = [float((ours - least * theirs).min()) < -1e-9 for ours, theirs in prefixes(passes, fixed=fixed)]
    figures = functools.partial(_figures, passes=passes, blocks=blocks, name=world.name)
    best = figures(rewards, other=rewards[:, world.best])
    beside_dearest = figures(rewards, other=rewards[:, world.dearest])
    choice = {} if world.worth is None else figures(world.worth, other=world.worth.max(axis=1))
    return Measured(
        world=world.name,
        policy=task.policy,
        mode=mode,
        labelled=task.conditions.labelled,
        best=best,
        choice=choice,
        incumbent=beside_dearest if mode == DEAREST else best,
        break_even=break_even(passes, fixed=fixed)[0],
        worst_prefix=worst_prefix(passes, fixed=fixed),
        harmed=sum(harmed),
        passes=len(harmed),
        above_dearest=beside_dearest[WHOLE],
        lead=float(rewards[:, world.best].mean() - rewards[:, world.dearest].mean()),
        share=best[AFTER].value / possible if possible > WORTH else None,
        answers=_answers(world, policy=task.policy, passes=passes),
        labels=math.fsum(one.labels for one in passes) / len(passes),
    )


def _answers(world: World, *, policy: str, passes: Sequence[Judged]) -> dict[str, tuple[float, float | None, float]]:
    """All ways are judged on the same questions."""
    right, steps, arms = world.table.correct, world.table.steps, world.table.arms
    cheapest = np.where(right == right.max(axis=1, keepdims=True), steps, np.inf).argmin(axis=1)
    every = np.eye(len(arms))
    ways = {f"always {arm}": [every[[place] * len(one.test)] for one in passes] for place, arm in enumerate(arms)}
    ways |= {CHEAPEST: [every[cheapest[one.test]] for one in passes], policy: [one.shares for one in passes]}
    answers = {}
    for name, shares in ways.items():
        pairs = [(share, one.test) for share, one in zip(shares, passes, strict=True)]
        means, of_steps = ([float((s * of[test]).sum()) / len(s) for s, test in pairs] for of in (right, steps))
        answers[name] = (*mean_and_error(means), mean_and_error(of_steps)[0])
    return answers


def _figures(
    rewards: Matrix, *, other: Vector, passes: Sequence[Judged], blocks: Sequence[Block], name: str
) -> dict[str, Estimate]:
    """Rewards above another choice's rewards. rewards: shape (n, arms); other: rewards of this choice, shape (n,)."""
    length = min(len(one.order) for one in passes)
    above = rewards - other[:, None]
    spans = [*((str(count), 0, count) for count in READ if count <= length), (WHOLE, 0, length)]
    spans += [block for block in blocks if block[1] + _LEAST_BLOCK <= length]
    estimate = functools.partial(_estimate, rows=len(rewards), name=name)
    figures = {
        key: estimate([(one.order[start:end], above[one.order, one.drawn][start:end]) for one in passes])
        for key, start, end in spans
    }
    return figures | {AFTER: estimate([(one.test, (one.shares * above[one.test]).sum(axis=1)) for one in passes])}


def _estimate(seeds: Sequence[tuple[Indices, Vector]], *, rows: int, name: str) -> Estimate:
    """The mean of values that belong to rows of the table, and its draws. A row may have several values."""
    values = np.array([np.bincount(places, weights=ours, minlength=rows) for places, ours in seeds])
    there = np.array([np.bincount(places, minlength=rows) for places, _ in seeds], dtype=np.float64)
    by_seed, by_row = _counts(len(seeds), rows=rows, name=name)
    draws = (by_seed @ values * by_row).sum(axis=1) / (by_seed @ there * by_row).sum(axis=1)
    return Estimate(value=float(values.sum() / there.sum()), draws=draws)


@functools.lru_cache(maxsize=4)
def _counts(seeds: int, *, rows: int, name: str) -> tuple[Matrix, Matrix]:
    """How often each seed and each row is drawn, shapes (DRAWS, seeds) and (DRAWS, rows)."""
    random = np.random.default_rng([*name.encode()])
    drawn = (random.multinomial(count, np.full(count, 1.0 / count), size=DRAWS) for count in (seeds, rows))
    by_seed, by_row = (counts.astype(np.float64) for counts in drawn)
    return by_seed, by_row


def possible_gain(world: World) -> float:
    """What the better of kernel ridge and nearest neighbours earns more than the best fixed arm, fitted to all outcomes
    of nine tenths of the rows, on the tenth: ten times. In a long made world, the best arm of every question.
    """
    if world.repeats and world.truth is not None:
        return world.truth
    assert world.features is not None
    rewards, rows = world.rewards, len(world.table.rows)
    inputs = np.asarray(world.features, dtype=np.float64) / math.sqrt(world.features.shape[1])
    if world.context:
        columns = ContextColumns(Settings.model_validate({"context": world.context}).context)
        queries = [table_query(row) for row in world.table.rows]
        for query in queries:
            columns.learn(query)
        inputs = np.hstack([inputs, np.array([columns.of(query) for query in queries])])
    squares = (inputs**2).sum(axis=1)
    apart = np.maximum(squares[:, None] + squares[None, :] - 2.0 * inputs @ inputs.T, 0.0)
    kernel = np.exp(-apart / np.median(apart))
    ways: dict[str, Callable[[Indices, Indices], Matrix]] = {
        **{f"ridge {r:g}": functools.partial(_ridge, kernel, rewards, r) for r in _RIDGES},
        **{f"nearest {k}": functools.partial(_nearest, apart, rewards, k) for k in _NEIGHBOURS},
    }
    earned = dict.fromkeys(ways, 0.0)
    fold = np.random.default_rng(7).permutation(rows) % _FOLDS
    for number in range(_FOLDS):
        train, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        for name, values in ways.items():
            earned[name] += float(rewards[test, values(train, test).argmax(axis=1)].sum())
    return max(earned.values()) / rows - float(rewards[:, world.best].mean())


def _ridge(kernel: Matrix, rewards: Matrix, ridge: float, train: Indices, test: Indices) -> Matrix:
    means = rewards[train].mean(axis=0)
    inner = kernel[np.ix_(train, train)] + ridge * np.eye(len(train))
    weights: Matrix = np.linalg.solve(inner, rewards[train] - means)
    values: Matrix = means + kernel[np.ix_(test, train)] @ weights
    return values


def _nearest(apart: Matrix, rewards: Matrix, count: int, train: Indices, test: Indices) -> Matrix:
    count = min(count, len(train) - 1)
    near = np.argpartition(apart[np.ix_(test, train)], count, axis=1)[:, :count]
    values: Matrix = rewards[train][near].mean(axis=1)
    return values
