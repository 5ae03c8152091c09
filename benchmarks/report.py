"""The report on simulated services with known truth: are dollars, quality and verdict right?

Every run is a learning service: two kinds of questions, arms of known prices and qualities, a holdback, floors, and
a policy whose share of the cheap arm grows. Some answers are rated: one arm's more often than the other's.
The report is read repeatedly. A run is missed if the interval of any report excludes the truth: the cost and quality
of always using the other arm on the same questions.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from rich.console import Console
from rich.table import Table

from ragbandit.router.comparison import MARGIN, NOT_KNOWN, Comparison, Difference
from ragbandit.router.config.settings import PolicySettings
from ragbandit.router.learning.sources import LEAST_LABELLED
from ragbandit.router.reporting.reading import ReportRows, ReportScope, share_of
from ragbandit.router.reporting.report import report_of
from ragbandit.router.serving.deciding.labelling import scaled
from ragbandit.shared.types import Matrix, Vector

ARMS = ("premium", "standard", "cheap")
#: dollars per answer, mean; and their spread, of a lognormal
DOLLARS, SPREAD = np.array([0.02, 0.004, 0.0004]), 0.5
#: numbers of questions after which the report is read
LOOKS = (250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 64_000)
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
    #: correlation of a judge's scores of all answers with their quality; 0: there is no judge
    judge: float = 0.0
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
    World(name="5 % rated, a judge of correlation .5", quality=SPECIAL, rated=THIRTY / 6, judge=0.5),
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

    def at(self, count: int, *, most: int | None = None) -> ReportRows:
        """The log after `count` questions; with `most` a sample of it, as a report draws one of a large period."""
        log = self.log.part(slice(len(self.log.arm) - count, None))
        if most is None or count <= most:
            return log
        drawn = np.random.default_rng(len(self.log.arm)).random(len(self.log.arm))[-count:] < share_of(count, most=most)
        return replace(log.part(drawn), whole=count)

    def truth(self, count: int) -> tuple[float, float]:
        """What was served less always premium, per question: dollars and quality."""
        rows = slice(len(self.log.arm) - count, None)
        drawn = np.arange(count), self.log.arm[rows]
        return tuple(float((table[rows][drawn] - table[rows][:, 0]).mean()) for table in (self.dollars, self.quality))  # type: ignore[return-value]


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
        _, scale = scaled(np.stack([np.zeros(count), use], axis=1), share=share)
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
        counts=world.rated.mean() / q if world.chosen else None,
        judge=_scores(quality[drawn], world.judge, seed=seed) if world.judge else None,
    )
    newest = slice(None, None, -1)
    return Run(log=log.part(newest), dollars=dollars[newest], quality=quality[newest])


def _scores(quality: Vector, alike: float, *, seed: int) -> Vector:
    """A judge's scores, of this correlation with the quality: the quality itself, or that of any other answer."""
    random = np.random.default_rng([seed, 1])
    return np.where(random.random(len(quality)) < alike, quality, random.permutation(quality))


def looked_at(run: Run, *, looks: Sequence[int], most: int | None) -> Iterator[tuple[int, Comparison, str]]:
    """(questions so far, the comparison with premium, the report in a sentence) at every look."""
    for count in looks:
        scope = ReportScope(label="main", since=0.0, until=count * 60.0)
        result = report_of(run.at(count, most=most), scope, policy=PolicySettings(), against="premium")
        assert result.total is not None
        yield count, result.total, result.sentence


@dataclass(kw_only=True)
class Score:
    """Results of a world over all runs."""

    runs: int = 0
    #: runs in which every interval held
    cost: int = 0
    quality: int = 0
    #: runs whose last look names a verdict, and in which a look names one that is false
    named: int = 0
    wrong: int = 0
    #: questions at the first look with a verdict, and the last look's widths, relative to premium's cost
    first: list[int] = field(default_factory=list)
    widths: list[tuple[float, float]] = field(default_factory=list)
    #: sentence of the last report of the first run
    sentence: str = ""

    def add(self, run: Run, *, looks: Sequence[int] = LOOKS, most: int | None = None) -> None:
        """Take a run in."""
        *_, (_, _, text) = looks_of_run = list(looked_at(run, looks=looks, most=most))
        self.sentence = self.sentence or text
        lines = [(count, line) for count, line, _ in looks_of_run]
        truths = [run.truth(count) for count, _ in lines]
        self.runs += 1
        self.cost += all(_holds(line.cost, truth[0]) for (_, line), truth in zip(lines, truths, strict=True))
        self.quality += all(_holds(line.quality, truth[1]) for (_, line), truth in zip(lines, truths, strict=True))
        last = lines[-1][1]
        self.named += last.verdict != NOT_KNOWN
        self.wrong += any(_is_false(line, *truth) for (_, line), truth in zip(lines, truths, strict=True))
        self.first += [count for count, line in lines if line.verdict != NOT_KNOWN][:1]
        if last.cost.is_known and last.quality.is_known and last.cost.second:
            self.widths.append((_width(last.cost) / last.cost.second, _width(last.quality)))


def _width(value: Difference) -> float:
    return (value.high or 0.0) - (value.low or 0.0)


def _holds(value: Difference, truth: float) -> bool:
    return value.low is None or value.high is None or value.low <= truth <= value.high


def _is_false(line: Comparison, _cost: float, quality: float) -> bool:
    """Whether a verdict is named that is not true. quality, which is the reward here: served less always premium."""
    claims = {"better": quality > 0.0, "as good": quality >= -MARGIN, "worse": quality < 0.0}
    return not claims.get(line.verdict, True)


def scores(worlds: Sequence[World] = WORLDS, *, runs: int, most: int | None = None) -> Mapping[str, Score]:
    """The score of each world."""
    result = {world.name: Score() for world in worlds}
    for number, world in enumerate(worlds):
        for seed in range(runs):
            result[world.name].add(made(world, count=max(LOOKS), seed=1_000 * number + seed), most=most)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--most", type=int, help="read at most this many questions, by a sample; default: all")
    given = parser.parse_args(arguments)
    runs = given.runs
    columns = ("service", "dollars held", "quality held", "verdict named", "false at a look", "first verdict", "widths")
    sentences: dict[str, str] = {}
    table = Table(*columns, title=f"{runs} runs, looks after {', '.join(f'{look:,}' for look in LOOKS)} questions")
    for name, score in scores(runs=runs, most=given.most).items():
        first = f"{np.median(score.first):,.0f} ({len(score.first)} runs)" if score.first else "-"
        widths = "-" if not score.widths else " ".join(f"{width:.3f}" for width in np.mean(score.widths, axis=0))
        counts = (score.cost, score.quality, score.named, score.wrong)
        table.add_row(name, *(f"{count} of {score.runs}" for count in counts), first, widths)
        sentences[name] = score.sentence
    console = Console(width=160)
    console.print(table)
    for name, text in sentences.items():
        console.print(f"{name}, first run: {text}", markup=False)


if __name__ == "__main__":
    main()
