"""Coverage of the intervals: how often they hold the truth, how wide they are, and the effect of looking repeatedly.

There are five simulated worlds with known truth; every run draws a log and computes every interval at 95
%. Baselines on the same logs are the percentile bootstrap of Open Bandit Pipeline and the intervals of vw-estimators,
if these are installed.
"""

import argparse
import importlib
import math
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import NormalDist
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from ragbandit.router.comparison.intervals import Interval, Moments, cressie_read, extreme_rows, heavy_weight
from ragbandit.router.offline.estimation import Choices
from ragbandit.shared.this_process import cores
from ragbandit.shared.types import Matrix, Vector

CONFIDENCE = 0.95
COUNTS = (500, 2_000, 10_000)
#: contexts of a world; rows are drawn from them, so that the truth is a plain mean
CONTEXTS, SIZE, ARMS = 4096, 5, 3
FOLDS = 5
#: where a dashboard looks: every 50 rows
LOOKS = np.arange(200, 5_001, 50)
#: intervals for one look, of which `missed` tells what looking again and again makes of them
USUAL = ("normal, IPS", "Cressie-Read, IPS")
#: resamples of the baseline's bootstrap
RESAMPLES = 200
#: the intervals that the product prints
PRINTED = (
    "Cressie-Read, IPS",
    "Cressie-Read, DR",
    "Cressie-Read, DR less logged",
    "Cressie-Read, two candidates",
)

#: name -> interval and the truth that it is of
Found = Mapping[str, tuple[Interval, float]]


def weight_powers(pmf: Matrix, *, candidate: Matrix) -> Vector:
    """What `heavy_weight` reads, of these rows; pmf (logged), candidate: shape (n, K)."""
    weight = np.divide(candidate, pmf, out=np.zeros(pmf.shape), where=pmf > 0.0)
    return np.array([(candidate * weight).sum(), (candidate * weight**2).sum()])


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A log of n rows; matrices of shape (n, ARMS)."""

    features: Matrix
    action: Choices
    reward: Vector
    pmf: Matrix
    candidate: Matrix
    rival: Matrix

    def drawn(self, values: Matrix) -> Vector:
        """The values of the arms that were drawn, shape (n,)."""
        picked: Vector = values[np.arange(len(self.action)), self.action]
        return picked


@dataclass(frozen=True, kw_only=True)
class World:
    """Contexts, what three policies do there, and what arms earn: 1 with a chance, less a price."""

    name: str
    #: declared least and largest reward
    rewards: Interval
    #: shape (CONTEXTS, SIZE)
    features: Matrix
    #: logging policy, candidate and another candidate; all arrays have the shape (CONTEXTS, ARMS)
    pmf: Matrix
    candidate: Matrix
    rival: Matrix
    chance: Matrix
    price: Matrix

    def log(self, count: int, *, seed: int) -> Rows:
        """Draw `rows` rows with this seed."""
        random = np.random.default_rng(seed)
        at = random.integers(CONTEXTS, size=count)
        action = (self.pmf[at].cumsum(axis=1)[:, :-1] < random.random((count, 1))).sum(axis=1)
        reward = (random.random(count) < self.chance[at, action]) - self.price[at, action]
        return Rows(
            features=self.features[at],
            action=action,
            reward=reward,
            pmf=self.pmf[at],
            candidate=self.candidate[at],
            rival=self.rival[at],
        )

    def value(self, policy: Matrix) -> float:
        return float((policy * (self.chance - self.price)).sum(axis=1).mean())

    @cached_property
    def truths(self) -> tuple[float, float, float]:
        """The candidate's value, and its lead on the logging policy and on the other candidate."""
        value = self.value(self.candidate)
        return value, value - self.value(self.pmf), value - self.value(self.rival)

    @cached_property
    def largest(self) -> float:
        """Largest possible weight of the candidate."""
        return float((self.candidate / self.pmf).max())


