"""Human ratings and judge's scores of a log: which row has which, and the log with its rewards completed.

A row says it by its reward and by two keys beside it: `judge_score` in [0, 1], and `judge_probability`, the chance with
which the judge sampled the row. A reward that the judge made (`judged_by`) or that is missing is no human rating.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ragbandit.router.offline.estimation.rated_rewards import (
    FEWEST_RATINGS,
    Completed,
    Pricing,
    RatingFacts,
    Ratings,
    completed,
)
from ragbandit.router.offline.logs.records import FAILED, JUDGE_PROBABILITY, JUDGE_SCORE, MISSING, Logged
from ragbandit.router.offline.replay.opening import MemoryLog, row_name
from ragbandit.router.offline.replay.plan import Plan
from ragbandit.router.offline.types import Vector
from ragbandit.shared.errors import InvalidInput


def check_judged(*, several: bool) -> None:
    """Raises InvalidInput for what completed rewards do not allow. several: the log is a folder of files."""
    if several:
        raise InvalidInput(
            "rewards are completed in one process, on one file or the store",
            field="judged",
            remedy="name one file, or leave out --judged",
        )


def judged_log(log: MemoryLog, *, plan: Plan) -> tuple[MemoryLog, RatingFacts]:
    """The log with completed rewards, and what the report says of the ratings.

    Its rows, for policies that learn from it, have completed rewards too where somebody judged.

    plan: its folds. Raises InvalidInput naming the row for a score or a chance out of range, and where nobody rated.
    """
    rows = log.rows
    ratings, pricing = _ratings(log), _pricing(log)
    values = completed(
        ratings,
        pricing=pricing,
        arms=len(log.log.arms),
        folds_of_rows=plan.folds_of_whole(log.log),
    )
    arrays = replace(
        log.log,
        reward=values.reward,
        quality=values.quality,
        raw=np.zeros(len(rows), dtype=np.bool_),
        defaulted=np.zeros(len(rows), dtype=np.bool_),
        minimum=pricing.minimum,
        maximum=pricing.maximum,
        # Above 1 in any case: completed rewards may lie outside of the bounds.
        rating_weight=max(values.facts.largest, 1.0 + 1e-9),
    )
    taught = [_taught(row, at=at, ratings=ratings, values=values) for at, row in enumerate(rows)]
    return replace(log, rows=taught, log=arrays), values.facts


def _ratings(log: MemoryLog) -> Ratings:
    rows = log.rows
    return Ratings(
        arm=log.log.action,
        rated=np.array([_is_rated(row) for row in rows], dtype=np.bool_),
        quality=log.log.quality,
        score=_told(rows, JUDGE_SCORE, least=0.0),
        score_chance=_told(rows, JUDGE_PROBABILITY, least=None),
        # Of a failed answer it is known what it is worth: nobody has to rate it.
        rating_chance=np.array([1.0 if row.reward.preset == FAILED else np.nan for row in rows]),
    )


def _is_rated(row: Logged) -> bool:
    """Whether a person, or code that knows, said what the answer was worth."""
    reward = row.reward
    return reward.source == "explicit" and reward.preset != MISSING and reward.judged_by not in ("judge", "event")


def _told(rows: Sequence[Logged], key: str, *, least: float | None) -> Vector:
    """The key's number in every row, NaN where it has none. least: 0 for [0, 1]; None for (0, 1]."""
    numbers = np.full(len(rows), np.nan)
    for at, row in enumerate(rows):
        value = row.extra.get(key)
        if value is None and key == JUDGE_SCORE and row.reward.judged_by == "judge":
            value = row.reward.quality if row.reward.raw_quality is None else row.reward.raw_quality
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidInput(
                f"{value!r} is no number", field=f"{row_name(row)} {key}", remedy="give a number in [0, 1]"
            )
        if not (0.0 <= value <= 1.0) or (least is None and value == 0.0):
            raise InvalidInput(f"{value!r} is out of range", field=f"{row_name(row)} {key}", remedy="use 0 to 1")
        numbers[at] = value
    return numbers


def _pricing(log: MemoryLog) -> Pricing:
    """How qualities become rewards; where a rating is the whole reward, the cost is inside."""
    rows = log.rows
    whole = any(_is_rated(row) and row.reward.preset == "reward" for row in rows)
    weight = np.array([0.0 if whole else row.reward.weight for row in rows])
    cost = np.array([row.reward.cost for row in rows])
    # As far as ratings go: 0 to 1 where they are qualities.
    low = min(log.log.minimum, 0.0) if whole else log.log.minimum
    return Pricing(weight=weight, cost=cost, minimum=low, maximum=log.log.maximum)


def _taught(row: Logged, *, at: int, ratings: Ratings, values: Completed) -> Logged:
    """The row as a policy may learn it: unrated with the judge's word, as people would say it; else marked missing."""
    if ratings.rated[at]:
        return row
    reward = row.reward
    if math.isnan(ratings.score[at]):
        return replace(row, reward=replace(reward, preset=MISSING))
    quality = float(values.judged[at])
    value = min(max(quality - reward.weight * reward.cost, reward.minimum), reward.maximum)
    judged = replace(
        reward,
        value=value,
        quality=quality,
        preset="rating",
        source="explicit",
        judged_by="judge",
        raw_quality=float(ratings.score[at]),
    )
    return replace(row, reward=judged)


def rating_notes(facts: RatingFacts) -> list[str]:
    """What a reader must know of the ratings, the worst first."""
    notes = [f"the log is wrong: {fault}" for fault in facts.faults]
    if facts.selected and facts.selection is not None:
        gap, error = facts.selection
        notes.append(
            f"being rated hangs on how good the answer was: rated answers have a judge's score {gap:+.3f} ± "
            f"{error:.3f} from the others of their arm. The estimates hold only if the score tells all that decides "
            "who rates; have a chance sample of the answers rated"
        )
    if facts.rated < FEWEST_RATINGS:
        notes.append(f"only {facts.rated} human ratings: intervals from fewer than {FEWEST_RATINGS} are rough")
    counts = (
        f"{facts.rated:,} of {facts.rows:,} rows have a human rating, {facts.scored:,} a judge's score, "
        f"{facts.both:,} both; rewards are completed (docs/replay.md)"
    )
    notes.append(counts)
    if facts.scored:
        agrees = "" if facts.correlation is None else f", correlation with people {facts.correlation:.2f}"
        notes.append(
            f"the judge counts {facts.judge_weight:.2f} of 1{agrees}: completed rewards scatter {facts.gain:.2f} times "
            "less than with the ratings alone"
            if facts.gain >= 1.0
            else f"the judge counts {facts.judge_weight:.2f} of 1{agrees}, and brings nothing here"
        )
    return notes
