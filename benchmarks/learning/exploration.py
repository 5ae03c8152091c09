"""How much should mba explore? Every candidate on every table, and the choice by the rule of docs/mba.md.

Tables: the routing table and the handbook's, where they are there, and four made worlds with features of their own.
The decisions and the learning are those of `simulate`, which are the live ones. Baselines: the setting until 0.2, the
best fixed arm, the oracle.
"""

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table as Printed

from benchmarks.drift import exchanged
from ragbandit.router.config.settings import PolicySettings, Settings
from ragbandit.router.encoders.feature_cache import embedded
from ragbandit.router.offline.simulation.frontier import rewards_of
from ragbandit.router.offline.simulation.run import Learning, SimulationData, SimulationRun
from ragbandit.router.offline.simulation.table import LabelledTable, read_table
from ragbandit.router.offline.types import Matrix
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.types import ArmName, FeatureRows, Json, TableRow

Vector = npt.NDArray[np.float64]

_ROOT = Path(__file__).parents[2]
ROUTING = _ROOT.parent / "shared" / "data" / "routing" / "flan_t5_xl_dev.jsonl"
HANDBOOK = _ROOT / "examples" / "handbook" / "table.jsonl"
#: where features are kept between runs
DATA = _ROOT / ".ragbandit"
#: questions of a made world that are learned, and that are held out
LEARNED, HELD_OUT = 1200, 400
#: the rule of docs/mba.md: what a candidate may lose, and what is as good as the best
MAY_LOSE, AS_GOOD = 0.01, 0.002


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One way to explore."""

    explore: float
    epsilon_min: float
    floor: float

    @property
    def params(self) -> dict[str, Json]:
        """Those of mba."""
        return {"explore": self.explore, "epsilon_min": self.epsilon_min}


TODAY = Candidate(explore=1.0, epsilon_min=0.02, floor=0.02)
CANDIDATES: tuple[Candidate, ...] = tuple(
    Candidate(explore=explore, epsilon_min=epsilon, floor=floor)
    for explore in (0.0, 0.1, 0.2, 0.35, 0.5, 1.0)
    for epsilon in (0.0, 0.02)
    for floor in (0.01, 0.02)
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """Questions as they are asked, then those held out; from `exchange` on two arms are exchanged."""

    table: LabelledTable
    features: FeatureRows
    learned: int
    exchange: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What one candidate earned on one stream, per question; NaN where there is no such part."""

    first: float
    final: float
    recovery: float


def _table(chances: Matrix, *, random: np.random.Generator, steps: Sequence[float]) -> LabelledTable:
    """Answers that are right by chance, with these probabilities (n, arms)."""
    arms = tuple(ArmName(f"arm_{number:02}") for number in range(chances.shape[1]))
    right = random.random(chances.shape) < chances
    rows = tuple(
        TableRow(
            id=f"made-{number}",
            question=f"question {number}",
            correct=dict(zip(arms, map(float, row), strict=True)),
            steps=dict(zip(arms, steps, strict=True)),
        )
        for number, row in enumerate(right)
    )
    return LabelledTable(rows=rows, arms=arms, datasets=(None,) * len(rows))


def _noise(random: np.random.Generator, *, count: int, size: int = 64) -> Matrix:
    return random.standard_normal((count, size))


def easy(seed: int) -> Stream:
    """Two kinds of question, plain to see; each has an arm that is right nine times in ten, and two that are not."""
    random, count = np.random.default_rng([seed, 11]), LEARNED + HELD_OUT
    kind = random.integers(2, size=count)
    features = _noise(random, count=count)
    features[:, 0] = np.where(kind == 0, 3.0, -3.0)
    chances = np.where(kind[:, None] == 0, [[0.3, 0.9, 0.6]], [[0.3, 0.6, 0.9]])
    return _stream(_table(chances, random=random, steps=(0.0, 1.0, 2.0)), features)


