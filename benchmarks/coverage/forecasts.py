"""How good is a report's forecast, "about 420 to 1,700 rated questions in all"? 100 made worlds with known truth.

Two arms of random quality and cost answer two kinds of questions; the probabilities of the draw go from a half to those
of a policy that has learned. The report against the second arm is read until its first verdict, for at most 8,000
questions.
"""

import argparse
import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.figures import machine
from ragbandit.router.comparison import NOT_KNOWN, Comparison
from ragbandit.router.config.settings import PolicySettings
from ragbandit.router.reporting.reading import ReportRows, ReportScope
from ragbandit.router.reporting.report import report_of
from ragbandit.shared.types import Matrix, Vector

QUESTIONS: Final = 8_000
#: numbers of questions after which the report is read
LOOKS: Final = np.unique(np.geomspace(150, QUESTIONS, 26).astype(np.intp)).tolist()
#: questions until the policy has learned
_LEARNED: Final = 400
#: reward that a unit of cost takes
_WEIGHT: Final = 18.0
_RANGE: Final = re.compile(r"about ([\d,]+) to ([\d,]+) rated questions")


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    right: Matrix  #: chance to be right, of each kind and arm, shape (2, 2)
    cost: Matrix  #: shape (2, 2)
    second: Vector  #: probability of the second arm once the policy has learned, of each kind, shape (2,)
    rated: float


def made(seed: int) -> World:
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
    return World(right=right, cost=cost, second=second, rated=float(random.choice([0.1, 0.3, 1.0])))


def log_of(world: World, *, seed: int) -> ReportRows:
    """The draws of a world, the newest first."""
    random, rows = np.random.default_rng(seed), np.arange(QUESTIONS)
    kind, learned = random.integers(2, size=QUESTIONS), np.minimum(rows / _LEARNED, 1.0)
    second = (1.0 - learned) * 0.5 + learned * world.second[kind]
    arm = (random.random(QUESTIONS) < second).astype(np.intp)
    right = (random.random(QUESTIONS) < world.right[kind, arm]).astype(np.float64)
    spent = world.cost[kind, arm] * np.exp(random.normal(-0.125, 0.5, QUESTIONS))
    quality = np.where(random.random(QUESTIONS) < world.rated, right, np.nan)
    best, worst, reward = (np.clip(value - _WEIGHT * spent, -1.0, 1.0) for value in (1.0, 0.0, quality))
    zero, unknown = np.zeros(QUESTIONS), np.full((QUESTIONS, 2), np.nan)
    return ReportRows(
        arms=("first", "second"),
        made_at=zero,
        tenant=zero.astype(np.intp),
        tenants=("default",),
        price=zero.astype(np.intp),
        prices=("as configured",),
        arm=arm,
        pmf=np.stack([1.0 - second, second], axis=1),
        costs={"dollars": spent, "steps": zero, "seconds": zero},
        quality=quality,
        expected_quality=unknown,
        expected_cost=unknown,
        left_out={},
        reward=reward,
        best=best,
        worst=worst,
        limits=(-1.0, 1.0),
    ).part(slice(None, None, -1))


def looked(world: World, *, seed: int) -> list[Comparison]:
    """The reports until the first verdict."""
    log, found = log_of(world, seed=seed), list[Comparison]()
    scope = ReportScope(label="main", since=0.0, until=1.0)
    for questions in LOOKS:
        total = report_of(log.part(slice(-questions, None)), scope, policy=PolicySettings(), against="second").total
        assert total is not None
        found.append(total)
        if total.verdict != NOT_KNOWN:
            break
    return found


def judged(looks: list[Comparison]) -> tuple[list[bool], int]:
    """Returns (whether each forecast contains the truth, number of looks without a forecast)."""
    *before, last = looks
    is_known, inside, without = last.verdict != NOT_KNOWN, list[bool](), 0
    for look in before:
        found = _RANGE.search(look.missing or "")
        if found is None:
            without += 1
            continue
        least, most = (int(number.replace(",", "")) for number in found.groups())
        # Without a verdict at the end, it comes later than that.
        inside.append(most >= last.rated and (not is_known or least <= last.rated))
    return inside, without


def main() -> None:
    """Print how often the truth is within a forecast, and how far the bar of progress falls."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage.forecasts", description=__doc__)
    parser.add_argument("worlds", type=int, nargs="?", default=100, help="number of worlds; default: 100")
    worlds = parser.parse_args().worlds
    shares, without, falls = list[float](), list[float](), list[float]()
    for seed in range(worlds):
        looks = looked(made(seed), seed=seed)
        inside, missing = judged(looks)
        if inside:
            shares.append(float(np.mean(inside)))
        if len(looks) > 1:
            without.append(missing / (len(looks) - 1))
        bar = np.array([look.progress for look in looks])
        falls.append(float((np.maximum.accumulate(bar) - bar).max()))
    print(f"{worlds} worlds, {len(without)} of them not known at the first look")
    print(f"truth within the forecast: {np.mean(shares):.0%} of the looks of a world with forecasts")
    print(f"not known how long: {np.mean(without):.0%} of the looks of a world")
    print(f"largest fall of the bar of progress: {max(falls):.2f}")
    print(machine())


if __name__ == "__main__":
    main()
