"""How good is a report's forecast, "about 420 to 1,700 rated questions in all"? Made worlds with known truth.

    python -m benchmarks.coverage.forecasts                # 100 worlds of each family
    python -m benchmarks.coverage.forecasts 20 --first 1000 drift "new arm"

Two arms of random quality and cost answer two kinds of questions; the probabilities of the draw go from a half to those
of a policy that has learned. The report against the second arm is read until its first verdict, for at most 8,000
questions. In four more families something happens: a third arm comes (and the report is read against the second arm, or
against the new one), an arm gets better, worse, cheaper or more expensive, or a safe start gives most questions to the
second arm for 200 to 3,000 questions, and lets the policy decide in jumps that get more frequent. After a change the
policy learns again. Reports are read from the change on, since no earlier one can foresee it.

A forecast holds if the verdict comes with a number of ratings between its ends; without a verdict at the end, if the
larger end is not reached. "rate N more answers: then it is perhaps known" is kept if these ratings bring a verdict at
once; three such reports of each world are tried.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.figures import machine
from ragbandit.router.comparison import NOT_KNOWN, Comparison
from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.reporting.deciders import NEWEST, Decider
from ragbandit.router.reporting.reading import Report, ReportRows, ReportScope
from ragbandit.router.reporting.report import report_of
from ragbandit.shared.types import Indices, Matrix, Vector

QUESTIONS: Final = 8_000
#: numbers of questions, since the change if there is one, after which the report is read
LOOKS: Final = np.unique(np.geomspace(150, QUESTIONS, 26).astype(np.intp)).tolist()
ARMS: Final = ("first", "second", "third")
_SECOND: Final = ARMS.index("second")
#: questions until the policy has learned
_LEARNED: Final = 400
#: share of the questions that a new arm gets at first
_NEW: Final = 0.2
#: questions between two jumps of the share that a safe start leaves to the policy, and its largest value before a jump
_BLOCK, _HELD = 50, 0.3
#: reward that a unit of cost takes
_WEIGHT: Final = 18.0
_RANGE: Final = re.compile(r"about ([\d,]+) to ([\d,]+) rated questions")
#: reports of a world whose "rate N more" is tried
_TRIED: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Arms:
    """What arms are worth, and their probabilities once the policy has learned. Matrices have shape (2, arms)."""

    right: Matrix  #: chance to be right, of each kind of questions and arm
    cost: Matrix
    learned: Matrix  #: 0 for an arm that is not there


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    arms: Arms
    rated: float
    change: Arms | None = None
    at: int = 0  #: questions before the change
    safe: int = 0  #: questions until the safe start leaves all of them to the policy
    against: str = "second"


def made(seed: int, *, family: str = "steady") -> World:
    """The world of this seed. The cost of the second arm may follow the question."""
    random = np.random.default_rng([seed, 99])
    right = random.uniform(0.3, 0.98, (2, 2))
    if random.random() < 0.6:
        right[0, 0] = right[0, 1] + random.uniform(-0.1, 0.1)
    right = np.clip(right, 0.02, 0.99)
    cost = np.tile(random.choice([0.001, 0.003, 0.005, 0.01, 0.015], 2), (2, 1))
    cost[1, 1] *= random.choice([1.0, 4.0])
    worth = right - _WEIGHT * cost
    second = np.where(worth[:, 0] > worth[:, 1], random.choice([0.05, 0.1, 0.2], 2), random.choice([0.8, 0.9, 0.95], 2))
    rated = float(random.choice([0.1, 0.3, 1.0]))
    arms = Arms(right=right, cost=cost, learned=np.stack([1.0 - second, second], axis=1))
    return FAMILIES[family](World(arms=arms, rated=rated), random)


def _new_arm(world: World, random: np.random.Generator) -> World:
    """A third arm comes."""
    arms = world.arms
    right = np.column_stack([arms.right, random.uniform(0.3, 0.98, 2)])
    cost = np.column_stack([arms.cost, np.full(2, random.choice([0.001, 0.003, 0.005, 0.01, 0.015]))])
    before = Arms(right=right, cost=cost, learned=np.column_stack([arms.learned, np.zeros(2)]))
    after = replace(before, learned=_learned(right - _WEIGHT * cost, held=float(random.choice([0.05, 0.1, 0.2]))))
    return replace(world, arms=before, change=after, at=_moment(random))


def _drift(world: World, random: np.random.Generator) -> World:
    """Quality or cost of an arm changes."""
    right, cost, arm = world.arms.right.copy(), world.arms.cost.copy(), int(random.integers(2))
    if random.random() < 0.5:
        right[:, arm] = np.clip(right[:, arm] + random.choice([-1.0, 1.0]) * random.uniform(0.15, 0.5), 0.02, 0.99)
    else:
        cost[:, arm] *= random.choice([0.2, 0.4, 2.5, 5.0])
    learned = _learned(right - _WEIGHT * cost, held=float(random.choice([0.05, 0.1, 0.2])))
    return replace(world, change=Arms(right=right, cost=cost, learned=learned), at=_moment(random))


def _safe_start(world: World, random: np.random.Generator) -> World:
    """The second arm is the incumbent of a safe start."""
    return replace(world, safe=round(float(np.exp(random.uniform(np.log(200.0), np.log(3_000.0))))))


def _moment(random: np.random.Generator) -> int:
    return int(random.integers(300, 2_000))


def _learned(worth: Matrix, *, held: float) -> Matrix:
    """The best arm gets most questions of a kind. held: least probability of the second arm"""
    pmf = np.full(worth.shape, 0.02)
    pmf[:, _SECOND] = held
    best, kinds = worth.argmax(axis=1), np.arange(len(worth))
    pmf[kinds, best] = 0.0
    pmf[kinds, best] = 1.0 - pmf.sum(axis=1)
    return pmf


#: name -> how a world without changes becomes one of the family
FAMILIES: Final[Mapping[str, Callable[[World, np.random.Generator], World]]] = {
    "steady": lambda world, _: world,
    "new arm": _new_arm,
    "against the new arm": lambda world, random: replace(_new_arm(world, random), against="third"),
    "drift": _drift,
    "safe start": _safe_start,
}


class Log(NamedTuple):
    """The draws of a world, the newest first."""

    rows: ReportRows
    right: Vector  #: quality of every answer, rated or not, shape (n,)


def log_of(world: World, *, seed: int) -> Log:
    random, rows = np.random.default_rng(seed), np.arange(QUESTIONS)
    kind = random.integers(2, size=QUESTIONS)
    policy = _policy(world, kind)
    pmf, share = policy, np.ones(QUESTIONS)
    if world.safe:
        share = _left_by(world.safe, random=np.random.default_rng([seed, 98]))
        pmf = share[:, None] * policy + (1.0 - share[:, None]) * (np.arange(policy.shape[1]) == _SECOND)
    # The other arms in the order first, third: with two arms the draw is that of the second one's probability.
    draw, second = random.random(QUESTIONS), pmf[:, _SECOND]
    arm = np.where(draw < second, _SECOND, 0)
    arm[draw >= second + pmf[:, 0]] = len(ARMS) - 1
    is_later = rows >= (QUESTIONS if world.change is None else world.at)
    right_of, cost_of = (
        np.where(is_later, after[kind, arm], before[kind, arm])
        for before, after in zip(_worth(world.arms), _worth(world.change or world.arms), strict=True)
    )
    right = (random.random(QUESTIONS) < right_of).astype(np.float64)
    spent = cost_of * np.exp(random.normal(-0.125, 0.5, QUESTIONS))
    is_rated = random.random(QUESTIONS) < world.rated
    quality = np.where(is_rated, right, np.nan)
    best, worst, reward = (np.clip(value - _WEIGHT * spent, -1.0, 1.0) for value in (1.0, 0.0, quality))
    zero, unknown = np.zeros(QUESTIONS), np.full(pmf.shape, np.nan)
    made_of = ReportRows(
        arms=ARMS[: pmf.shape[1]],
        made_at=rows.astype(np.float64),
        tenant=zero.astype(np.intp),
        tenants=("default",),
        price=zero.astype(np.intp),
        prices=("as configured",),
        arm=arm,
        pmf=pmf,
        costs={"dollars": spent, "steps": zero, "seconds": zero},
        quality=quality,
        expected_quality=unknown,
        expected_cost=unknown,
        left_out={},
        reward=reward,
        best=best,
        worst=worst,
        limits=(-1.0, 1.0),
        deciders=_deciders(share, policy=policy, arm=arm) if world.safe else (),
    )
    return Log(made_of.part(slice(None, None, -1)), right[::-1])


def _worth(arms: Arms) -> tuple[Matrix, Matrix]:
    return arms.right, arms.cost


def _policy(world: World, kind: Indices) -> Matrix:
    """The policy's own probabilities, the oldest question first."""
    rows = np.arange(len(kind))
    is_there = world.arms.learned > 0.0
    pmf = _learning(is_there / is_there.sum(axis=1, keepdims=True), world.arms.learned, kind=kind, since=rows)
    if world.change is None:
        return pmf
    is_new = (world.change.learned > 0.0) & ~is_there
    before = (1.0 - _NEW * is_new.sum(axis=1, keepdims=True)) * world.arms.learned + _NEW * is_new
    later = _learning(before, world.change.learned, kind=kind, since=rows - world.at)
    return np.where(rows[:, None] < world.at, pmf, later)


