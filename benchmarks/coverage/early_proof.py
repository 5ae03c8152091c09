"""How much sooner does a report say "better" with the judge's share, or with ratings of unrated answers, each alone?

    python -m benchmarks.coverage.early_proof               # 10 services, one after another: half an hour
    python -m benchmarks.coverage.early_proof --runs 3 trap

Services of a world of benchmarks.coverage.verdicts, with the report after every 100 questions until it says "better" or
"worse". "judge" ways have no ratings: a judge scores 15 % of the answers, drawn alike, or by use (`judge.share`). The
other ways have ratings of 15 % of the answers. When a report names a number of answers to rate, as many are rated:
none, any ("random"), or those that `report --rate` chooses ("the arm's").
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unittest import mock

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from sqlalchemy import select

from benchmarks.coverage import verdicts
from benchmarks.figures import machine
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.reporting.reading import Report, ReportScope, read_log
from ragbandit.router.reporting.report import report_of
from ragbandit.router.reporting.unrated_answers import queue_unrated, unrated_answers
from ragbandit.router.serving.deciding.steps.judge_share import JudgeShare
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.sql.tables import jobs
from ragbandit.shared.types import DecisionId, Query

WAYS: Final = ("judge alike", "judge by use", "none", "random", "the arm's")
#: share of the answers that are rated, or judged after the first 60
SHARE: Final = 0.15


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What became of a service."""

    questions: int | None  #: after which the report said a true "better"; None if it did not
    labels: int  #: ratings or scores by then
    false: int  #: reports with a false verdict
    missed: int  #: reports whose interval did not contain the truth


class Service:
    """A service of a world, with one way to get labels."""

    def __init__(self, router: Router, *, world: verdicts.World, way: str, seed: int, questions: int) -> None:
        random = np.random.default_rng([seed, 80])
        self.router, self.way, self.seed = router, way, seed
        kind = random.integers(2, size=questions)
        self.texts = [verdicts.made_text(number, long=bool(one), random=random) for number, one in enumerate(kind)]
        self.right = random.random((questions, 2)) < np.array(world.right)[kind]
        spread = np.exp(random.normal(-(world.spread**2) / 2, world.spread, self.right.shape))
        self.dollars = np.array(world.dollars)[kind] * spread
        self.worth = (np.array(world.right) - verdicts.WEIGHT * np.array(world.dollars))[kind]
        self.is_rated = (random.random(questions) < SHARE) & (not way.startswith("judge"))
        self.place = dict[DecisionId, tuple[int, int]]()  #: decision -> (number of the question, arm)
        self.gain, self.labelled = list[float](), set[DecisionId]()

    def prove(self) -> Proof:
        began, false, missed = time.time(), 0, 0
        for number in range(len(self.texts)):
            self._serve(number)
            if (number + 1) % 20 == 0:
                self._label("judge")
                self.router.learn()
            if (number + 1) % verdicts.EVERY:
                continue
            scope = ReportScope(label="main", since=began, until=time.time() + 1.0, reward=self.router.settings.reward)
            report = report_of(read_log(self.router.database, scope), scope, policy=verdicts.POLICY, against="large")
            assert report.total is not None
            mark = verdicts.Mark(
                questions=number + 1,
                rated=len(self.labelled),
                found=report.total,
                truth=float(np.mean(self.gain)),
            )
            false, missed = false + mark.is_false, missed + mark.is_missed
            if report.total.verdict in ("better", "worse"):
                is_better = report.total.verdict == "better" and not mark.is_false
                return Proof(questions=number + 1 if is_better else None, labels=mark.rated, false=false, missed=missed)
            self._rate(report, scope)
        return Proof(questions=None, labels=len(self.labelled), false=false, missed=missed)

    def _serve(self, number: int) -> None:
        decision = self.router.route(Query(text=self.texts[number], id=f"q{number}"))
        arm = verdicts.ARMS.index(decision.arm)
        self.place[decision.id] = number, arm
        self.gain.append(self.worth[number, arm] - self.worth[number, 1])
        self.router.outcome(decision.id, answer="y", cost={"dollars": float(self.dollars[number, arm])})
        if self.is_rated[number]:
            self._give(decision.id)

    def _rate(self, report: Report, scope: ReportScope) -> None:
        """Rate as many answers as the report names."""
        if report.to_rate is None or self.way not in ("random", "the arm's"):
            return
        with self.router.database.read() as connection:
            if len(unrated_answers(connection, scope, arm="large")) < report.to_rate:
                return
        if self.way == "the arm's":
            queue_unrated(self.router.database, scope, arm="large", count=report.to_rate, now=time.time())
            self._label("label")
            return
        unrated = sorted(self.place.keys() - self.labelled)
        chosen = np.random.default_rng([self.seed, len(self.gain)]).permutation(len(unrated))[: report.to_rate]
        for place in chosen.tolist():
            self._give(unrated[place])

    def _label(self, kind: str) -> None:
        """Label the answers that wait for it."""
        with self.router.database.read() as connection:
            waiting = set(connection.execute(select(jobs.c.decision_id).where(jobs.c.kind == kind)).scalars())
        for key in sorted(waiting - self.labelled):
            self._give(key, source="judge" if kind == "judge" else None)

    def _give(self, key: DecisionId, *, source: str | None = None) -> None:
        number, arm = self.place[key]
        self.router.feedback(key, rating=bool(self.right[number, arm]), source=source)
        self.labelled.add(key)


