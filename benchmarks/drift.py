"""Half-way through a stream two arms exchange what they are worth: how many decisions until a policy is back?

Two streams: a made world that runs everywhere, and the papers' routing table, passed through several times, where it
lies beside the checkout. The decisions and the learning are those of `simulate`, which are the live ones.

Baselines: the same policy where the arms were exchanged from the start (what it has to come back to), and the same
policy started anew at the exchange (what forgetting everything at once would do, if somebody told it when).
docs/drift.md says how the numbers are made.
"""

import argparse
import itertools
import math
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table as Printed

from ragbandit.router.cli.store import parse_policies
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.feature_cache import embedded
from ragbandit.router.offline.charts import check_png
from ragbandit.router.offline.logs.tables import LabelledTable, read_table
from ragbandit.router.offline.processes import cores
from ragbandit.router.offline.simulation.measure import rewards_of
from ragbandit.router.offline.simulation.run import Learning, SimulationData, SimulationRun
from ragbandit.router.offline.types import Matrix
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.draw import with_floor
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.types import ArmName, FeatureRows, Json, TableRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Vector = npt.NDArray[np.float64]

TABLE = Path(__file__).parents[2] / "shared" / "data" / "routing" / "flan_t5_xl_dev.jsonl"
#: where features of the table are kept between runs
DATA = Path(__file__).parents[1] / ".ragbandit"
#: with default params; linucb forgets nothing and is there for contrast
NAMES = ("mba", "vw", "linucb")
#: decisions in a moving mean, and in the level before the exchange
WINDOW, BEFORE = 100, 500
#: of the way from the level of a policy that learns nothing more to the reference
HALF, BACK = 0.5, 0.95
#: Okabe and Ito's palette
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_GREY = "#777777"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """Questions in the order in which they are asked; two arms are exchanged from the middle on."""

    table: LabelledTable
    #: shape (n, d)
    features: FeatureRows
    #: names of the arms that are exchanged
    pair: tuple[ArmName, ArmName]

    @property
    def middle(self) -> int:
        """The first decision after the exchange."""
        return len(self.table.rows) // 2


class Source(Protocol):
    """Source of streams, one per seed."""

    @property
    def name(self) -> str:
        """For the report."""
        ...

    def stream(self, seed: int) -> Stream:
        """The stream of a seed."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A made world: P(right) of arm k is clip(b_k + w_k . x / 4, 0, 1), x standard normal, w_k of length 1.

    The first arm has b = 0.35 and takes no step. All others have b = 0.7 and arm k takes k steps: on average the
    second arm is the best, but not for this question or that.
    """

    count: int = 6000
    arms: int = 3
    size: int = 64
    #: exchange the two best arms instead of the best and the worst: then hardly any mean moves
    quiet: bool = False

    @property
    def name(self) -> str:
        """Its content in words."""
        return f"made world, {self.arms} arms, {self.count:,} questions"

    def stream(self, seed: int) -> Stream:
        """Answers are right or wrong by chance, with these probabilities."""
        random = np.random.default_rng([seed, 1])
        directions = random.standard_normal((self.arms, self.size))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        features = random.standard_normal((self.count, self.size)).astype(np.float32)
        means = np.where(np.arange(self.arms) == 0, 0.35, 0.7)
        chances = np.clip(means + np.einsum("nd,kd->nk", features, directions) / 4, 0.0, 1.0)
        right = random.random(chances.shape) < chances
        names = tuple(ArmName(f"arm_{number}") for number in range(self.arms))
        steps = {name: float(number) for number, name in enumerate(names)}
        rows = tuple(
            TableRow(
                id=f"made-{number}",
                question=f"question {number}",
                correct=dict(zip(names, map(float, row), strict=True)),
                steps=steps,
            )
            for number, row in enumerate(right)
        )
        return _stream(rows, arms=names, features=features, quiet=self.quiet)


