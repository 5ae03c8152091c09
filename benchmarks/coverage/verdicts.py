"""After how many questions does a report know what is true? Made worlds of two arms, served and learned by the product.

    python -m benchmarks.coverage.verdicts              # 10 services of each world
    python -m benchmarks.coverage.verdicts --runs 3 gain trap
    python -m benchmarks.coverage.verdicts --decide 300 gain null  # `report --decide` asks at most 300 questions
    python -m benchmarks.coverage.verdicts --judge 0.3 gain        # a judge scores 30 % of the answers, too

The caller runs the arms; cost is dollars, 30 % of the answers are rated, the holdback of 5 % goes to `large`. The
report against always `large` is made after every 100 questions. In `gain_init` the holdback is the one of `init`. "to
small" is the end of the first 100 questions of which `small` got 80 % of the short ones.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from benchmarks.coverage.asked_again import MADE, made_answer
from benchmarks.figures import machine
from ragbandit.router.comparison import MARGIN, NOT_KNOWN, Comparison
from ragbandit.router.comparison.holdback_size import usual_size
from ragbandit.router.config.learning import HoldbackSettings, PolicySettings, RewardSettings
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.reporting.compared_questions import ComparedQuestion, ComparedQuestions
from ragbandit.router.reporting.paired_comparison import paired_comparison
from ragbandit.router.reporting.reading import ReportRows, ReportScope, read_log
from ragbandit.router.reporting.report import report_of
from ragbandit.router.serving.router import Router
from ragbandit.shared.processes.this_process import cores
from ragbandit.shared.texts.formats import decimal
from ragbandit.shared.types import ArmName, DecisionId, Matrix, Query, Vector
from ragbandit.workers.cli import app

ARMS: Final = ("small", "large")
_SHORT: Final = (
    "price of tea",
    "capital of Peru",
    "author of Emma",
    "height of K2",
    "age of Pele",
    "color of ruby",
    "speed of sound",
)
_LONG: Final = (
    "compare how the two reports of the last year explain why revenue fell in the north while costs rose",
    "explain step by step which of the three suppliers would be cheaper if the currency loses a tenth",
    "summarise what the contract and its two annexes say about liability and who pays in case of delay",
)
#: value of a dollar in right answers
WEIGHT: Final = 18.0
#: questions between two reports, and between two calls of learn()
EVERY: Final = 100
_LEARN_EVERY: Final = 20
#: share of the short questions at which a service counts as sending them to `small`
_MOST_SHORT: Final = 0.8
#: questions with the outcomes of both arms of a warm start
_WARM: Final = 100
#: stands for a question after the last one
_NEVER: Final = 10**9
#: a truth this close to 0 is neither better nor worse
_NOTHING: Final = 1e-3
POLICY: Final = PolicySettings(holdback=HoldbackSettings(arm="large"))


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Chances to be right and dollars of both arms, on short questions and on long ones: shape (2, 2)."""

    right: Sequence[tuple[float, float]] = ((0.95, 0.93), (0.45, 0.93))
    dollars: Sequence[tuple[float, float]] = ((0.001, 0.01), (0.001, 0.01))
    incumbent: bool = False  #: whether `large` is the incumbent of a safe start
    warm: bool = False  #: whether it starts with the outcomes of both arms on 100 questions
    spread: float = 0.0  #: spread of an answer's dollars, of a lognormal
    holdback: Mapping[str, float] = field(default_factory=lambda: {"share": 0.05})
    rated: float = 0.3
    judged: float = 0.0  #: share of answers that a judge scores
    #: how often the judge finds an answer right, as `right`; None if it finds what is true
    judge: Sequence[tuple[float, float]] | None = None


