"""Learning from a judge where nearly nobody labels: a made world with 2 % of labels and a judge that favours an arm.

Two kinds of question, three arms. A judge of AUC .8 scores every answer, and is .15 too kind to no_retrieval, which is
cheap and wrong on the hard kind. People label 2 % of the answers. Four learners, each on its own stream of decisions:
all labels; the 2 % alone; these and the judge's scores as they are; these and the scores calibrated. Decisions become
rows by the learner's own code: join, raters, calibration, policy. Once with the defaults, once with less trust in a
judge that nobody has compared yet, and with less exploration, for all learners alike.

    python -m benchmarks.learning.judge_world
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table as Printed

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import Example, join, made_update
from ragbandit.router.learning.ratings.calibration import Calibrator, calibrated
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy, apply, pmf_of_one
from ragbandit.router.policies.draw import choose, seed_of, with_floor
from ragbandit.shared.types import (
    ArmName,
    CalibrationPair,
    Cost,
    Decision,
    DecisionId,
    Feedback,
    FeedbackId,
    JoinedDecision,
    Json,
    Outcome,
    PolicyLabel,
    Query,
)

Learner = Literal["all labels", "labels alone", "judge as it is", "judge calibrated"]
LEARNERS: Final[tuple[Learner, ...]] = get_args(Learner)
Vector = npt.NDArray[np.float64]

ARMS: Final = tuple(map(ArmName, ("no_retrieval", "single_step", "multi_step")))
STEPS: Final = np.array([0.0, 1.0, 3.0])
#: chance of a right answer, by kind of question (rows) and arm
RIGHT: Final = np.array([[0.80, 0.80, 0.80], [0.20, 0.75, 0.75]])
#: what the judge adds to the scores of each arm
FAVOURS: Final = np.array([0.15, 0.0, 0.0])
#: scores of right and wrong answers are 2^.5 times the normal quantile of AUC .8 apart, in standard deviations
APART, SPREAD = 1.19, 0.2
LABELLED, FLOOR = 0.02, 0.02
QUESTIONS, HELD_OUT, SEEDS = 5000, 2000, 8
#: features that say nothing, beside the one that tells the kind
NOISE: Final = 7
#: (params of mba, learning.weights.judge) of the tables
CAREFUL: Final[tuple[Mapping[str, Json], float]] = ({"explore": 0.4}, 0.1)
DEFAULTS: Final[tuple[Mapping[str, Json], float]] = ({}, 0.3)
PRICE: Final = Settings().reward.weight


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One learner in one world."""

    #: mean expected reward of its decisions; of its policy at the end, on questions held out
    learning: float
    final: float


class _World:
    """The stream of questions of one seed, the same for every learner, and the judge."""

    def __init__(self, seed: int, *, questions: int, labelled: float) -> None:
        rng = np.random.default_rng([seed, 1])
        self.kinds = rng.integers(2, size=questions + HELD_OUT)
        noise = rng.standard_normal((questions + HELD_OUT, NOISE))
        self.features = np.column_stack([2.0 * self.kinds - 1.0, noise]).astype(np.float32)
        self.rewards = RIGHT[self.kinds] - PRICE * STEPS  # (n, arms), in expectation
        self.luck, draws = rng.random((2, questions))
        self.labelled = draws < labelled
        self.mood = rng.standard_normal(questions)

    def quality(self, at: int, *, arm: int) -> float:
        return float(self.luck[at] < RIGHT[self.kinds[at], arm])

    def score(self, at: int, *, arm: int) -> float:
        told = SPREAD * (APART * (self.quality(at, arm=arm) - 0.5) + self.mood[at])
        return float(np.clip(0.5 + told + FAVOURS[arm], 0.0, 1.0))


def measured(
    learner: Learner,
    *,
    seed: int,
    policy: str = "mba",
    params: Mapping[str, Json],
    judge_weight: float,
    questions: int = QUESTIONS,
    labelled: float = LABELLED,
) -> Measured:
    """Let one learner decide and learn, decision by decision. judge_weight: of scores that are not calibrated yet."""
    world, calibrator = _World(seed, questions=questions, labelled=labelled), Calibrator()
    learning = {"wait_s": 1.0, "aggregate": "mean", "weights": {"judge": judge_weight}}
    settings = Settings.model_validate({"learning": learning})
    made = make_policy(policy, params=params)
    earned = 0.0
    for at in range(questions):
        pmf = with_floor(_pmf(made, world, at), floor=FLOOR)
        earned += float(np.dot(pmf, world.rewards[at]))
        joined = _decided(world, at, pmf=pmf, learner=learner, seed=seed)
        found = join(joined, settings=settings, needs_features=True, encoder_hash="", now=2.0)
        if isinstance(found, Example):
            example = _calibrated(found, joined.decision, calibrator) if learner == "judge calibrated" else found
            row = made_update(joined.decision, example, label=PolicyLabel("world"), seq=at + 1, now=2.0)
            assert apply(made, row)
    last = range(questions, questions + HELD_OUT)
    final = [float(np.dot(with_floor(_pmf(made, world, at), floor=FLOOR), world.rewards[at])) for at in last]
    return Measured(learning=earned / questions, final=float(np.mean(final)))