@dataclass(frozen=True, kw_only=True, slots=True)
class Passes:
    """A routing table, every pass in another order. From the second pass on a policy has met every question."""

    table: LabelledTable = field(repr=False)
    features: FeatureRows = field(repr=False)
    passes: int = 4
    quiet: bool = False

    @property
    def name(self) -> str:
        """Its content in words."""
        return f"routing table, {self.passes} passes of {len(self.table.rows):,} questions"

    def stream(self, seed: int) -> Stream:
        """A row's id tells the pass, so that every pass draws otherwise."""
        random = np.random.default_rng([seed, 2])
        orders = [random.permutation(len(self.table.rows)) for _ in range(self.passes)]
        rows = tuple(
            replace(self.table.rows[place], id=f"{self.table.rows[place].id}/{number}")
            for number, order in enumerate(orders)
            for place in order
        )
        features = self.features[np.concatenate(orders)]
        return _stream(rows, arms=self.table.arms, features=features, quiet=self.quiet)


def _stream(rows: tuple[TableRow, ...], *, arms: tuple[ArmName, ...], features: FeatureRows, quiet: bool) -> Stream:
    table = LabelledTable(rows=rows, arms=arms)
    order = np.argsort(_rewards(table).mean(axis=0))
    pair = arms[order[-1]], arms[order[-2 if quiet else 0]]
    return Stream(table=table, features=features, pair=pair)


