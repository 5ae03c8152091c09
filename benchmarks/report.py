"""The report on simulated services with known truth: are dollars, quality and verdict right?

Every run is a learning service: two kinds of questions, arms of known prices and qualities, a holdback, floors, and
a policy whose share of the cheap arm grows. Some answers are rated: one arm's more often than the other's.
The report is read repeatedly. A run is missed if the interval of any report excludes the truth: the cost and quality
of always using the other arm on the same questions.
"""

import argparse
from dataclasses import dataclass

import numpy as np

from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.learning.sources import LEAST_LABELLED
from ragbandit.router.reporting.reading import ReportRows, ReportScope
from ragbandit.router.reporting.report import report_of
from ragbandit.router.serving.deciding.steps.labels import scales_of
from ragbandit.shared.types import Matrix, Vector

ARMS = ("premium", "standard", "cheap")
#: dollars per answer, mean; and their spread, of a lognormal
DOLLARS, SPREAD = np.array([0.02, 0.004, 0.0004]), 0.5
DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class World:
    """A service. quality: of both kinds of questions and each arm, shape (2, arms)."""

    name: str
    quality: Matrix
    #: share of answers that are rated, by arm
    rated: Vector
    #: which arm the policy comes to prefer, of each kind
    prefers: tuple[int, int] = (2, 0)
    holdback: float = 0.02
    #: every question is asked so often
    repeats: int = 1
    #: the policy's expectations are of no use
    blind: bool = False
    #: those that are rated are chosen as by the label queue, and weighted by their probability
    chosen: bool = False


EVEN, SPECIAL = np.array([[0.9, 0.9, 0.9], [0.9, 0.9, 0.9]]), np.array([[0.93, 0.92, 0.92], [0.9, 0.6, 0.35]])
WORSE = np.array([[0.93, 0.8, 0.6], [0.9, 0.6, 0.35]])
THIRTY: Vector = np.full(3, 0.3)
WORLDS = (
    World(name="as good, 30 % rated, holdback 5 %", quality=EVEN, rated=THIRTY, prefers=(2, 2), holdback=0.05),
    World(name="as good, 30 % rated", quality=EVEN, rated=THIRTY, prefers=(2, 2)),
    World(name="cheap for lookups, 30 % rated", quality=SPECIAL, rated=THIRTY),
    World(name="cheap for lookups, 5 % rated", quality=SPECIAL, rated=THIRTY / 6),
    World(name="5 % labelled, chosen by the label queue", quality=SPECIAL, rated=THIRTY / 6, chosen=True),
    World(name="5, 30, 60 % rated by arm", quality=SPECIAL, rated=np.array([0.05, 0.3, 0.6])),
    World(name="worse, 30 % rated", quality=WORSE, rated=THIRTY, prefers=(2, 2)),
    World(name="no holdback, floors alone", quality=SPECIAL, rated=THIRTY, holdback=0.0),
    World(name="each question five times", quality=SPECIAL, rated=THIRTY, repeats=5),
    World(name="no use in expectations", quality=SPECIAL, rated=THIRTY, blind=True),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A log, newest first, and what every arm would have cost and been worth, shape (n, arms)."""

    log: ReportRows
    dollars: Matrix
    quality: Matrix

    def at(self, count: int) -> ReportRows:
        """The log after `count` questions."""
        return self.log.part(slice(len(self.log.arm) - count, None))


def made(world: World, *, count: int, seed: int) -> Run:
    """A run of `count` questions."""
    random = np.random.default_rng(seed)
    kind = np.repeat(random.integers(2, size=-(-count // world.repeats)), world.repeats)[:count]
    kind = kind[random.permutation(count)]
    chance = world.quality[kind]
    dollars = DOLLARS * np.exp(random.normal(-(SPREAD**2) / 2, SPREAD, (count, 3)))
    quality = (random.random((count, 3)) < chance).astype(np.float64)
    sure = np.minimum(np.arange(count) / 1_000.0, 1.0)[:, None]  # it begins with all alike
    own = (1 - sure) / 3 + sure * np.eye(3)[np.array(world.prefers)[kind]]
    floor = 0.04 / 3
    pmf = (1 - world.holdback) * (floor + (1 - 3 * floor) * own) + world.holdback * np.eye(3)[0]
    arm = (pmf.cumsum(axis=1)[:, :-1] < random.random((count, 1))).sum(axis=1)
    drawn = np.arange(count), arm
    q = world.rated[arm]
    if world.chosen:
        use, share = np.abs(1.0 - (arm == 0) / pmf[:, 0]), float(world.rated.mean())
        _, scale = scales_of(np.stack([np.zeros(count), use], axis=1), share=share)
        q = np.clip(scale * use, LEAST_LABELLED * share, 1.0)
    is_rated = random.random(count) < q
    guess = np.full((count, 3), 0.5) if world.blind else chance + random.normal(0.0, 0.1, (count, 3))
    log = ReportRows(
        arms=ARMS,
        made_at=np.arange(count, dtype=np.float64) * 60.0,
        tenant=np.zeros(count, dtype=np.intp),
        tenants=("default",),
        price=np.zeros(count, dtype=np.intp),
        prices=("as configured",),
        arm=arm,
        pmf=pmf,
        costs={"dollars": dollars[drawn], "steps": np.ones(count), "seconds": np.zeros(count)},
        quality=np.where(is_rated, quality[drawn], np.nan),
        expected_quality=guess,
        expected_cost=np.tile(DOLLARS, (count, 1)),
        left_out={},
        limits=(0.0, 1.0),
        counts=world.rated.mean() / q if world.chosen else None,
    )
    newest = slice(None, None, -1)
    return Run(log=log.part(newest), dollars=dollars[newest], quality=quality[newest])


def main() -> None:
    """Print the report of each service, after 64,000 questions, in a sentence."""
    argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__).parse_args()
    for world in WORLDS:
        scope = ReportScope(label="main", since=0.0, until=64_000 * 60.0)
        log = made(world, count=64_000, seed=0).log
        print(f"{world.name}: {report_of(log, scope, policy=PolicySettings(), against='premium').sentence}")


if __name__ == "__main__":
    main()
