"""What the judging of candidates is worth: `python -m benchmarks.rollouts`, a minute and a half on two processors.

Made worlds of three arms. The champion plays the best arm with probability 0.93, the candidate another one on a third
of the questions, by which its reward is `gap` better or worse. Each run goes through the verdicts that the service
uses, as a canary of `--weight`; a decision every ten seconds, judged at once, and a verdict every 25 decisions.
`--runs 500` is the default; `--worlds labels` takes rewards that are 0 or 1, `--worlds rare` such that are rarely 0.
"""

import argparse
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.coverage.places import VERSION
from ragbandit.router.config.sections import RolloutSettings
from ragbandit.router.rollouts.evidence import Draws, Judged
from ragbandit.router.rollouts.verdicts import Evidence, decide

ARMS: Final = ("no_retrieval", "single_step", "multi_step")
#: decisions between two moves of the state
EVERY: Final = 25
#: seconds from one decision to the next
PACE_S: Final = 10.0
EXPLORED: Final = 0.1
Generator = np.random.Generator


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """What a candidate is worth."""

    name: str
    #: reward of the candidate less that of the champion
    gap: float
    #: share of questions on which the two play different arms
    differing: float = 1 / 3
    #: rewards are 0 or 1; else spread over [0, 1] with a deviation of 0.25
    labels: bool = False
    #: mean reward of the champion
    usual: float = 0.5
    #: share of answers that fail, and that people rate
    failing: float = 0.01
    rated: float = 1.0
    #: correlation of a judge's scores of all answers with their rewards; 0: there is no judge
    judge: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """How one run ended: "better", "rollback", or "open" where it had not after all decisions."""

    ending: str
    decisions: int


def rows(world: World, *, weight: float, count: int, rng: Generator) -> tuple[Judged, dict[str, Any]]:
    """Decisions of this world, drawn from the mixture: with rewards, and the arguments of `Evidence.add`."""
    at = np.arange(count)
    best, differs = rng.integers(0, 3, count), rng.random(count) < world.differing
    other = (best + rng.integers(1, 3, count)) % 3
    champion = np.full((count, 3), EXPLORED / 3)
    candidate = champion.copy()
    champion[at, best] += 1.0 - EXPLORED
    candidate[at, np.where(differs, other, best)] += 1.0 - EXPLORED
    value = np.full((count, 3), world.usual)
    value[at, other] += np.where(differs, world.gap / (world.differing * (1.0 - EXPLORED)), 0.0)
    pmf = (1.0 - weight) * champion + weight * candidate
    arm = (pmf.cumsum(axis=1) > rng.random(count)[:, None]).argmax(axis=1)
    mean = value[at, arm]
    reward = (rng.random(count) < mean).astype(float) if world.labels else rng.beta(3.0 * mean, 3.0 * (1.0 - mean))
    rated = rng.random(count) < world.rated
    judge = np.where(rng.random(count) < world.judge, reward, rng.permutation(reward)) if world.judge else None
    draws = Draws(
        arms=ARMS,
        arm=arm,
        pmf=pmf,
        candidate=candidate,
        champion=champion,
        scores=np.full((count, 3), np.nan),
    )
    failed = (rng.random(count) < world.failing).astype(float)
    outcomes = {"draws": draws, "failed": failed, "cost": 1.0 + arm.astype(float)}
    if judge is not None:
        seen = np.where(rated, reward, np.nan)
        return Judged(draws=draws, reward=seen, judge=judge, minimum=-1.0, maximum=1.0), outcomes
    return Judged(draws=draws.cut(rated), reward=reward[rated], minimum=-1.0, maximum=1.0), outcomes


def lived(seed: int, *, world: World, decisions: int, weight: float) -> Run:
    """The life of one canary, until it is proven to be better or rolled back."""
    rng, evidence = np.random.default_rng(seed), Evidence(settings=RolloutSettings())
    for first in range(0, decisions, EVERY):
        judged, outcomes = rows(world, weight=weight, count=EVERY, rng=rng)
        evidence.rewards.add_judged(judged)
        evidence.add(**outcomes)
        found = decide(VERSION, evidence=evidence, now=(first + EVERY) * PACE_S)
        if found.kind in ("better", "rollback"):
            return Run(ending=found.kind, decisions=first + EVERY)
    return Run(ending="open", decisions=decisions)


def main() -> None:
    """Print how often candidates of each world are found better and rolled back, and after how many decisions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--decisions", type=int, default=5000)
    parser.add_argument("--weight", type=float, default=0.25, help="share of the canary")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--worlds", choices=["graded", "labels", "rare"], default="graded")
    parser.add_argument("--rated", type=float, default=1.0, help="share of the answers that people rate")
    parser.add_argument(
        "--judge", type=float, default=0.0, help="correlation of a judge's scores with the quality; 0 without a judge"
    )
    asked = parser.parse_args()
    rare = asked.worlds == "rare"
    gaps = {"no difference": 0.0, "worse by 10 points": -0.1}
    gaps |= {"better by half a point": 0.005} if rare else {"better by 5 points": 0.05}
    given = {"labels": asked.worlds != "graded", "rated": asked.rated, "judge": asked.judge}
    given |= {"usual": 0.98 if rare else 0.5}
    worlds = [World(name=name, gap=gap, **given) for name, gap in gaps.items()]
    headings = ("candidate", "better", "rolled back", "before 1,000", "still open", "median decisions to its end")
    told = f"{asked.runs} runs of at most {asked.decisions:,} decisions, {asked.worlds} rewards"
    table = Table(*headings, title=f"{told}, {asked.rated:.0%} rated, a judge of correlation {asked.judge:g}")
    with ProcessPoolExecutor(asked.processes) as pool:
        for world in worlds:
            one = partial(lived, world=world, decisions=asked.decisions, weight=asked.weight)
            ended = list(track(pool.map(one, range(asked.runs), chunksize=5), total=asked.runs, description=world.name))
            table.add_row(world.name, *_told(ended))
    Console().print(table)


def _told(ended: list[Run]) -> list[str]:
    def share(count: int) -> str:
        return f"{count / len(ended):.1%}"

    endings = Counter(run.ending for run in ended)
    early = sum(run.ending == "rollback" and run.decisions < 1000 for run in ended)
    done = [run.decisions for run in ended if run.ending != "open"]
    median = f"{np.median(done):,.0f}" if done else "-"
    return [
        *(share(endings[ending]) for ending in ("better", "rollback")),
        share(early),
        share(endings["open"]),
        median,
    ]


if __name__ == "__main__":
    main()