def worlds() -> tuple[World, ...]:
    """Skewed weights, rewards less a price, rare successes, a few huge weights, all well, and hardly any difference."""
    random = np.random.default_rng(7)
    x = random.standard_normal((CONTEXTS, SIZE))
    a, b, c = (x @ random.standard_normal((SIZE, ARMS)) for _ in range(3))
    usual, never = (np.eye(ARMS)[np.full(CONTEXTS, arm)] for arm in range(2))
    steps = np.array([1, 3, 8]) + (x[:, :1] > 0) * np.array([0, 1, 3])
    made = partial(World, features=x, rewards=(0.0, 1.0), price=np.zeros((CONTEXTS, ARMS)))
    return (
        made(
            name="skewed",
            pmf=_greedy(a, epsilon=0.1),
            candidate=_greedy(a + 0.9 * b, epsilon=0.05),
            rival=_greedy(a + 0.6 * c, epsilon=0.05),
            chance=_logistic(1.2 + 0.3 * (a + b)),
        ),
        made(
            name="costly",
            rewards=(-1.0, 1.0),
            pmf=0.9 * _softmax(a) + 0.1 / ARMS,
            candidate=_greedy(c, epsilon=0.1),
            rival=_softmax(2.0 * b),
            chance=_logistic(-2.0 + 0.5 * c),
            price=0.05 * steps,
        ),
        made(
            name="rare",
            pmf=_greedy(a, epsilon=0.2),
            candidate=_greedy(a + b, epsilon=0.1),
            rival=_greedy(c, epsilon=0.1),
            chance=0.02 * np.exp(0.3 * b) / np.exp(0.3 * b).mean(axis=0),
        ),
        made(
            name="steep",
            pmf=0.98 * _softmax(a) + 0.02 / ARMS,
            candidate=_softmax(0.5 * a + b),
            rival=_softmax(a + 0.5 * c),
            chance=_logistic(0.5 * b),
        ),
        made(
            name="benign",
            pmf=np.full((CONTEXTS, ARMS), 1.0 / ARMS),
            candidate=_softmax(b),
            rival=_softmax(c),
            chance=np.clip(0.5 + 0.15 * b, 0.02, 0.98),
        ),
        *(  # the candidate is the logging policy without its exploration, and all arms are alike
            made(
                name=name,
                pmf=0.97 * usual + 0.03 / ARMS,
                candidate=usual,
                rival=0.9 * usual + 0.1 * never,
                chance=np.full((CONTEXTS, ARMS), chance),
            )
            for name, chance in (("near, rare", 0.03), ("near, sure", 0.97))
        ),
    )


def _greedy(scores: Matrix, *, epsilon: float) -> Matrix:
    return np.asarray(epsilon / ARMS + (1.0 - epsilon) * np.eye(ARMS)[scores.argmax(axis=1)])


def _softmax(scores: Matrix) -> Matrix:
    power = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(power / power.sum(axis=1, keepdims=True))


def _logistic(scores: Matrix) -> Matrix:
    return np.asarray(1.0 / (1.0 + np.exp(-scores)))


def crossed(rows: Rows, *, rewards: Interval) -> Matrix:
    """Predictions of each fold by a ridge per arm of the other folds, shape (n, ARMS)."""
    fold = np.arange(len(rows.action)) % FOLDS
    sums = [_sums(rows, fold == number) for number in range(FOLDS)]
    total = [sum(one[part] for one in sums) for part in range(2)]
    guess = np.empty(rows.pmf.shape)
    for number, one in enumerate(sums):
        guess[fold == number] = _design(rows.features[fold == number]) @ _solved(total[0] - one[0], total[1] - one[1])
    return np.clip(guess, *rewards)


def _design(features: Matrix) -> Matrix:
    return np.concatenate([np.ones((len(features), 1)), features], axis=1)


def _sums(rows: Rows, part: Any) -> tuple[Any, Any]:
    """Per arm the design's squares, shape (ARMS, d, d), and its products with the rewards, shape (ARMS, d)."""
    design, action, reward = _design(rows.features[part]), rows.action[part], rows.reward[part]
    own = [design[action == arm] for arm in range(ARMS)]
    cross = [z.T @ reward[action == arm] for arm, z in enumerate(own)]
    return np.stack([z.T @ z for z in own]), np.stack(cross)


def _solved(precision: Any, cross: Any) -> Matrix:
    """Coefficients, shape (d, ARMS)."""
    return np.asarray(np.linalg.solve(precision + np.eye(SIZE + 1), cross[..., None])[..., 0].T)


