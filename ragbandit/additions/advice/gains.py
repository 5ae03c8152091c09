"""Gains of learned routing over each fixed arm, with intervals, from one of two kinds of data.

Paired outcomes: the questions have the outcomes of every arm (a table, a run, or what a store has imported of them).
Logged draws: each question has the outcome of one drawn arm, and replay estimates the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

import numpy as np

from ragbandit.additions.evaluation.warm import Outcomes, has_every_arm, outcomes_of, question_key
from ragbandit.router.comparison import Comparison, Difference, compare
from ragbandit.router.comparison.assessment import FrontierPoint, QuestionKind
from ragbandit.router.comparison.intervals import PARTS, paired
from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.learning.monitoring.price import cost_unit_of
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.offline.labels import Confusion, confusion_of, labels_of
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.replay.engine import estimate_candidates
from ragbandit.router.offline.replay.opening import MemoryLog, memory_log
from ragbandit.router.offline.replay.parts import MemoryPart
from ragbandit.router.offline.replay.plan import CandidateSpec, Description, Plan, ReplayResult, default_candidates
from ragbandit.router.offline.replay.report import comparisons
from ragbandit.router.serving.explanations.policy_map import map_of_queries
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.texts.formats import counted
from ragbandit.shared.types import IMPORTED, ArmName, Json, Matrix

#: name that comparisons give to the policy after learning
ROUTING: Final = "learned routing"
_PARTIAL: Final = "the log has the probability of the drawn arm only: log the probability of every arm"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gains:
    questions: int  #: number of compared questions, or of logged decisions if replay estimates the gains
    on: str = ""  #: description of the compared questions or decisions
    best: str = ""  #: fixed arm with the highest mean reward, among the arms that can be judged
    #: comparisons of routing with each fixed arm, the best arm first; arms that cannot be judged are last
    comparisons: tuple[Comparison, ...] = ()
    #: arm -> share of the questions that routing sends to it, in [0, 1]
    shares: Mapping[ArmName, float] = field(default_factory=dict)
    frontier: tuple[FrontierPoint, ...] = ()  #: quality and cost of the fixed arms, and of routing
    kinds: tuple[QuestionKind, ...] = ()  #: kinds of questions, and the arms that routing chooses for them
    kinds_of: str = ""  #: sentence on how well the kinds tell the questions apart
    notes: tuple[str, ...] = ()
    untried: Mapping[ArmName, str] = field(default_factory=dict)  #: arm that the log cannot judge -> the reason
    #: routing's choices by label; None unless every arm answered the questions and the quality of its answers is known
    confusion: Confusion | None = None


def paired_outcomes(rows: Sequence[Logged]) -> tuple[Outcomes | None, Sequence[Logged]]:
    """Returns (outcomes of the questions that every arm answered, or None without such questions; the other rows).

    If questions lack an arm, the outcomes are of imports in which more than half of the questions have every arm. A
    served question that every arm answered by chance was asked more often than others, so it is not representative.
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
    outcomes, known = outcomes_of(paired), {row.decision.id for row in paired}
    return (None, rows) if outcomes is None else (outcomes, [row for row in rows if row.decision.id not in known])


def gains_on_outcomes(
    outcomes: Outcomes, *, log: MemoryLog, pmf: Matrix, reward: RewardSettings, schema: ContextSchema, confidence: float
) -> Gains:
    """Gains on known outcomes. pmf: routing's probabilities on the rows of the log, (n, K).

    The rows of `outcomes` are the first rows of the log.
    """
    complete, columns = outcomes.complete, [outcomes.arms.index(arm) for arm in outcomes.complete]
    # All rows of a question have the same probabilities. Shape (questions, complete arms)
    chosen = pmf[: len(outcomes.rows) : len(complete)][:, [log.log.arms.index(arm) for arm in complete]]
    routed = {part: (chosen * matrix[:, columns]).sum(axis=1) for part, matrix in outcomes.values.items()}
    gains = []
    common: dict[str, Any] = {"span": reward.maximum - reward.minimum, "unit": cost_unit_of(reward)}
    common["confidence"] = confidence
    for column, arm in enumerate(outcomes.arms):
        asked = ~np.isnan(outcomes.values["reward"][:, column])
        ours = {part: way[asked] for part, way in routed.items()}
        theirs = {part: matrix[asked, column] for part, matrix in outcomes.values.items()}
        gains.append(paired(ROUTING, f"always {arm}", second_arm=arm, first_parts=ours, second_parts=theirs, **common))
    queries = outcomes.queries
    confusion = None
    if outcomes.rows[0].reward.has_parts:  # without parts, neither quality nor right answers are known
        labels = labels_of(outcomes.values["quality"][:, columns], cost=outcomes.values["cost"][:, columns])
        confusion = confusion_of(chosen, labels=labels, arms=complete)
    rewards = outcomes.values["reward"][:, columns]
    mapped = map_of_queries(queries, pmfs=chosen, arms=complete, rewards=rewards, schema=schema)
    return Gains(
        confusion=confusion,
        questions=len(queries),
        on=f"on {counted(len(queries), 'question')} with the outcomes of every arm",
        shares=dict(zip(complete, map(float, chosen.mean(axis=0)), strict=True)),
        kinds=mapped.kinds,
        kinds_of=mapped.sentence,
        **_ordered_fields(gains, judged=complete),
    )


