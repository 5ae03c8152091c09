"""Gains of routing over always each arm, with their intervals, in either design.

Paired outcomes: the questions have the outcomes of every arm (a table, a run, or what a store has imported of them).
Logged draws: each question has the outcome of one drawn arm, and replay estimates the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np

from ragbandit.router.comparison import Comparison, Difference, compare
from ragbandit.router.comparison.assessment import FrontierPoint
from ragbandit.router.comparison.intervals import PARTS, paired
from ragbandit.router.config.settings import RewardSettings
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.replay.candidates import MemoryLog, memory_log
from ragbandit.router.offline.replay.engine import estimate_candidates, replay_pmfs
from ragbandit.router.offline.replay.plan import (
    CandidatePmf,
    CandidateSpec,
    EstimateWithInterval,
    Plan,
    array_pmf,
    baselines,
)
from ragbandit.router.offline.replay.sums import memory_part
from ragbandit.router.offline.warm import Outcomes, has_every_arm, outcomes_of, question_key
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.formats import counted
from ragbandit.shared.types import IMPORTED, ArmName, Json, Matrix

CONFIDENCE: Final = 0.95
#: name of the policy after learning in comparisons
ROUTING: Final = "routing"
ALWAYS: Final = "always "
_PARTIAL: Final = "the log has the probability of the drawn arm only: log the probability of every arm"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gains:
    questions: int  #: number of questions on which the ways are compared
    on: str  #: these questions in words
    #: routing compared with always each arm, the best arm first; arms that cannot be judged are last
    comparisons: tuple[Comparison, ...]
    shares: Mapping[ArmName, float]  #: share of the questions that routing sends to an arm
    frontier: tuple[FrontierPoint, ...]
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> ArmName:
        """The fixed arm with the highest mean reward."""
        return ArmName(self.comparisons[0].second.removeprefix(ALWAYS))


def paired_outcomes(rows: Sequence[Logged]) -> tuple[Outcomes | None, Sequence[Logged]]:
    """Returns (outcomes of the questions that have them of every arm; None without any, the other rows).

    Among rows that were served, only imports count whose questions mostly have every arm: a served question that has
    every arm by chance was asked more often than others.
    """
    outcomes = outcomes_of(rows)
    if outcomes is not None:
        return outcomes, ()
    imports: dict[Json, dict[str, list[Logged]]] = {}
    for row in rows:
        if IMPORTED in row.decision.facts:
            questions = imports.setdefault(row.decision.facts[IMPORTED], {})
            questions.setdefault(question_key(row.decision.query), []).append(row)
    paired: list[Logged] = []
    for questions in imports.values():
        complete = [group for group in questions.values() if has_every_arm(group)]
        if 2 * len(complete) > len(questions):
            paired += chain.from_iterable(complete)
    if not paired:
        return None, rows
    known = {row.decision.id for row in paired}
    return outcomes_of(paired), [row for row in rows if row.decision.id not in known]


def _difference(mean: EstimateWithInterval, *, effective: float, **means: float) -> Difference:
    return Difference(estimate=mean.value, low=mean.low, high=mean.high, effective_rows=effective, **means)


def unit_of(reward: RewardSettings) -> str:
    """Unit of a cost in the reward: the one term that is charged with the price 1, else "cost"."""
    charged = [(term, price) for term, price in reward.cost.items() if price > 0.0]
    return charged[0][0].removesuffix("_total") if len(charged) == 1 and charged[0][1] == 1.0 else "cost"


def on_outcomes(
    outcomes: Outcomes, *, log: MemoryLog, pmfs: Mapping[str, Matrix], reward: RewardSettings, confidence: float
) -> Gains:
    """Gains on known outcomes. pmfs: ROUTING, or a cost weight in words -> probabilities, (n, K) of the log.

    The rows of `outcomes` are the first rows of the log.
    """
    complete = [outcomes.arms[column] for column in outcomes.complete]
    # All rows of a question have the same probabilities. Shape (questions, complete arms)
    chosen = {
        label: pmf[: len(outcomes.rows) : len(complete)][:, [log.log.arms.index(arm) for arm in complete]]
        for label, pmf in pmfs.items()
    }
    values = {"reward": outcomes.reward, "quality": outcomes.quality, "cost": outcomes.cost}
    ways = {
        label: {part: (share * matrix[:, outcomes.complete]).sum(axis=1) for part, matrix in values.items()}
        for label, share in chosen.items()
    }
    comparisons = []
    for column, arm in enumerate(outcomes.arms):
        asked = ~np.isnan(outcomes.reward[:, column])
        comparison = paired(
            ROUTING,
            f"always {arm}",
            ours={part: ours[asked] for part, ours in ways[ROUTING].items()},
            theirs={part: matrix[asked, column] for part, matrix in values.items()},
            span=reward.maximum - reward.minimum,
            unit=unit_of(reward),
            confidence=confidence,
        )
        comparisons.append(comparison)
    questions = len(outcomes.queries)
    points = {label: (way["quality"].mean(), way["cost"].mean()) for label, way in ways.items() if label != ROUTING}
    return Gains(
        questions=questions,
        on=f"on {counted(questions, 'question')} with the outcomes of every arm",
        shares=dict(zip(complete, map(float, chosen[ROUTING].mean(axis=0)), strict=True)),
        **_ordered(comparisons, judged=complete, points=points),
    )


def on_draws(
    log: MemoryLog,
    *,
    first: int,
    pmfs: Mapping[str, Matrix],
    reward: RewardSettings,
    folds: int,
    untried: Mapping[ArmName, str],
    progress: Progress,
) -> Gains | Sequence[str]:
    """Gains as replay estimates them from the rows after the first `first` rows, or the faults of a wrong log.

    untried: arm that these rows cannot judge -> the reason.
    """
    part = memory_log(log.rows[first:], mixed_arms=True, described=log.described) if first else log
    columns = [log.log.arms.index(arm) for arm in part.log.arms]
    pmfs = {label: pmf[first:][:, columns] for label, pmf in pmfs.items()}
    fixed = [spec for spec in baselines(part.log.arms) if spec.kind == "fixed"]
    candidates = [
        CandidatePmf(described=ROUTING, pmf=pmfs[ROUTING]),
        *(CandidatePmf(described=spec.name, pmf=array_pmf(spec, log=part.log, named=str)) for spec in fixed),
    ]
    result = estimate_candidates(
        [memory_part(replace(part.log, candidates=tuple(candidate.pmf for candidate in candidates)))],
        candidates=[CandidateSpec(name=ROUTING, kind="column", what=ROUTING), *fixed],
        candidate_pmfs=candidates,
        plan=Plan(folds=folds, baseline=ROUTING),
        log=part.described,
        progress=progress,
    )
    if result.faults:  # with the policy, replay also checks the log by the policy's importance weights
        return result.faults
    routing, *arms = result.candidates
    is_partial = bool(np.count_nonzero(part.log.partial))  # type: ignore[arg-type] # None counts as 0
    comparisons = []
    for arm in arms:
        effective = min(routing.weights.effective_rows, arm.weights.effective_rows)
        gaps = (arm.difference, arm.quality_difference, arm.cost_difference)
        ours, theirs = ((way.reward, way.quality, way.cost) for way in (routing, arm))
        differences: dict[str, Any] = {
            part: Difference(second=there.value)
            if gap is None or is_partial
            else _difference(_minus(gap), effective=effective, first=here.value, second=there.value)
            for part, gap, here, there in zip(PARTS, gaps, ours, theirs, strict=True)
        }
        comparison = compare(
            ROUTING,
            arm.name.replace("fixed:", "always ", 1),
            design="logged draws",
            questions=result.rows,
            rated=result.rows,
            **differences,
            unit=unit_of(reward),
            confidence=CONFIDENCE,
            needed=FEWEST_EFFECTIVE,
            blocked=_PARTIAL if is_partial else arm.missing,
        )
        comparisons.append(comparison)
    points = {}
    if len(pmfs) > 1 and not is_partial:
        prices = {label: pmf for label, pmf in pmfs.items() if label != ROUTING}
        for way in replay_pmfs(part, prices, folds=folds, progress=progress).candidates:
            if way.name in prices and way.missing is None:
                points[way.name] = way.quality.value, way.cost.value
    judged = [arm for arm in part.log.arms if arm not in untried] or part.log.arms
    return Gains(
        questions=result.rows,
        on=f"estimated from {counted(result.rows, 'decision')} that drew one arm each",
        shares={arm: routing.shares[arm] for arm in part.log.arms},
        notes=(*result.notes, *(f"{arm} {reason}" for arm, reason in untried.items())),
        **_ordered(comparisons, judged=judged, points=points),
    )


def _ordered(
    comparisons: Sequence[Comparison], *, judged: Sequence[ArmName], points: Mapping[str, tuple[float, float]]
) -> dict[str, Any]:
    """The comparisons, the best of the judged arms first, and the frontier.

    points: cost weight in words -> quality and cost of routing at this weight.
    """

    def place(comparison: Comparison) -> tuple[bool, float]:
        return comparison.second.removeprefix("always ") not in judged, -(comparison.reward.second or 0.0)

    ordered = tuple(sorted(comparisons, key=place))
    ways = [(one.second, one.quality.second, one.cost.second, "arm") for one in ordered]
    ways.append((ROUTING, ordered[0].quality.first, ordered[0].cost.first, "in use"))
    ways += [(name, quality, cost, "price") for name, (quality, cost) in points.items()]
    frontier = [
        FrontierPoint(name=name, quality=float(quality), cost=float(cost), kind=kind)  # type: ignore[arg-type]
        for name, quality, cost, kind in ways
        if quality is not None and cost is not None
    ]
    return {"comparisons": ordered, "frontier": tuple(frontier)}


def _minus(gap: EstimateWithInterval) -> EstimateWithInterval:
    interval = {"low": -gap.high, "high": -gap.low} if gap.low is not None and gap.high is not None else {}
    return EstimateWithInterval(value=-gap.value, **interval)
