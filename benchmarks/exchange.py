"""An exchanged model: FLAN-T5-XL answers first, Llama-3.1-8B after, the same arms and questions.

    python -m benchmarks.exchange --seeds 8

A policy learns 3,000 decisions of the one, then 1,500 of the other. It goes on and nobody notices (`on`, its test out
of reach), goes on with its test (`noticed`), is told (`declared`), or is a fresh one (`fresh`). The gain is the greedy
reward on the other 1,500 questions, less that of the policy before the exchange; `least` is the smallest share of what
the policy before would have earned, in expectation, over any first 100 or more questions: of the mean over seeds, and
of the worst seed.
"""

import argparse
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table as Printed

from ragbandit.router.config.sections import EncoderSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.feature_cache import embedded
from ragbandit.router.offline.logs.tables import LabelledTable, read_table
from ragbandit.router.offline.processes import cores
from ragbandit.router.offline.simulation.measure import rewards_of
from ragbandit.router.offline.simulation.run import Learning, Places, SimulationData, SimulationRun
from ragbandit.router.offline.types import Matrix, Vector
from ragbandit.router.policies.base import restart, restored
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.types import FeatureRows

TABLES = Path(__file__).parents[2] / "shared" / "data" / "routing"
DATA = Path(__file__).parents[1] / ".ragbandit"
WEIGHT, BEFORE, AFTER, PREFIX = 0.05, 3000, 1500, 100
WAYS = ("on", "noticed", "declared", "fresh")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The same questions, answered by the model before and by the one after."""

    before: LabelledTable
    after: LabelledTable
    features: FeatureRows


@dataclass(frozen=True, kw_only=True)
class Way:
    """What came of one way: gain over the policy before; expected reward of each decision; decisions of its alarms."""

    gain: float
    worth: Vector
    usual: Vector
    alarms: tuple[int, ...]


def pair() -> Pair:
    """The tables; what FLAN-T5-XL answers under no arm is not in its own, and its arms cost what Llama's do."""
    after, flan = read_table(TABLES / "llama31_8b_dev.jsonl"), read_table(TABLES / "flan_t5_xl_dev.jsonl")
    known = {" ".join(row.question.split()): row.correct for row in flan.rows}
    wrong = dict.fromkeys(after.arms, 0.0)
    rows = tuple(replace(row, correct=known.get(" ".join(row.question.split()), wrong)) for row in after.rows)
    encoder = make_encoder(EncoderSettings())
    features = embedded([row.question for row in rows], encoder=encoder, folder=DATA / "cache" / "features")
    return Pair(before=replace(after, rows=rows), after=after, features=features)


def learner(world: Pair, table: LabelledTable, *, seed: int, alarm: float | None) -> Learning:
    """A fresh policy that learns this table."""
    data = SimulationData(table=table, test=None, folds=2, settings=Settings(), features=world.features)
    params = {} if alarm is None else {"alarm": alarm}
    run = SimulationRun(policy="mba", params=params, weight=WEIGHT, seed=seed, fold=int(table is world.after))
    return Learning(run, world=data)


def passed(learning: Learning, places: Places, *, rewards: Matrix) -> tuple[Vector, tuple[int, ...]]:
    """Expected reward of each decision, and where alarms were raised."""
    worth, alarms, rung = np.empty(len(places)), [], sum(learning.policy.alarms.values())  # type: ignore[attr-defined]
    for number, place in enumerate(places):
        worth[number] = np.dot(learning.step(int(place)).pmf, rewards[place])
        if (now := sum(learning.policy.alarms.values())) > rung:  # type: ignore[attr-defined]
            rung = now
            alarms.append(number)
    return worth, tuple(alarms)


def greedy(learning: Learning, places: Places, *, rewards: Matrix) -> float:
    """Mean reward of the arm with the best score."""
    drawn = learning.predicted(places)
    best = [int(np.argmax(one.scores)) for one in drawn if one.scores is not None]
    return float(rewards[places, best].mean())


def ways(seed: int, *, world: Pair) -> tuple[dict[str, Way], int]:
    """Every way of one seed, and the alarms before the exchange."""
    random = np.random.default_rng([seed, 31])
    first, order = random.permutation(len(world.before.rows))[:BEFORE], random.permutation(len(world.after.rows))
    asked, rest = order[:AFTER], order[AFTER:]
    old, new = (rewards_of(t, weight=WEIGHT, price=1.0, bounds=(-1.0, 1.0)) for t in (world.before, world.after))
    found: dict[str, Way] = {}
    rung: tuple[int, ...] = ()
    for alarm in (1e18, None):
        grown = learner(world, world.before, seed=seed, alarm=alarm)
        rung = passed(grown, first, rewards=old)[1]
        state = grown.policy.state()
        former = learner(world, world.after, seed=seed, alarm=alarm)
        restored(former.policy, *state)
        base = greedy(former, rest, rewards=new)
        # what it would go on to earn: a decision's pmf is read, and nothing is learned
        usual = np.array([np.dot(d.pmf, new[p]) for d, p in zip(former.predicted(asked), asked, strict=True)])
        for way in ("on",) if alarm else ("noticed", "declared", "fresh"):
            learning = learner(world, world.after, seed=seed, alarm=alarm)
            if way != "fresh":
                restored(learning.policy, *state)
            for arm in world.after.arms if way == "declared" else ():
                restart(learning.policy, arm)
            worth, alarms = passed(learning, asked, rewards=new)
            gain = greedy(learning, rest, rewards=new) - base
            found[way] = Way(gain=gain, worth=worth, usual=usual, alarms=alarms)
    return found, len(rung)


def least(some: Sequence[Way]) -> float:
    """The smallest share of what the policy before would have earned, over first PREFIX or more decisions."""
    worth, usual = (np.cumsum(np.mean([getattr(one, name) for one in some], axis=0)) for name in ("worth", "usual"))
    return float((worth / usual)[PREFIX - 1 :].min())


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exchange", description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=cores())
    asked = parser.parse_args(arguments)
    with ProcessPoolExecutor(asked.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(partial(ways, world=pair()), range(asked.seeds)))
    title = f"FLAN-T5-XL, then Llama-3.1-8B: {AFTER:,} questions after the exchange, {asked.seeds} seeds"
    printed = Printed(
        "way", "gain, thousandths", "while learning", "least, mean", "least, worst", "alarms", title=title
    )
    for way in WAYS:
        some = [found[way] for found, _ in results]
        gains = 1000.0 * np.array([one.gain for one in some])
        error = gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
        earned = 1000.0 * np.mean([(one.worth - one.usual).mean() for one in some])
        worst = min(least([one]) for one in some)
        rang = ", ".join(str(one.alarms[0]) if one.alarms else "-" for one in some)
        printed.add_row(
            way, f"{gains.mean():+.1f} ± {error:.1f}", f"{earned:+.1f}", f"{least(some):.3f}", f"{worst:.3f}", rang
        )
    Console(width=140).print(printed)
    print(f"alarms before the exchange, {BEFORE:,} questions each: {[count for _, count in results]}")


if __name__ == "__main__":
    main(sys.argv[1:])