def _learning(before: Matrix, learned: Matrix, *, kind: Indices, since: Indices) -> Matrix:
    share = np.clip(since / _LEARNED, 0.0, 1.0)[:, None]
    return (1.0 - share) * before[kind] + share * learned[kind]


def _left_by(safe: int, *, random: np.random.Generator) -> Vector:
    """The share of each question that a safe start leaves to the policy, the oldest first."""
    first = np.arange(0, QUESTIONS, _BLOCK)
    held = random.uniform(0.0, _HELD, len(first))
    return np.repeat(np.where(random.random(len(first)) < first / safe, 1.0, held), _BLOCK)


def _deciders(share: Vector, *, policy: Matrix, arm: Indices) -> list[Decider]:
    """What decided each question of a safe start, the newest first."""
    others = 1.0 - policy[:, _SECOND]
    return [
        Decider(
            "safe start" if share[row] < 1.0 else "policy",
            1.0 - float(share[row]),
            ARMS[_SECOND],
            others=float(others[row]),
            served=ARMS[arm[row]],
        )
        for row in range(len(share) - 1, -1, -1)
    ]


class Look(NamedTuple):
    total: Comparison
    is_held: bool  #: whether something else than the policy decides
    is_kept: bool | None  #: whether "rate N more" brought a verdict; None if it was not tried