def gains_on_draws(
    rows: Sequence[Logged],
    *,
    log: MemoryLog,
    pmf: Matrix,
    reward: RewardSettings,
    folds: int,
    progress: Progress,
) -> Gains | Sequence[str]:
    """Returns the gains that replay estimates from `rows`, the last rows of the log; or the faults of a wrong log."""
    drawn = memory_log_of(rows, source=log.opened.described)
    columns = [log.log.arms.index(arm) for arm in drawn.log.arms]
    routed = {ROUTING: pmf[-len(rows) :][:, columns]}
    result = _replay_pmfs(drawn, routed, baseline=ROUTING, folds=folds, progress=progress)
    if result.faults:  # replay also checks the log by the importance weights of routing
        return result.faults
    is_partial = bool(np.count_nonzero(drawn.log.partial))  # type: ignore[arg-type] # None counts as 0
    gains = [
        _mirror(one, arm=arm, unit=cost_unit_of(reward), is_partial=is_partial)
        for arm, one in zip(drawn.log.arms, comparisons(result), strict=True)
    ]
    untried = {}
    for column, (arm, candidate) in enumerate(zip(drawn.log.arms, result.candidates[1:], strict=True)):
        draws = int(np.count_nonzero(drawn.log.action == column))
        if not draws:
            untried[arm] = "cannot be judged: it was never drawn, and more rows like these would not change that"
        elif candidate.unsupported or not candidate.reward.is_known:
            untried[arm] = f"cannot be judged: it was drawn {counted(draws, 'time')}, too seldom"
    return Gains(
        questions=result.rows,
        on=f"estimated from {counted(result.rows, 'decision')} that drew one arm each",
        shares={arm: result.candidates[0].shares[arm] for arm in drawn.log.arms},
        notes=result.notes,
        untried=untried,
        **_ordered_fields(gains, judged=[arm for arm in drawn.log.arms if arm not in untried]),
    )


def memory_log_of(rows: Sequence[Logged], *, source: str) -> MemoryLog:
    return memory_log(rows, mixed_arms=True, name=source).read()


def _mirror(comparison: Comparison, *, arm: ArmName, unit: str, is_partial: bool) -> Comparison:
    """Turn replay's comparison of an arm with routing into a comparison of routing with the arm.

    is_partial: whether the log has only the probability of the drawn arm, so that routing has no estimate.
    """
    differences = dict[str, Any]()
    for part in PARTS:
        one: Difference = getattr(comparison, part)
        mirrored = Difference(second=one.first)
        if one.estimate is not None and not is_partial:
            ends = {} if one.low is None or one.high is None else {"low": -one.high, "high": -one.low}
            mirrored = replace(one, estimate=-one.estimate, first=one.second, second=one.first, **ends)
        differences[part] = mirrored
    blocked = _PARTIAL if is_partial else comparison.missing if comparison.progress == 0.0 else None
    common = {name: getattr(comparison, name) for name in ("design", "questions", "rated", "confidence")}
    common |= {"second_arm": arm, "unit": unit, "blocked": blocked, "needed": FEWEST_EFFECTIVE}
    return compare(ROUTING, f"always {arm}", **differences, **common)


def _ordered_fields(comparisons: Sequence[Comparison], *, judged: Sequence[ArmName]) -> dict[str, Any]:
    """The fields `best`, `comparisons` (the best of the judged arms first) and `frontier`."""

    def place(comparison: Comparison) -> tuple[bool, float]:
        return comparison.second_arm not in judged, -(comparison.reward.second or 0.0)

    ordered = tuple(sorted(comparisons, key=place))
    known = [one for one in ordered if not one.quality.tells_nothing]
    ways = [(one.second, one.quality.second, one.cost.second, "arm") for one in known]
    ways.append((ROUTING, ordered[0].quality.first, ordered[0].cost.first, "in use"))
    frontier = [
        FrontierPoint(name=name, quality=float(quality), cost=float(cost), kind=kind)  # type: ignore[arg-type]
        for name, quality, cost, kind in ways
        if quality is not None and cost is not None
    ]
    best = ordered[0].second_arm
    return {"best": best, "comparisons": ordered, "frontier": tuple(frontier)}


def _replay_pmfs(
    log: MemoryLog, pmfs: Mapping[str, Matrix], *, folds: int, progress: Progress, baseline: str | None = None
) -> ReplayResult:
    """Judge policies, given by their probabilities, and each fixed arm. pmfs: name -> probabilities, (n, K).

    baseline: name of the policy that all are compared with; None for the logged one.
    """
    fixed = [spec for spec in default_candidates(log.log.arms) if spec.kind == "fixed"]
    specs = [CandidateSpec(name=label, kind="column", what=label) for label in pmfs]
    return estimate_candidates(
        [MemoryPart(log=replace(log.log, pmfs=pmfs, imported=None))],  # all rows are judged, imported ones too
        candidates=[*specs, *fixed],
        descriptions=[Description(described=spec.name) for spec in (*specs, *fixed)],
        plan=Plan(folds=folds, baseline=baseline),
        log="a log in memory",
        progress=progress,
        judged_share=log.opened.judged_share(),
    )
