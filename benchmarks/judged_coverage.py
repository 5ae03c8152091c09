"""Coverage where most rewards are completed by a judge (`replay --judged`): how often the intervals hold the truth.

The made worlds of benchmarks/coverage.py; a judge scores the answers, with a bias towards one arm, and people rate a
few, in several ways. Beside the completed rewards, on the same logs: the ratings alone (L = 0), what people would say
of the judge's scores without the correction by ratings, and how often a warning came. 95 % intervals.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.coverage.methods import Found, Rows, World, fixed, worlds
from ragbandit.router.offline.estimation.rated_rewards import Completed, Pricing, Ratings, completed
from ragbandit.router.offline.types import Vector

COUNTS = (500, 2_000, 10_000)
FOLDS, ARMS = 5, 3
#: what the judge gives the first arm too much
BIAS = 0.15
#: intervals that the product prints
KINDS = ("Cressie-Read, DR", "Cressie-Read, DR less logged", "Cressie-Read, two candidates")


@dataclass(frozen=True, kw_only=True)
class Way:
    """How rows come to be rated and judged."""

    name: str
    #: mean chance of a rating, and with which the judge samples a row
    rate: float = 0.1
    share: float = 1.0
    #: the chance of a rating follows the score and the arm; or, hidden, the quality itself
    by_score: bool = False
    by_quality: bool = False
    #: the log tells the chance
    told: bool = False


WAYS = (
    Way(name="one in ten, by chance"),
    Way(name="by score and arm, chances told", by_score=True, told=True),
    Way(name="by score and arm, not told", by_score=True),
    Way(name="judge samples 3 in 10", share=0.3),
    Way(name="3 in 100, by chance", rate=0.03),
)
#: what no log tells: here the intervals miss, and a warning comes
HIDDEN = Way(name="by quality, not told", by_quality=True)


def made(world: World, way: Way, *, count: int, seed: int, judge_weight: float | None = None) -> tuple[Rows, Completed]:
    """A log of this world with rewards completed, and what is said of it."""
    rows, random = world.log(count, seed=seed), np.random.default_rng([seed, 99])
    quality = (rows.reward > (0.0 if world.rewards[0] == 0.0 else -1e-9)).astype(np.float64)
    score = _score(quality, rows=rows, random=random)
    chance = np.full(count, way.rate)
    if way.by_score:
        chance = np.minimum(way.rate * (0.4 + 1.2 * score) * np.array([1.5, 1.0, 0.5])[rows.action], 1.0)
    if way.by_quality:
        chance = way.rate * (0.5 + 1.5 * quality)
    rated, sampled = random.random(count) < chance, random.random(count) < way.share
    rated[: 2 * FOLDS] = True  # a log without any is refused
    if way.told:
        chance[: 2 * FOLDS] = 1.0
    unknown = np.full(count, np.nan)
    found = completed(
        Ratings(
            arm=rows.action,
            rated=rated,
            quality=np.where(rated, quality, 0.0),
            score=np.where(sampled, score, np.nan),
            score_chance=np.full(count, way.share),
            rating_chance=chance if way.told else unknown,
        ),
        pricing=Pricing(weight=np.ones(count), cost=quality - rows.reward, minimum=-10.0, maximum=10.0),
        arms=ARMS,
        folds_of_rows=np.arange(count) % FOLDS,
        judge_weight=judge_weight,
    )
    return replace(rows, reward=found.reward, rating_weight=found.facts.largest), found


def _score(quality: Vector, *, rows: Rows, random: Any) -> Vector:
    logit = (2.0 * quality - 1.0) + random.standard_normal(len(quality))
    return np.asarray(np.clip(1.0 / (1.0 + np.exp(-logit)) + BIAS * (rows.action == 0), 0.0, 1.0))


def shares(number: int, *, way: Way, count: int, seeds: Sequence[int]) -> Mapping[str, list[tuple[bool, float]]]:
    """(holds the truth, width) in every run of world `number`; "warned": (a warning came, 0)."""
    world, found = worlds()[number], dict[str, list[tuple[bool, float]]]()
    for seed in seeds:
        told: dict[str, Found] = {}
        rows, all_of_it = made(world, way, count=count, seed=seed)
        told[""] = fixed(world, rows)
        told[", ratings alone"] = fixed(world, made(world, way, count=count, seed=seed, judge_weight=0.0)[0])
        pricing = rows.reward - all_of_it.quality  # what the cost takes off, whatever the quality
        told[", judge uncorrected"] = fixed(world, replace(rows, reward=all_of_it.judged + pricing, rating_weight=1.0))
        for ends, intervals in told.items():
            for kind in KINDS:
                (low, high), truth = intervals[kind]
                found.setdefault(kind + ends, []).append((low <= truth <= high, high - low))
        found.setdefault("warned", []).append((all_of_it.facts.selected, 0.0))
    return found


def main(arguments: Sequence[str] = ()) -> None:
    """Print a table for every way: the least and the greatest coverage over the worlds, and the mean width."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judged_coverage", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="logs of every world, way and length")
    asked = parser.parse_args(list(arguments))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console = Console(width=130)
    for way in (*WAYS, HIDDEN):
        table = Table("interval", *(f"{count:,} rows" for count in COUNTS), title=f"rated {way.name}")
        columns = [
            [shares(number, way=way, count=count, seeds=range(asked.runs)) for number in range(len(worlds()))]
            for count in COUNTS
        ]
        for kind in columns[0][0]:
            cells = []
            for column in columns:
                values = np.array([np.mean(np.array(one[kind]), axis=0) for one in column])
                cells.append(f"{values[:, 0].min():.2f} to {values[:, 0].max():.2f} / {values[:, 1].mean():.3f}")
            table.add_row(kind, *cells)
        console.print(table)
    console.print(f"least and greatest coverage over {len(worlds())} worlds / mean width, {asked.runs} runs each")


if __name__ == "__main__":
    main(sys.argv[1:])