def exchanged(table: LabelledTable, *, pair: tuple[ArmName, ArmName], start: int) -> LabelledTable:
    """The table with the outcomes of two arms, quality and steps, exchanged from row `start` on."""
    one, other = pair

    def turned(row: TableRow) -> TableRow:
        correct = {**row.correct, one: row.correct[other], other: row.correct[one]}
        steps = {**row.steps, one: row.steps[other], other: row.steps[one]}
        return replace(row, correct=correct, steps=steps)

    rows = table.rows[:start] + tuple(turned(row) for row in table.rows[start:])
    return replace(table, rows=rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lived:
    """Results of a policy."""

    #: reward of each decision, in expectation over the draw, floor included, shape (n,)
    worth: Vector
    #: the decisions after which an arm was started again, for policies that have alarms
    alarms: tuple[int, ...]
    #: mean reward of the second half if it had learned nothing more from the middle on
    frozen: float


def _rewards(table: LabelledTable) -> Matrix:
    """Rewards of every arm, shape (n, arms), by the service's default settings."""
    reward = Settings().reward
    bounds = (reward.minimum, reward.maximum)
    return rewards_of(table, weight=reward.weight, price=reward.cost["steps"], bounds=bounds)


def life(table: LabelledTable, *, features: FeatureRows, policy: str, params: Mapping[str, Json], seed: int) -> Lived:
    """A fresh policy's way through these rows, in their order."""
    settings = Settings()
    world = SimulationData(table=table, test=None, folds=2, settings=settings, features=features)
    run = SimulationRun(policy=policy, params=params, weight=settings.reward.weight, seed=seed, fold=0)
    learning, rewards = Learning(run, world=world), _rewards(table)
    count, middle = len(rewards), len(rewards) // 2
    worth, alarms, rung, frozen = np.empty(count), [], 0, 0.0
    for place in range(count):
        if place == middle:
            drawn = learning.predicted(np.arange(middle, count))
            pmfs = np.array([with_floor(one.pmf, floor=settings.policy.floor_of(len(one.pmf))) for one in drawn])
            frozen = float((pmfs * rewards[middle:]).sum() / len(pmfs))
        worth[place] = np.dot(learning.step(place).pmf, rewards[place])
        known: Mapping[str, int] = getattr(learning.policy, "alarms", {})
        if sum(known.values()) > rung:
            rung = sum(known.values())
            alarms.append(place)
    assert not learning.faults, learning.reason
    assert not learning.refused, learning.reason
    return Lived(worth=worth, alarms=tuple(alarms), frozen=frozen)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lives:
    """One policy on one stream, and its two baselines."""

    #: the stream as it is
    drifted: Lived
    #: the arms exchanged from the start
    reference: Lived
    #: a fresh policy on the second half, shape (n / 2,)
    anew: Vector

    @property
    def middle(self) -> int:
        """The first decision after the exchange."""
        return len(self.drifted.worth) - len(self.anew)

    @property
    def drop(self) -> float:
        """Cost of the exchange per decision while nothing is learned from it."""
        return float(self.reference.worth[self.middle :].mean()) - self.drifted.frozen

    def gap(self, *, anew: bool = False) -> Vector:
        """Reference less this policy after the exchange (or less the one started anew), question by question.

        The same questions on both sides: how hard they are falls out.
        """
        ours = self.anew if anew else self.drifted.worth[self.middle :]
        return self.reference.worth[self.middle :] - ours

    def reached(self, share: float, *, anew: bool = False) -> int | None:
        """Decisions after the exchange until the moving mean is back by this share of the drop; None: not in this run.

        The moving mean looks back: it is WINDOW decisions at the least.
        """
        found = np.flatnonzero(moving_mean(self.gap(anew=anew)) <= (1.0 - share) * self.drop)
        return int(found[0]) + WINDOW if len(found) else None

    def lost(self, *, anew: bool = False) -> float:
        """Reward lost after the exchange, in decisions at the full drop; NaN for a policy that the exchange spares."""
        return float(self.gap(anew=anew).sum()) / self.drop if self.drop > 0.0 else math.nan


def moving_mean(values: Vector) -> Vector:
    """Over WINDOW values, shape (n - WINDOW + 1,); the first one is that of the first WINDOW values."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    means: Vector = (sums[WINDOW:] - sums[:-WINDOW]) / WINDOW
    return means


def lives(source: Source, policy: str, params: Mapping[str, Json], seed: int) -> Lives:
    """Three lives of a policy. A process of its own may be asked for them."""
    stream = source.stream(seed)
    table, features, middle = stream.table, stream.features, stream.middle
    after = exchanged(table, pair=stream.pair, start=0)
    rest = replace(after, rows=after.rows[middle:])
    drifted = exchanged(table, pair=stream.pair, start=middle)
    return Lives(
        drifted=life(drifted, features=features, policy=policy, params=params, seed=seed),
        reference=life(after, features=features, policy=policy, params=params, seed=seed),
        anew=life(rest, features=features[middle:], policy=policy, params=params, seed=seed).worth,
    )


#: (source's name, policy) -> its lives, one per seed
Found = Mapping[tuple[str, str], Sequence[Lives]]


def measured(sources: Sequence[Source], *, policies: Mapping[str, Mapping[str, Json]], seeds: int) -> Found:
    """Every policy on every source's streams, on all cores."""
    keys = [(source, name) for source in sources for name in policies]
    # Spawned, not forked: the encoder has started threads here.
    with ProcessPoolExecutor(cores(), mp_context=multiprocessing.get_context("spawn")) as pool:
        asked = {
            (source.name, name): [pool.submit(lives, source, name, policies[name], seed) for seed in range(seeds)]
            for source, name in keys
        }
        return {key: [one.result() for one in futures] for key, futures in asked.items()}


def print_found(found: Found, *, console: Console) -> None:
    """A table per source, and what its columns are."""
    for source in dict.fromkeys(name for name, _ in found):
        rows = {policy: one for (name, policy), one in found.items() if name == source}
        seeds = len(next(iter(rows.values())))
        columns = ("policy", "before", "drop to", "reference", "after", "half-way back", f"{BACK:.0%} back", "lost")
        title = f"drift: {source}, two arms exchanged half-way; seeds: {seeds}"
        printed = Printed(*columns, "anew", "alarms", title=title)
        for policy, one in rows.items():
            printed.add_row(policy, *_cells(one))
        console.print(printed)
    console.print(
        "before, drop to, reference, after: mean reward per decision up to the exchange; then, if nothing more were "
        "learned; then, of the same policy where the arms had been exchanged from the start; then, as it was\n"
        f"half-way back, {BACK:.0%} back: decisions until the mean of the last {WINDOW} has gained that share of the "
        "drop: median (least to most)\n"
        "lost, anew: reward missing against the reference, in decisions at the full drop; the same of a policy started "
        "anew at the exchange\n"
        "alarms: per stream, after the exchange / before"
    )


def _cells(found: Sequence[Lives]) -> list[str]:
    middle, end = found[0].middle, len(found[0].anew)
    late = np.mean([sum(place >= middle for place in one.drifted.alarms) for one in found])
    early = np.mean([sum(place < middle for place in one.drifted.alarms) for one in found])
    return [
        f"{np.mean([one.drifted.worth[max(0, middle - BEFORE) : middle].mean() for one in found]):.3f}",
        f"{np.mean([one.drifted.frozen for one in found]):.3f}",
        f"{np.mean([one.reference.worth[middle:].mean() for one in found]):.3f}",
        f"{np.mean([one.drifted.worth[middle:].mean() for one in found]):.3f}",
        _spread([one.reached(HALF) for one in found], end=end),
        _spread([one.reached(BACK) for one in found], end=end),
        f"{np.mean([one.lost() for one in found]):,.0f}",
        f"{np.mean([one.lost(anew=True) for one in found]):,.0f}",
        f"{late:.1f} / {early:.1f}",
    ]


def _spread(values: Sequence[int | None], *, end: int) -> str:
    """Median and range. None is later than the end: it has no mean, but a median."""
    known = sorted(end + 1 if value is None else value for value in values)
    low, middle, high = (
        f">{end:,}" if value > end else f"{value:,}" for value in (known[0], known[len(known) // 2], known[-1])
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def plot(found: Found, *, path: str) -> None:
    """Reward missing against the reference around the exchange, mean over seeds, one picture per source, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sources = list(dict.fromkeys(name for name, _ in found))
    figure = Figure(figsize=(6.0 * len(sources), 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, source in zip(figure.subplots(1, len(sources), squeeze=False)[0], sources, strict=True):
        axes.axhline(0.0, color=_GREY, linewidth=0.8)
        axes.axvline(0.0, color=_GREY, linewidth=0.8)
        rows = {policy: one for (name, policy), one in found.items() if name == source}
        for (policy, one), colour in zip(rows.items(), itertools.cycle(_COLOURS), strict=False):
            _draw(axes, one, name=policy, colour=colour)
        axes.set_title(source, loc="left", size=10)
        axes.set_xlabel(f"decisions after the exchange (mean of the last {WINDOW})")
        axes.set_ylabel("reward less the reference")
        axes.legend(loc="lower right", title="dotted: started anew")
    figure.savefig(path, format="png")


def _draw(axes: "Axes", found: Sequence[Lives], *, name: str, colour: str) -> None:
    middle, end = found[0].middle, len(found[0].drifted.worth)
    begin = max(0, middle - 10 * WINDOW)
    # Before the exchange nothing is missing: the two worlds differ in the names of two arms only.
    curve = np.mean([(one.drifted.worth - one.reference.worth)[begin:] for one in found], axis=0)
    at = np.arange(begin + WINDOW, end + 1) - middle
    axes.plot(at, moving_mean(curve), color=colour, linewidth=1.4, label=name)
    anew = moving_mean(-np.mean([one.gap(anew=True) for one in found], axis=0))
    axes.plot(at[-len(anew) :], anew, color=colour, linewidth=0.9, linestyle=":")


def sources_of(*, quiet: bool, long: bool) -> list[Source]:
    """The made world, and the routing table where it is."""
    if long:
        return [Made(count=100_000, arms=10, quiet=quiet)]
    found: list[Source] = [Made(quiet=quiet)]
    if TABLE.exists():
        table = read_table(TABLE)
        encoder = make_encoder(Settings().encoder)
        rows = embedded([row.question for row in table.rows], encoder=encoder, folder=DATA / "cache" / "features")
        found.append(Passes(table=table, features=rows, quiet=quiet))
    else:
        print(f"drift: no routing table at {TABLE}, the made world alone is measured")
    return found


def main(arguments: Sequence[str] = ()) -> None:
    """Print the tables, and make the plot if one is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=__doc__)
    parser.add_argument("--policy", action="append", help="NAME[,NAME...]")
    parser.add_argument("--param", action="append", default=[], help="NAME.KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quiet", action="store_true", help="exchange the two best arms: hardly any mean moves")
    parser.add_argument("--long", action="store_true", help="instead: ten arms, 100,000 questions (minutes)")
    parser.add_argument("--plot", help="where to write a PNG")
    asked = parser.parse_args(list(arguments))
    if asked.plot:
        check_png(asked.plot)
    policies = parse_policies(asked.policy or NAMES, params=asked.param, settings=Settings())
    for name, params in policies.items():
        make_policy(name, params=params)  # wrong params are refused here, before the work
    found = measured(sources_of(quiet=asked.quiet, long=asked.long), policies=policies, seeds=asked.seeds)
    print_found(found, console=Console(width=130))
    if asked.plot:
        plot(found, path=asked.plot)


if __name__ == "__main__":
    main(sys.argv[1:])