def looked(world: World, *, seed: int) -> list[Look]:
    """The reports until the first verdict, from the change on."""
    log, found, tried = log_of(world, seed=seed), list[Look](), 0
    for questions in (world.at + since for since in LOOKS if world.at + since <= QUESTIONS):
        rows = log.rows.part(slice(-questions, None))
        deciders = log.rows.deciders[QUESTIONS - questions :][:NEWEST]
        report = _report(replace(rows, deciders=deciders), world)
        total, is_kept = report.total, None
        if total is None or not total.questions:
            continue
        if report.to_rate is not None and tried < _TRIED:
            tried += 1
            is_kept = _is_kept(rows, world, right=log.right[-questions:], count=report.to_rate, seed=seed)
        found.append(Look(total, report.state is not None, is_kept))
        if total.verdict != NOT_KNOWN:
            break
    return found


def _report(rows: ReportRows, world: World) -> Report:
    scope = ReportScope(label="main", since=-1.0, until=float(len(rows.arm)))
    return report_of(rows, scope, policy=PolicySettings(), against=world.against)


def _is_kept(rows: ReportRows, world: World, *, right: Vector, count: int, seed: int) -> bool:
    """Whether there is a verdict when `count` more answers of the compared arm are rated."""
    unrated = np.flatnonzero((rows.arm == ARMS.index(world.against)) & np.isnan(rows.quality))
    chosen = np.random.default_rng([seed, len(right)]).permutation(unrated)[:count]
    quality = rows.quality.copy()
    quality[chosen] = right[chosen]
    total = _report(rows.rated_as(quality, counts=None), world).total
    return total is not None and total.verdict != NOT_KNOWN