def fixed(world: World, rows: Rows) -> Found:
    """Every interval of a log of fixed length."""
    value, lead, ahead = world.truths
    least, most = world.rewards
    reward, guess = rows.reward, crossed(rows, rewards=world.rewards)
    weight, other = (rows.drawn(policy) / rows.drawn(rows.pmf) for policy in (rows.candidate, rows.rival))
    left = reward - rows.drawn(guess)
    plain, robust = weight * reward, (rows.candidate * guess).sum(axis=1) + weight * left
    against = robust - (rows.rival * guess).sum(axis=1) - other * left
    share = plain.sum() / weight.sum()
    spread = float(np.sqrt(((weight * (reward - share)) ** 2).sum()) / weight.sum())
    heavy = [heavy_weight(weight_powers(rows.pmf, candidate=policy)) for policy in (rows.candidate, rows.rival)]
    seen = float((rows.candidate * guess).sum(axis=1).mean())

    def likely(*columns: Vector, **more: Any) -> Interval:
        extremes = extreme_rows(heavy[: len(columns) - 1], rewards=world.rewards, **more)
        point = float(columns[0].mean())
        return cressie_read(Moments.of(*columns), confidence=CONFIDENCE, extremes=extremes, value=point)

    return {
        "Cressie-Read, IPS": (likely(plain, weight), value),
        "Cressie-Read, DR": (likely(robust, weight, baseline=seen), value),
        "Cressie-Read, DR less logged": (likely(robust - reward, weight, baseline=seen, minus_logged=True), lead),
        "Cressie-Read, two candidates": (likely(against, weight, other, baseline=seen), ahead),
        "normal, IPS": (_normal(plain), value),
        "delta method, SNIPS": (_around(float(share), error=spread), value),
        "normal, DR": (_normal(robust), value),
        "empirical Bernstein, IPS": (
            _empirical_bernstein(
                Moments.of(plain), confidence=CONFIDENCE, low=min(0.0, least) * world.largest, high=most * world.largest
            ),
            value,
        ),
    }


def _normal(scores: Vector) -> Interval:
    error = float(scores.std(ddof=1)) / len(scores) ** 0.5
    return _around(float(scores.mean()), error=error)


def _around(value: float, *, error: float) -> Interval:
    """Value and so many standard errors to both sides."""
    reach = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * error
    return value - reach, value + reach


def baselines(world: World, rows: Rows) -> Found:
    """The intervals of other packages, of those that are installed."""
    value, found = world.truths[0], dict[str, tuple[Interval, float]]()
    least, most = world.rewards
    if (pipeline := _module("obp.ope")) is not None:
        given: dict[str, Any] = {"reward": rows.reward, "action": rows.action, "pscore": rows.drawn(rows.pmf)}
        given |= {"action_dist": rows.candidate[:, :, None], "n_bootstrap_samples": RESAMPLES, "random_state": 1}
        guess = crossed(rows, rewards=world.rewards)[:, :, None]
        for name, kind in (
            ("IPW", "InverseProbabilityWeighting"),
            ("SNIPW", "SelfNormalizedInverseProbabilityWeighting"),
            ("DR", "DoublyRobust"),
        ):
            more = {"estimated_rewards_by_reg_model": guess} if name == "DR" else {}
            told = getattr(pipeline, kind)().estimate_interval(**given, **more)
            ends = [float(told[f"95.0% CI ({end})"]) for end in ("lower", "upper")]
            found[f"obp bootstrap, {name}"] = (ends[0], ends[1]), value
    for name, kind in (("Cressie-Read", "cressieread"), ("sequence (anytime)", "cs")):
        if (module := _module(f"estimators.bandits.{kind}")) is not None:
            # For rewards in [0, 1]; negative ones are documented not to work.
            made = module.Interval(**({"wmax": world.largest} if kind == "cressieread" else {}))
            scaled = (rows.reward - least) / (most - least)
            for chance, reward, wish in zip(rows.drawn(rows.pmf), scaled, rows.drawn(rows.candidate), strict=True):
                made.add_example(p_log=float(chance), r=float(reward), p_pred=float(wish))
            low, high = (least + (most - least) * end for end in made.get(alpha=1.0 - CONFIDENCE))
            found[f"vw-estimators {name}"] = (low, high), value
    return found