WORLDS: Final[Mapping[str, World]] = {
    "gain": World(),
    "gain_init": World(holdback=usual_size("").setting),
    "gain_safe": World(incumbent=True),
    "gain_warm": World(warm=True),
    "null": World(right=((0.8, 0.8), (0.8, 0.8)), dollars=((0.005, 0.005), (0.005, 0.005))),
    # the judge prefers the arm that is worse
    "judge": World(
        right=((0.78, 0.8), (0.78, 0.8)),
        dollars=((0.005, 0.005), (0.005, 0.005)),
        judged=0.3,
        judge=((0.82, 0.8), (0.82, 0.8)),
    ),
    # the cost of `large` follows the question, so what its other answers cost does not speak of a short question
    "trap": World(right=((0.84, 0.93), (0.45, 0.93)), dollars=((0.001, 0.002), (0.001, 0.018))),
    "trap_safe": World(
        right=((0.84, 0.93), (0.45, 0.93)), dollars=((0.001, 0.002), (0.001, 0.018)), incumbent=True, spread=0.5
    ),
    "spread": World(spread=0.8),
    # the best possible answer is far above the arm's, so it bounds nothing
    "no bound": World(right=((0.8, 0.75), (0.3, 0.75))),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Life:
    """A served world. Vectors have shape (n,), the newest question first."""

    rows: ReportRows
    gain: Vector  #: expected reward of the answer minus expected reward of `large`
    arm: npt.NDArray[np.intp]  #: place in ARMS of the arm that answered
    right: Matrix  #: whether each arm is right when it is asked again, shape (n, 2)
    dollars: Matrix  #: what each arm then costs, shape (n, 2)
    to_small: int | None  #: end of the first EVERY questions of which `small` got _MOST_SHORT of the short ones


def lived(world: World, *, seed: int, questions: int) -> Life:
    """Serve `questions` questions of the world."""
    random = np.random.default_rng([seed, 80])
    kind = random.integers(2, size=questions + _WARM)
    texts = [made_text(number, long=bool(one), random=random) for number, one in enumerate(kind)]
    right = random.random((len(kind), 2)) < np.array(world.right)[kind]
    spread = np.exp(random.normal(-(world.spread**2) / 2, world.spread, right.shape))
    dollars = np.array(world.dollars)[kind] * spread
    rated, judged = random.random(questions) < world.rated, random.random(questions) < world.judged
    scores = right if world.judge is None else random.random(right.shape) < np.array(world.judge)[kind]
    with tempfile.TemporaryDirectory() as folder:
        config = configured(world, folder=Path(folder))
        if world.warm:
            _warmed(config, texts=texts[questions:], right=right[questions:], dollars=dollars[questions:])
        with Router.open(config, jobs=MemoryJobs()) as router:
            router.service.secret = bytes(32)  # the same draws each time
            began = time.time()
            for number, text in enumerate(texts[:questions]):
                decision = router.route(Query(text=text, id=f"q{number}"))
                arm = ARMS.index(decision.arm)
                router.outcome(decision.id, answer="y", cost={"dollars": float(dollars[number, arm])})
                if rated[number]:
                    router.feedback(decision.id, rating=bool(right[number, arm]))
                if judged[number]:
                    router.feedback(decision.id, rating=bool(scores[number, arm]), source="judge")
                if (number + 1) % _LEARN_EVERY == 0:
                    router.learn()
            scope = ReportScope(label="main", since=began, until=time.time() + 1.0, reward=router.settings.reward)
            rows = read_log(router.database, scope)
    worth = (np.array(world.right) - WEIGHT * np.array(world.dollars))[kind[:questions]]
    drawn = np.array([ARMS.index(arm) for arm in rows.arms])[rows.arm][::-1]
    gain = worth[np.arange(questions), drawn] - worth[:, 1]
    again = np.random.default_rng([seed, 81])
    newly = (again.random((questions, 2)) < np.array(world.right)[kind[:questions]]).astype(np.float64)
    spread = np.exp(again.normal(-(world.spread**2) / 2, world.spread, newly.shape))
    costs = np.array(world.dollars)[kind[:questions]] * spread
    to_small = _to_small(drawn, short=kind[:questions] == 0)
    return Life(rows=rows, gain=gain[::-1], arm=drawn[::-1], right=newly[::-1], dollars=costs[::-1], to_small=to_small)


def _to_small(drawn: npt.NDArray[np.intp], *, short: npt.NDArray[np.bool_]) -> int | None:
    for end in range(EVERY, len(drawn) + 1, EVERY):
        block = slice(end - EVERY, end)
        if np.mean(drawn[block][short[block]] == ARMS.index("small")) >= _MOST_SHORT:
            return end
    return None


def made_text(number: int, *, long: bool, random: np.random.Generator) -> str:
    return f"{random.choice(_LONG if long else _SHORT)} {number}?"


def configured(world: World, *, folder: Path) -> Path:
    policy: dict[str, Any] = {"holdback": {"arm": "large", **world.holdback}}
    if world.incumbent:
        policy["incumbent"] = "large"
    settings = {
        "data_dir": str(folder / "data"),
        "encoder": {"model": "hashing"},
        "arms": {arm: {"run_by": "caller"} for arm in ARMS},
        "policy": policy,
        "reward": {"weight": WEIGHT, "cost": {"dollars": 1.0}},
    }
    config = folder / "config.yaml"
    config.write_text(json.dumps(settings))
    return config


def _warmed(config: Path, *, texts: Sequence[str], right: npt.NDArray[np.bool_], dollars: Matrix) -> None:
    table = config.with_name("table.jsonl")
    rows = [
        {"question": text, "correct": dict(zip(ARMS, was, strict=True)), "dollars": dict(zip(ARMS, cost, strict=True))}
        for text, was, cost in zip(texts, right.tolist(), dollars.tolist(), strict=True)
    ]
    table.write_text("\n".join(map(json.dumps, rows)))
    done = CliRunner().invoke(app, ["advise", "--table", str(table), "--warm", "--config", str(config)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """What the report said after some questions."""

    questions: int
    rated: int
    found: Comparison
    truth: float  #: mean gain

    @property
    def is_false(self) -> bool:
        return {
            "better": self.truth < _NOTHING,
            "worse": self.truth > -_NOTHING,
            "as good": self.truth < -MARGIN - _NOTHING,
            NOT_KNOWN: False,
        }[self.found.verdict]

    @property
    def is_missed(self) -> bool:
        """Whether there is an interval without the truth."""
        low, high = self.found.reward.low, self.found.reward.high
        return low is not None and high is not None and not low - 1e-9 <= self.truth <= high + 1e-9


def marks(life: Life) -> list[Mark]:
    """The reports after every 100 questions, against always `large`."""
    found, count = [], len(life.gain)
    for questions in range(EVERY, count + 1, EVERY):
        rows = life.rows.part(slice(count - questions, None))
        scope = ReportScope(label="main", since=0.0, until=float(rows.made_at.max()) + 1.0)
        report = report_of(rows, scope, policy=POLICY, against="large")
        assert report.total is not None
        rated = int((~np.isnan(rows.quality)).sum())
        truth = float(life.gain[count - questions :].mean())
        found.append(Mark(questions=questions, rated=rated, found=report.total, truth=truth))
    return found


def bought(life: Life, *, most: int) -> list[Mark]:
    """The comparisons by `report --decide` after every 100 questions, if it asks at most `most` questions in all."""
    found, count = [], len(life.gain)
    random = np.random.default_rng([count, 82])
    draws = random.random(count).tolist()
    setting = RewardSettings(weight=WEIGHT, cost={"dollars": 1.0})
    for questions in range(EVERY, count + 1, EVERY):
        asked = sorted((draws[row], row) for row in range(count - questions, count) if ARMS[life.arm[row]] != "large")
        differing = [
            ComparedQuestion(
                id=DecisionId(str(row)),
                arm=ArmName(ARMS[life.arm[row]]),
                cost=float(life.dollars[row, life.arm[row]]),
                obstacle=None,
            )
            for _, row in asked
        ]
        paired = ComparedQuestions(against=ArmName("large"), routed=questions, differing=differing)
        answers = [
            made_answer(
                question.id,
                ArmName(arm),
                quality=float(life.right[int(question.id), place]),
                dollars=float(life.dollars[int(question.id), place]),
            )
            for question in differing[:most]
            for place, arm in enumerate(ARMS)
        ]
        result = paired_comparison(paired, MADE, answers, setting=setting)
        truth = float(life.gain[count - questions :].mean())
        found.append(Mark(questions=questions, rated=result.asked, found=result.comparison, truth=truth))
    return found


def first(looks: Sequence[Mark], verdict: str = "better") -> Mark | None:
    """The first report with this verdict, if it is true."""
    return next((mark for mark in looks if mark.found.verdict == verdict and not mark.is_false), None)


def _looked(name: str, seed: int, questions: int, most: int | None, judged: float) -> tuple[list[Mark], int | None]:
    world = WORLDS[name]
    life = lived(replace(world, judged=max(judged, world.judged)), seed=seed, questions=questions)
    return marks(life) if most is None else bought(life, most=most), life.to_small


def main(arguments: Sequence[str]) -> None:
    """Print a line for every world."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coverage.verdicts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("worlds", nargs="*", help=f"of {', '.join(WORLDS)}; default: all")
    parser.add_argument("--runs", type=int, default=10, help="services of every world")
    parser.add_argument("--questions", type=int, default=2_500, help="questions of every service")
    parser.add_argument("--decide", type=int, metavar="N", help="ask both ways again, at most N questions at each look")
    parser.add_argument("--judge", type=float, default=0.0, help="share of answers that a judge scores, in all worlds")
    parser.add_argument("--jobs", type=int, default=cores())
    asked = parser.parse_args(list(arguments))
    columns = (
        "world",
        "truth at the end",
        f'first true "better": questions ({"rated" if asked.decide is None else "asked"})',
        "least, most",
        "false",
        "missed",
        "to small",
    )
    table = Table(*columns, box=box.SIMPLE)
    with ProcessPoolExecutor(asked.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = {
            name: [
                pool.submit(_looked, name, seed, asked.questions, asked.decide, asked.judge)
                for seed in range(asked.runs)
            ]
            for name in asked.worlds or WORLDS
        }
        for name, waiting in jobs.items():
            table.add_row(name, *_row([job.result() for job in waiting]))
    Console(width=140).print(table)
    print(f"{asked.runs} services of {asked.questions:,} questions each; {machine()}")


def _row(results: Sequence[tuple[Sequence[Mark], int | None]]) -> tuple[str, ...]:
    lives = [looks for looks, _ in results]
    known = sorted((mark.questions, mark.rated) for mark in map(first, lives) if mark is not None)
    # a service without the verdict counts as later than all others
    ranked = [*known, *[(_NEVER, 0)] * (len(lives) - len(known))]
    middle = int(median(range(len(ranked))))
    at = ranked[middle]
    to_small = sorted(_NEVER if end is None else end for _, end in results)[middle]
    return (
        decimal(float(np.mean([looks[-1].truth for looks in lives])), sign="+"),
        "not known" if at[0] == _NEVER else f"{at[0]:,} ({at[1]:,})",
        f"{known[0][0]:,}, {known[-1][0]:,}" if known else "-",
        f"{sum(any(mark.is_false for mark in looks) for looks in lives)} of {len(lives)}",
        f"{sum(any(mark.is_missed for mark in looks) for looks in lives)} of {len(lives)}",
        "never" if to_small == _NEVER else f"{to_small:,}",
    )


if __name__ == "__main__":
    main(sys.argv[1:])
