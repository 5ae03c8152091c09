"""Results of stored answers: a line for each arm, and a routing table. A failure counts as wrong."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ragbandit.additions.evaluation.kept_answers import StoredAnswer
from ragbandit.additions.evaluation.labelled_questions import LabelledQuestion
from ragbandit.additions.evaluation.qualities import Measures, labelled_quality, measured_quality
from ragbandit.router.comparison import NOT_KNOWN, Comparison, words
from ragbandit.router.comparison.assessment import Assessment, FrontierPoint, NumberTable
from ragbandit.router.comparison.intervals import Parts, paired
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.learning.monitoring.price import cost_unit_of
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.offline.logs.table_values import MEASURES
from ragbandit.shared.texts.formats import NOTHING, counted, decimal, number
from ragbandit.shared.types import ArmName, Json, finite_json

#: arm -> its answers, in the order of the questions
Answered = Mapping[str, Sequence[StoredAnswer]]
#: arm -> the measures of its answers, in the order of the questions
Qualities = Mapping[str, Sequence[Measures]]
#: the means of an arm over all questions, as `--json` prints them. `time` is the mean seconds divided by the mean
#: seconds of the arm that `time_one_of` returns. `dollars` is None if an answer has no price
Line = dict[str, Any]


def qualities_of(rows: Sequence[LabelledQuestion], *, answered: Answered, family: str) -> Qualities:
    return {
        arm: [labelled_quality(row, each, family=family) for row, each in zip(rows, answers, strict=True)]
        for arm, answers in answered.items()
    }


def line_of_arm(
    rows: Sequence[LabelledQuestion],
    *,
    arm: str,
    answered: Answered,
    qualities: Sequence[Measures],
    reference: Sequence[StoredAnswer] | None = None,
) -> Line:
    """The line of an arm. reference: answers of the arm whose Time is 1; None without such an arm."""
    answers = answered[arm]
    line: Line = {"strategy": arm, "questions": len(rows)}
    line |= {name: fmean(measures[name] for measures in qualities) for name in qualities[0]}
    line["steps"] = fmean(answer.steps for answer in answers)
    line["seconds"] = fmean(answer.cost.seconds_total for answer in answers)
    line["time"] = None if reference is None else _time_ratio(answers, reference=reference)
    for name in ("passages", "prompt_tokens", "completion_tokens"):
        line[name] = fmean(getattr(answer.cost, name) for answer in answers)
    has_prices = not any(answer.cost.assumed_dollars for answer in answers)
    line["dollars"] = fmean(answer.cost.dollars for answer in answers) if has_prices else None
    line["exhausted"] = sum(answer.status == "exhausted" for answer in answers)
    failures = [
        {"id": row.id, "error": answer.error or answer.stop_reason}
        for row, answer in zip(rows, answers, strict=True)
        if answer.failed
    ]
    return line | {"failed": len(failures), "failures": failures}


def add_judge(lines: Sequence[Line], *, facts: Mapping[str, Json], unjudged: Sequence[tuple[str, str, str]]) -> None:
    """Add the judge's cost for all arms together, and the answers without a judgement.

    unjudged: (arm, id of the question, error).
    """
    for line in lines:
        line["judge"] = dict(facts)
        line["unjudged"] = [{"id": row, "error": error} for arm, row, error in unjudged if arm == line["strategy"]]


def _time_ratio(answers: Sequence[StoredAnswer], *, reference: Sequence[StoredAnswer]) -> float | None:
    """Mean seconds / mean seconds of the reference, without questions on which either failed; None if none is left."""
    pairs = [
        (answer.cost.seconds_total, other.cost.seconds_total)
        for answer, other in zip(answers, reference, strict=True)
        if not (answer.failed or other.failed)
    ]
    ours, theirs = (math.fsum(seconds) for seconds in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    return ours / theirs if theirs else None


def table_records(
    rows: Sequence[LabelledQuestion], *, answered: Answered, qualities: Qualities, reward: RewardSettings
) -> Iterator[dict[str, Json]]:
    """The full-information table (router/offline/logs/tables.py): a record per question."""
    for position, row in enumerate(rows):
        answers = {arm: stored[position] for arm, stored in answered.items()}
        measures = {arm: qualities[arm][position] for arm in answers}
        origin = {"dataset": row.dataset, "hops": row.hops}
        yield {
            "id": row.id,
            "question": row.question,
            "correct": {arm: measured_quality(measures[arm], reward=reward) for arm in answers},
            "steps": {arm: answer.steps for arm, answer in answers.items()},
            "seconds": {arm: answer.cost.seconds_total for arm, answer in answers.items()},
            "passages": {arm: answer.cost.passages for arm, answer in answers.items()},
            "dollars": {arm: answer.cost.charged_dollars for arm, answer in answers.items()},
            **{name: {arm: measures[arm][name] for arm in answers} for name in next(iter(measures.values()), {})},
            **{key: value for key, value in origin.items() if value is not None},
        }


def comparisons_with_best(*, answered: Answered, qualities: Qualities, reward: RewardSettings) -> dict[str, Comparison]:
    """Arm -> comparison with the best of the other arms, by mean reward, on the same questions."""
    ways: dict[str, Parts] = {}
    for arm, answers in answered.items():
        quality = np.array([measured_quality(one, reward=reward) for one in qualities[arm]], dtype=np.float64)
        cost = np.array([cost_of_terms(one.steps, one.cost, terms=reward.cost) for one in answers], dtype=np.float64)
        value = np.clip(quality - reward.weight * cost, reward.minimum, reward.maximum)
        ways[arm] = {"reward": value, "quality": quality, "cost": cost}
    means = {arm: float(way["reward"].mean()) for arm, way in ways.items()}
    comparisons = {}
    for arm, ours in ways.items() if len(ways) > 1 else ():
        best = max((other for other in ways if other != arm), key=means.__getitem__)
        span, unit = reward.maximum - reward.minimum, cost_unit_of(reward)
        comparisons[arm] = paired(
            arm, best, second_arm=ArmName(best), first_parts=ours, second_parts=ways[best], span=span, unit=unit
        )
    return comparisons


MOST_NAMED = 20


def as_json(lines: Sequence[Line], *, comparisons: Mapping[str, Comparison]) -> list[Line]:
    """The lines with the key "comparison", which is null for one strategy."""
    compared = {arm: finite_json(asdict(one)) for arm, one in comparisons.items()}
    return [line | {"comparison": compared.get(line["strategy"])} for line in lines]


def evaluation_assessment(
    lines: Sequence[Line], *, comparisons: Mapping[str, Comparison], file: Path, remarks: Sequence[str] = ()
) -> Assessment:
    """The results for the screen and the page. file: file of the answers. remarks: further notes."""
    best = max(comparisons.values(), key=lambda one: one.reward.first or 0.0, default=None)
    ordered = sorted(comparisons.values(), key=lambda one: one is not best)
    notes = [f"{counted(lines[0]['questions'], 'question')}; failures count as wrong"]
    faults = [f"failed: {line['strategy']} {one['id']}: {one['error']}" for line in lines for one in line["failures"]]
    notes += faults[:MOST_NAMED]
    if len(faults) > MOST_NAMED:
        notes.append(f"failed: {len(faults) - MOST_NAMED} more, see --json")
    notes += remarks
    measures = [name for name in lines[0] if name in MEASURES]
    columns = (
        "strategy",
        "reward",
        "against the best other",
        *(f"{MEASURES[name]} %" for name in measures),
        "steps",
        "passages",
        "time ratio",
        "seconds",
        "prompt tokens",
        "written tokens",
        "dollars",
        "failed",
    )
    rows = tuple(_row(line, measures=measures, comparison=comparisons.get(line["strategy"])) for line in lines)
    return Assessment(
        title="Which strategy is best?",
        sentence=f"only {lines[0]['strategy']} was run" if best is None else words.sentence(best),
        number=NOT_KNOWN if best is None or best.verdict == NOT_KNOWN else words.signed(best.reward.estimate),
        about="reward a question, against the best other strategy",
        verdict=None if best is None else best.verdict,
        comparisons=tuple(ordered),
        frontier=tuple(
            FrontierPoint(name=one.first, quality=one.quality.first, cost=one.cost.first, kind="arm")
            for one in ordered
            if one.quality.first is not None and one.cost.first is not None
        ),
        missing=None if best is None else best.missing,
        tables=(NumberTable(title="Means per question", columns=columns, rows=rows),),
        notes=(*notes, f"answers: {file}"),
        cost_unit="cost" if best is None else best.unit,
    )


def _row(line: Line, *, measures: Sequence[str], comparison: Comparison | None) -> tuple[str, ...]:
    reward, against = NOTHING, NOTHING
    if comparison is not None:
        reward, against = decimal(comparison.reward.first), words.difference(comparison.reward)
        if against != NOT_KNOWN:
            against = f"{comparison.verdict}: {against}"
    cells = [decimal(100.0 * line[name], 1) for name in measures]
    cells += [decimal(line[name], 2) for name in ("steps", "passages", "time", "seconds")]
    cells += [number(line[name]) for name in ("prompt_tokens", "completion_tokens", "dollars")]
    return (line["strategy"], reward, against, *cells, str(line["failed"]))