def _module(name: str) -> Any:
    """A module of a baseline; None where it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:
        return None


def shares(number: int, *, count: int, seeds: Sequence[int], others: int = 0) -> Mapping[str, list[tuple[bool, float]]]:
    """(holds the truth, width) in every run of world `number`; baselines in the first `others` seeds."""
    world, found = worlds()[number], dict[str, list[tuple[bool, float]]]()
    for seed in seeds:
        rows = world.log(count, seed=seed)
        told = dict(fixed(world, rows))
        if seed < others:
            told |= baselines(world, rows)
        for name, ((low, high), truth) in told.items():
            found.setdefault(name, []).append((low <= truth <= high, high - low))
    return found


def missed(number: int, *, seeds: Sequence[int], usual: Sequence[str] = USUAL) -> Mapping[str, list[bool]]:
    """For every run of world `number`, whether the interval excludes the truth at any of LOOKS. usual: the same for
    intervals that are valid for a single look.
    """
    world, found = worlds()[number], dict[str, list[bool]]()
    for seed in seeds:
        rows = world.log(int(LOOKS[-1]), seed=seed)
        scores = rows.drawn(rows.candidate) / rows.drawn(rows.pmf) * rows.reward
        ends: dict[str, Callable[[Vector], Interval]] = dict.fromkeys(USUAL, _normal)
        ends[USUAL[1]] = partial(_likely, world, rows)
        for name in usual:
            told = np.array([ends[name](scores[:look]) for look in LOOKS])
            out = (told[:, 0] > world.truths[0]) | (told[:, 1] < world.truths[0])
            found.setdefault(name, []).append(bool(out.any()))
    return found


def _empirical_bernstein(moments: Moments, *, confidence: float, low: float, high: float) -> Interval:
    """Never misses too often, at any number of rows, for scores (column 0) in [low, high]; wide for it.

    Maurer and Pontil 2009, theorem 4, to both sides with half the error each; cut to [low, high]. At 95 % it holds the
    truth in all logs measured, and is 1.7 to 15 times as wide as the normal one.
    """
    rows = moments.rows
    if rows < 2:
        return low, high
    tail = math.log(4.0 / (1.0 - confidence))
    variance = float(moments.scatter[0, 0]) / (rows - 1)
    reach = math.sqrt(2.0 * variance * tail / rows) + 7.0 * (high - low) * tail / (3.0 * (rows - 1))
    mean = float(moments.mean[0])
    return max(low, mean - reach), min(high, mean + reach)


def _likely(world: World, rows: Rows, scores: Vector) -> Interval:
    weight = (rows.drawn(rows.candidate) / rows.drawn(rows.pmf))[: len(scores)]
    powers = weight_powers(rows.pmf[: len(scores)], candidate=rows.candidate[: len(scores)])
    extremes = extreme_rows([heavy_weight(powers)], rewards=world.rewards)
    return cressie_read(Moments.of(scores, weight), confidence=CONFIDENCE, extremes=extremes)


def main(arguments: Sequence[str] = ()) -> None:
    """Print a table for every world, and one of looking again and again."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage.methods", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="logs of every world and length")
    parser.add_argument("--quick", action="store_true", help="a tenth of the runs")
    asked = parser.parse_args(arguments)
    runs = max(2, asked.runs // (10 if asked.quick else 1))
    console, others = Console(width=130), min(runs, 200)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # the processes share the cores already
    for name in ("obp.ope", "estimators.bandits"):
        if _module(name) is None:
            console.print(f"{name.split('.')[0]} is not installed: its intervals are left out")
    names = [world.name for world in worlds()]
    with (
        ProcessPoolExecutor(cores(), mp_context=multiprocessing.get_context("spawn")) as pool,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        for number, name in enumerate(names):
            columns = [
                _gathered(pool, progress, partial(shares, number, count=count, others=others), name=name, runs=runs)
                for count in COUNTS
            ]
            console.print(_coverage_table(name, columns, runs=runs, others=others))
        peeks = [
            _gathered(pool, progress, partial(missed, number), name="peeking", runs=runs)
            for number in range(len(names))
        ]
    table = Table("share of runs that ever leave out the truth", *names, title=f"a look every 50 rows, {runs} runs")
    for kind in peeks[0]:
        table.add_row(kind, *(f"{np.mean(peek[kind]):.3f}" for peek in peeks))
    console.print(table)


def _gathered(
    pool: ProcessPoolExecutor,
    progress: Progress,
    work: Callable[..., Mapping[str, list[Any]]],
    *,
    name: str,
    runs: int,
) -> dict[str, list[Any]]:
    """Results of `work` for all seeds, ten at a time."""
    found = dict[str, list[Any]]()
    waiting = [pool.submit(work, seeds=range(first, min(first + 10, runs))) for first in range(0, runs, 10)]
    for done in progress.track(waiting, description=name):
        for kind, values in done.result().items():
            found.setdefault(kind, []).extend(values)
    return found


def _coverage_table(
    name: str, columns: Sequence[Mapping[str, list[tuple[bool, float]]]], *, runs: int, others: int
) -> Table:
    title = f"{name}: coverage / mean width at {CONFIDENCE:.0%}, {runs} runs (baselines {others}); * is what we print"
    table = Table(Column("interval", no_wrap=True), *(f"{count:,} rows" for count in COUNTS), title=title)
    for kind in columns[0]:
        cells = [np.mean(np.array(column[kind]), axis=0) for column in columns]
        table.add_row(f"{kind} *" if kind in PRINTED else kind, *(f"{cell[0]:.3f} / {cell[1]:.3f}" for cell in cells))
    return table


if __name__ == "__main__":
    main(sys.argv[1:])