def hard(seed: int) -> Stream:
    """Three arms with nearly the same chances, which hang on 64 features by little."""
    random, count = np.random.default_rng([seed, 12]), LEARNED + HELD_OUT
    features = _noise(random, count=count)
    directions = random.standard_normal((3, features.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    chances = np.clip([[0.5, 0.6, 0.65]] + np.einsum("nd,kd->nk", features, directions) / 8, 0.0, 1.0)
    return _stream(_table(chances, random=random, steps=(0.0, 1.0, 2.0)), features)


def many(seed: int) -> Stream:
    """Twelve arms; three are good, each for a third of the questions, the others are right in three of ten."""
    random, count = np.random.default_rng([seed, 13]), LEARNED + HELD_OUT
    kind = random.integers(3, size=count)
    features = _noise(random, count=count)
    features[np.arange(count), kind] += 4.0
    chances = np.full((count, 12), 0.3)
    chances[:, [2, 6, 10]] = 0.5
    chances[np.arange(count), np.array([2, 6, 10])[kind]] = 0.85
    return _stream(_table(chances, random=random, steps=(1.0,) * 12), features)


def drifting(seed: int) -> Stream:
    """Half-way the best and the worst of three arms are exchanged; nothing is held out."""
    random, count = np.random.default_rng([seed, 14]), 2 * LEARNED
    features = _noise(random, count=count)
    directions = random.standard_normal((3, features.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    chances = np.clip([[0.35, 0.7, 0.7]] + np.einsum("nd,kd->nk", features, directions) / 4, 0.0, 1.0)
    table = _table(chances, random=random, steps=(0.0, 1.0, 2.0))
    order = np.argsort(_rewards(table).mean(axis=0))
    pair = table.arms[order[-1]], table.arms[order[0]]
    moved = exchanged(table, pair=pair, start=LEARNED)
    return Stream(table=moved, features=features.astype(np.float32), learned=count, exchange=LEARNED)


def _stream(table: LabelledTable, features: Matrix) -> Stream:
    return Stream(table=table, features=features.astype(np.float32), learned=LEARNED)


WORLDS: Mapping[str, Callable[[int], Stream]] = {"easy": easy, "hard": hard, "many arms": many, "drifting": drifting}


def _rewards(table: LabelledTable) -> Matrix:
    reward = Settings().reward
    bounds = (reward.minimum, reward.maximum)
    return rewards_of(table, weight=reward.weight, price=reward.cost["steps"], bounds=bounds)


def measured(stream: Stream, *, candidate: Candidate, seed: int) -> Measured:
    """A fresh policy's way through the stream, and its greedy choice on what is held out."""
    settings = Settings(policy=PolicySettings(floor=candidate.floor))
    world = SimulationData(table=stream.table, test=None, folds=2, settings=settings, features=stream.features)
    params = {"block": 256, **candidate.params}
    run = SimulationRun(policy="mba", params=params, weight=settings.reward.weight, seed=seed, fold=0)
    learning, rewards = Learning(run, world=world), _rewards(stream.table)
    worth = np.array([np.dot(learning.step(place).pmf, rewards[place]) for place in range(stream.learned)])
    cut = stream.exchange or stream.learned
    final = recovery = math.nan
    if stream.learned < len(rewards):
        drawn, _ = learning.predicted(np.arange(stream.learned, len(rewards)))
        scores = np.array([one.scores for one in drawn])
        best = rewards[np.arange(stream.learned, len(rewards)), scores.argmax(axis=1)]
        final = float(best.mean())
    if stream.exchange is not None:
        recovery = float(worth[cut:].mean())
    assert not learning.faults, learning.reason
    return Measured(first=float(worth[:cut].mean()), final=final, recovery=recovery)


def from_table(file: Path, *, orders: int, folds: int) -> list[Stream]:
    """The streams of a table: each order in folds, of which one is held out."""
    table, settings = read_table(file), Settings(data_dir=str(DATA))
    texts = [row.question for row in table.rows]
    features = embedded(texts, encoder=make_encoder(settings.encoder), folder=DATA / "cache" / "features")
    streams = []
    for seed in range(orders):
        order = np.random.default_rng(seed).permutation(len(table.rows))
        for fold in range(folds):
            mine = np.arange(len(order)) % folds == fold
            places = np.concatenate([order[~mine], order[mine]])
            rows = tuple(table.rows[place] for place in places)
            passed = replace(table, rows=rows, datasets=(None,) * len(rows))
            streams.append(Stream(table=passed, features=features[places], learned=int((~mine).sum())))
    return streams


def _mean(found: Sequence[Measured]) -> Measured:
    parts = [[getattr(one, name) for one in found] for name in ("first", "final", "recovery")]
    return Measured(**dict(zip(("first", "final", "recovery"), map(float, np.mean(parts, axis=1)), strict=True)))


Found = Mapping[str, Mapping[Candidate, Measured]]


def admitted(found: Found, *, candidate: Candidate) -> bool:
    """Whether a candidate loses at most MAY_LOSE, on any table, of what today's ends with and comes back to."""
    pairs = [(rows[candidate], rows[TODAY]) for rows in found.values()]
    lost = [today.final - one.final for one, today in pairs] + [today.recovery - one.recovery for one, today in pairs]
    return all(math.isnan(loss) or loss <= MAY_LOSE for loss in lost)


def chosen(found: Found) -> Candidate:
    """The candidate of the rule."""
    firsts = {
        candidate: float(np.mean([rows[candidate].first for rows in found.values()]))
        for candidate in next(iter(found.values()))
        if admitted(found, candidate=candidate)
    }
    enough = max(firsts.values()) - AS_GOOD
    return max(
        (candidate for candidate, first in firsts.items() if first >= enough),
        key=lambda one: (one.explore, one.epsilon_min, one.floor),
    )


def print_found(found: Found, *, streams: Mapping[str, Sequence[Stream]], console: Console) -> None:
    """A row per candidate, a column per table, and the choice."""
    columns = ("explore", "epsilon_min", "floor", *found, "mean first", "admitted")
    printed = Printed(
        *columns, title="mba: reward of the first pass / of the greedy choice held out, or after the drift"
    )
    for candidate in next(iter(found.values())):
        cells = []
        for rows in found.values():
            one = rows[candidate]
            cells.append(f"{one.first:.3f} / {one.recovery if math.isnan(one.final) else one.final:.3f}")
        first = np.mean([rows[candidate].first for rows in found.values()])
        own = (f"{candidate.explore:g}", f"{candidate.epsilon_min:g}", f"{candidate.floor:g}")
        printed.add_row(*own, *cells, f"{first:.4f}", "yes" if admitted(found, candidate=candidate) else "no")
    plain: dict[str, Callable[[Matrix], float]] = {
        "best fixed arm": lambda rewards: float(rewards.mean(axis=0).max()),
        "oracle": lambda rewards: float(rewards.max(axis=1).mean()),
    }
    for name, of in plain.items():
        means = [np.mean([of(_rewards(s.table)[: s.exchange or s.learned]) for s in streams[key]]) for key in found]
        printed.add_row(name, "", "", *(f"{mean:.3f}" for mean in means), f"{np.mean(means):.4f}", "")
    console.print(printed)
    console.print(f"by the rule of docs/mba.md: {chosen(found)}")


def main(arguments: Sequence[str] = ()) -> None:
    """Measure all candidates on all tables that are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="of the made worlds")
    parser.add_argument("--orders", type=int, default=2, help="of the tables, in 5 folds each")
    given = parser.parse_args(arguments)
    streams = {name: [make(seed) for seed in range(given.seeds)] for name, make in WORLDS.items()}
    for name, file in (("routing", ROUTING), ("handbook", HANDBOOK)):
        if file.exists():
            streams[name] = from_table(file, orders=given.orders, folds=5)
        else:
            print(f"{name}: no table at {file}, left out")
    found: dict[str, dict[Candidate, Measured]] = {}
    for name, own in streams.items():
        found[name] = {
            candidate: _mean([measured(one, candidate=candidate, seed=seed) for seed, one in enumerate(own)])
            for candidate in CANDIDATES
        }
        print(f"{name}: done", flush=True)
    print_found(found, streams=streams, console=Console(width=170))


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