class Score(NamedTuple):
    """What came of the looks of a world before its verdict."""

    looks: int
    held: int  #: looks while something else than the policy decides
    inside: list[bool]  #: whether each forecast holds
    ratios: list[float]  #: larger end / smaller end
    kept: list[bool]  #: whether each "rate N more" that was tried brought a verdict
    is_known: bool  #: whether a verdict came
    fall: float  #: largest fall of the bar of progress


def scored(looks: Sequence[Look]) -> Score:
    *before, last = looks
    is_known, inside, ratios = last.total.verdict != NOT_KNOWN, list[bool](), list[float]()
    for look in before:
        found = _RANGE.search(look.total.missing or "")
        if found is not None:
            least, most = (int(number.replace(",", "")) for number in found.groups())
            # Without a verdict at the end, it comes later than that.
            inside.append(most >= last.total.rated and (not is_known or least <= last.total.rated))
            ratios.append(most / least)
    bar = np.array([look.total.progress for look in looks])
    kept = [look.is_kept for look in looks if look.is_kept is not None]
    fall = float((np.maximum.accumulate(bar) - bar).max())
    return Score(len(before), sum(look.is_held for look in before), inside, ratios, kept, is_known, fall)


def _row(scores: Sequence[Score]) -> tuple[str, ...]:
    """Shares are means over the worlds, so that a long one does not count more."""
    unknown = [score for score in scores if score.looks]
    came = [score for score in unknown if score.is_known]
    kept = [one for score in scores for one in score.kept]
    return (
        f"{len(unknown)}, {len(came)}",
        str(sum(score.looks for score in unknown)),
        _mean([float(np.mean(score.inside)) for score in unknown if score.inside]),
        _mean([float(one) for score in unknown for one in score.inside]),
        _mean([len(score.inside) / score.looks for score in came]),
        _mean([len(score.inside) / (score.looks - score.held) for score in came if score.looks > score.held]),
        f"{np.median([ratio for score in unknown for ratio in score.ratios] or [np.nan]):.1f}",
        f"{sum(kept)} of {len(kept)}",
        f"{max(score.fall for score in scores):.2f}",
    )


def _mean(shares: Sequence[float]) -> str:
    return f"{np.mean(shares):.0%}" if shares else "-"


def main(arguments: Sequence[str]) -> None:
    """Print a line for every family."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coverage.forecasts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("worlds", type=int, nargs="?", default=100, help="worlds of each family; default: 100")
    parser.add_argument("families", nargs="*", help=f"of {', '.join(FAMILIES)}; default: all")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    asked = parser.parse_args(arguments)
    table = Table(
        "family",
        "not known at first, verdict came",
        "looks",
        "forecast holds",
        "of all forecasts",
        "with a forecast, if a verdict came",
        "while the policy decides",
        "ratio of the ends, median",
        '"rate N more" kept',
        "largest fall of the bar",
        box=box.SIMPLE,
    )
    for family in asked.families or FAMILIES:
        seeds = range(asked.first, asked.first + asked.worlds)
        lives = [looked(made(seed, family=family), seed=seed) for seed in seeds]
        table.add_row(family, *_row([scored(looks) for looks in lives if looks]))
    Console(width=140).print(table)
    print(f"{asked.worlds} worlds of each family, seeds from {asked.first}; {machine()}")


if __name__ == "__main__":
    main(sys.argv[1:])