def _pmf(policy: Policy, world: _World, at: int) -> tuple[float, ...]:
    return pmf_of_one(policy, Query(text="which?"), features=world.features[at], arms=ARMS).pmf


def _decided(world: _World, at: int, *, pmf: Sequence[float], learner: Learner, seed: int) -> JoinedDecision:
    """The decision on a question, its outcome, and what this learner is told of it."""
    key = DecisionId(f"{seed}-{at}-{learner.replace(' ', '_')}")
    drawn = choose(pmf, seed=seed_of(key))
    decision = Decision(
        id=key,
        query=Query(text="which?"),
        arm=ARMS[drawn],
        arms=ARMS,
        pmf=tuple(pmf),
        propensity=pmf[drawn],
        scores=None,
        policy=PolicyLabel("world"),
        version="world",
        encoder_hash="",
        seed=seed_of(key),
        floor=FLOOR,
        explored=False,
        fault=None,
        facts={},
        run_by="caller",
        features=world.features[at],
        made_at=0.0,
    )
    outcome = Outcome(
        decision_id=key,
        status="answered",
        answer="an answer",
        trace=(),
        cost=Cost(),
        steps=float(STEPS[drawn]),
        stop_reason="",
        error=None,
        run_by="caller",
        made_by={},
        made_at=0.0,
    )
    return JoinedDecision(decision=decision, outcome=outcome, feedback=tuple(_told(world, at, drawn, key, learner)))


def _told(world: _World, at: int, arm: int, key: DecisionId, learner: Learner) -> Iterator[Feedback]:
    common = {"decision_id": key, "kind": "rating", "received_at": 0.5}
    if learner == "all labels" or world.labelled[at]:
        yield Feedback(id=FeedbackId(f"h{at}"), value=world.quality(at, arm=arm), source="human", **common)  # type: ignore[arg-type]
    if learner.startswith("judge"):
        yield Feedback(id=FeedbackId(f"j{at}"), value=world.score(at, arm=arm), source="judge", **common)  # type: ignore[arg-type]


def _calibrated(example: Example, decision: Decision, calibrator: Calibrator) -> Example:
    """As the learner does it: the score by the pairs before it, then the decision's own pair."""
    fit = calibrator.fit if example.is_score else None
    if example.pair is not None:
        score, quality = example.pair
        pair = CalibrationPair(
            number=calibrator.count + 1,
            decision_id=decision.id,
            arm=decision.arm,
            score=score,
            quality=quality,
            after_seq=0,
        )
        calibrator.extend([pair])
    if fit is None:
        return example
    return Example(reward=calibrated(example.reward, arm=decision.arm, fit=fit), feedback=example.feedback)


def table_rows(
    *,
    seeds: int = SEEDS,
    questions: int = QUESTIONS,
    policy: str = "mba",
    params: Mapping[str, Json],
    judge_weight: float,
    learners: Sequence[Learner] = LEARNERS,
) -> list[dict[str, float | str]]:
    """Per learner: rewards over the seeds, and their shortfall against all labels in percent (worst: of one seed).

    Keys: learner, and learning and final, each also with _short and _worst behind it.
    """
    found = {
        learner: [
            measured(learner, seed=seed, policy=policy, params=params, judge_weight=judge_weight, questions=questions)
            for seed in range(seeds)
        ]
        for learner in learners
    }
    rows: list[dict[str, float | str]] = []
    for learner, runs in found.items():
        row: dict[str, float | str] = {"learner": learner}
        for name in ("learning", "final"):
            here = np.array([getattr(run, name) for run in runs])
            whole = np.array([getattr(run, name) for run in found["all labels"]])
            row[name] = float(here.mean())
            row[f"{name}_short"] = 100.0 * float(1.0 - here.mean() / whole.mean())
            row[f"{name}_worst"] = 100.0 * float((1.0 - here / whole).max())
        rows.append(row)
    return rows


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    parser.add_argument("--policy", default="mba")
    asked = parser.parse_args(list(arguments))
    for params, weight in (DEFAULTS, CAREFUL):
        rows = table_rows(
            seeds=asked.seeds, questions=asked.questions, policy=asked.policy, params=params, judge_weight=weight
        )
        _print(rows, title=f"{asked.policy} {dict(params)}, learning.weights.judge {weight}, {asked.seeds} seeds")


def _print(rows: Sequence[Mapping[str, float | str]], *, title: str) -> None:
    printed = Printed(title=title)
    for name in ("learner", "while learning", "short of all labels", "at the end", "short of all labels", "worst seed"):
        printed.add_column(name, justify="left" if name == "learner" else "right")
    for row in rows:
        printed.add_row(
            str(row["learner"]),
            f"{row['learning']:.3f}",
            f"{row['learning_short']:.1f} %",
            f"{row['final']:.3f}",
            f"{row['final_short']:.1f} %",
            f"{row['final_worst']:.1f} %",
        )
    Console(width=100).print(printed)


if __name__ == "__main__":
    main(sys.argv[1:])