_CONFIGURE: Final = JudgeShare.configure


def _draw_alike(step: JudgeShare, served: ServedPolicy) -> None:
    """Configure the step, and let it draw nothing: each answer is judged with the same probability."""
    _CONFIGURE(step, served)
    step.is_on = False


def proof(name: str, *, way: str, seed: int, questions: int) -> Proof:
    """Serve the world until the report is sure, or until the last question."""
    with tempfile.TemporaryDirectory() as folder:
        config = verdicts.configured(verdicts.WORLDS[name], folder=Path(folder))
        if way.startswith("judge"):
            settings = json.loads(config.read_text())
            judge = {"generator": {"name": "scripted", "script": {"": "{}"}}, "share": SHARE, "first": 60}
            config.write_text(json.dumps({**settings, "judge": judge}))
        configure = _draw_alike if way == "judge alike" else _CONFIGURE
        with mock.patch.object(JudgeShare, "configure", configure), Router.open(config, jobs=MemoryJobs()) as router:
            router.service.secret = bytes(32)  # the arms are drawn alike each time; what is judged and rated is not
            service = Service(router, world=verdicts.WORLDS[name], way=way, seed=seed, questions=questions)
            return service.prove()


def main(arguments: Sequence[str]) -> None:
    """Print a line for every way to get labels."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coverage.early_proof",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("world", nargs="?", default="gain", help=f"of {', '.join(verdicts.WORLDS)}; default: gain")
    parser.add_argument("--runs", type=int, default=10, help="services")
    parser.add_argument("--questions", type=int, default=1_800, help="most questions of a service")
    options = parser.parse_args(list(arguments))
    if options.world not in verdicts.WORLDS:
        parser.error(f"unknown world {options.world!r}; known: {', '.join(verdicts.WORLDS)}")
    table = Table("labels", 'first true "better": questions', "labels by then, mean", "false", "missed", box=box.SIMPLE)
    for way in WAYS:
        proofs = [proof(options.world, way=way, seed=seed, questions=options.questions) for seed in range(options.runs)]
        ends = ", ".join("not known" if one.questions is None else f"{one.questions:,}" for one in proofs)
        labels = f"{np.mean([one.labels for one in proofs]):.0f}"
        table.add_row(way, ends, labels, str(sum(one.false for one in proofs)), str(sum(one.missed for one in proofs)))
    Console(width=140).print(table)
    print(f"{options.runs} services of {options.world}, at most {options.questions:,} questions each; {machine()}")


if __name__ == "__main__":
    main(sys.argv[1:])
