"""Sample ratio: whether arms have as many rows as the logged probabilities promise, at each stage of a row's life.

If not, comparisons of arms are misleading. The checks bet against chance, so that frequent checks raise no false alarm.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.totals import hour_of, sums_by_arm
from ragbandit.shared.texts.formats import percent
from ragbandit.shared.types import ArmName, ArmTotals, SampleStage, Vector

#: probability that any of the checks from one start time raises a false alarm
FALSE_ALARMS: Final = 0.001
#: smallest relative difference in outcomes or ratings that raises an alarm; in draws, any difference beyond chance does
MATTERS: Final = 0.1
#: age, in seconds, below which decisions are not counted, because their outcomes and ratings may still arrive
SETTLED_S: Final = 3600.0
_WEEK_H: Final = 7 * 24
#: hours from Monday, the start of a week, to Thursday, the day on which 1970 began
_MONDAY_H: Final = 3 * 24
#: sizes of the bets: relative differences between an arm's number of rows and its expected number
_BETS: Final = 0.01 * 2.0 ** np.arange(8.0)
_STAGES: Final[tuple[SampleStage, ...]] = ("named", "drawn", "ended", "judged")
_COUNTS: Final = (
    *(f"{stage}_{kind}" for stage in _STAGES for kind in ("excess", "spread")),
    *("decided", "answered", "failed", "cancelled"),
)
_REMEDY: Final = "see docs/learning.md#whether-the-log-is-even"


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRatio:
    """An uneven log: arms have more or fewer rows than chance explains. Comparing arms is then misleading."""

    stage: SampleStage
    sentence: str


def recent_sample_ratio(
    database: Database, *, policy: str, now: float, since: float | None = None
) -> SampleRatio | None:
    """Check the rows of all policies since Monday of last week (UTC), in whole hours; None if the arms are even.

    Decisions younger than SETTLED_S are left out. FALSE_ALARMS is the probability of a false alarm in all calls within
    a week. policy: label of the ledger whose ratings the sentence counts. since: time from which on all rows are
    checked, too; FALSE_ALARMS then holds for each of the two checks of a call. Raises StoreError.
    """
    week = (hour_of(now) + _MONDAY_H) // _WEEK_H
    begins = [(week - 1) * _WEEK_H - _MONDAY_H, *([] if since is None else [hour_of(since)])]
    with database.read() as connection:
        checks = (_sample_ratio(connection, policy, since=begin, until=hour_of(now - SETTLED_S)) for begin in begins)
        return next(filter(None, checks), None)


def _sample_ratio(connection: Connection, policy: str, *, since: int, until: int) -> SampleRatio | None:
    draws = sums_by_arm(connection, policy=None, since=since, until=until, names=_COUNTS)
    if first_uneven_stage(draws) is None:
        return None
    rated = sums_by_arm(connection, policy=policy, since=since, until=until, names=("learned",))
    counted = {arm: replace(sums, learned=rated.get(arm, ArmTotals()).learned) for arm, sums in draws.items()}
    return first_uneven_stage(counted)


def first_uneven_stage(arms: Mapping[ArmName, ArmTotals]) -> SampleRatio | None:
    """The first stage at which arms are uneven, because later stages follow from it; None if all stages are even."""
    for stage in _STAGES:
        names = f"{stage}_excess", f"{stage}_spread"
        sums = {arm: (getattr(totals, names[0]), getattr(totals, names[1])) for arm, totals in arms.items()}
        uneven_arms = _uneven_arms(
            {arm: pair for arm, pair in sums.items() if pair[1] > 0.0},
            alpha=FALSE_ALARMS / len(_STAGES),
            min_difference=0.0 if stage in ("named", "drawn") else MATTERS,
        )
        if uneven_arms is not None:
            more, less = uneven_arms
            sentence = _sentence(stage, arms, frequent=more, rare=less)
            return SampleRatio(stage=stage, sentence=f"{sentence} ({_REMEDY})")
    return None


def _uneven_arms(
    sums: Mapping[ArmName, tuple[float, float]], *, alpha: float, min_difference: float
) -> tuple[ArmName, ArmName] | None:
    """Returns (arm with more rows, arm with fewer rows); None if the difference is small or may be chance."""
    if not sums:
        return None
    excess, spread = np.array(list(sums.values())).T
    capital = log_capital(excess, variance=spread)
    if np.logaddexp.reduce(capital) - math.log(len(sums)) < -math.log(alpha):
        return None
    differing = np.abs(excess) >= min_difference * spread
    if not differing.any():
        return None
    names, surest = list(sums), int(np.argmax(np.where(differing, capital, -np.inf)))
    more, less = int(np.argmax(excess)), int(np.argmin(excess))
    return (names[surest], names[less]) if excess[surest] > 0.0 else (names[more], names[surest])


def log_capital(excess: Vector, *, variance: Vector) -> Vector:
    """Log of the capital that bets on each arm's excess (rows minus expected rows) make from 1. variance: of excess"""
    stake = variance[:, None] * (np.expm1(_BETS) - _BETS)
    bets = np.concatenate([excess[:, None] * _BETS - stake, -excess[:, None] * _BETS - stake], axis=1)
    return np.asarray(np.logaddexp.reduce(bets, axis=1) - math.log(bets.shape[1]))


def _sentence(stage: SampleStage, arms: Mapping[ArmName, ArmTotals], *, frequent: ArmName, rare: ArmName) -> str:
    if stage == "named":
        counts = f"under ids that callers named, arm {frequent} was drawn more often and {rare} less often"
        reason = "callers choose ids by what they draw, or repeat questions until another arm comes, or rows are lost"
        return f"{counts} than the logged probabilities promise: {reason}; no comparison of arms counts"
    if stage == "drawn":
        totals = arms[rare]
        promised = totals.decided - totals.drawn_excess
        counts = f"arm {rare} was drawn {totals.decided:,} times where the logged probabilities promise {promised:,.0f}"
        more_often = f"{frequent} more often than they promise"
        return f"{counts}, and {more_often}: no comparison of arms counts until lost rows are found"
    shares = [_share(stage, arms[arm]) for arm in (frequent, rare)]
    if stage == "ended":
        rows, wait = "draws with an outcome", "comparisons of arms wait until every draw has its outcome, failures too"
    else:
        rows, wait = "answers rated", "comparisons of quality wait until ratings come evenly, or label a random share"
    if shares[0] <= shares[1]:  # the policy changed meanwhile, so the shares do not show the difference
        return f"arm {frequent} has more and {rare} fewer {rows} than the logged probabilities promise: {wait}"
    return f"arm {frequent} has {percent(shares[0])} of its {rows} and {rare} {percent(shares[1])}: {wait}"


def _share(stage: SampleStage, totals: ArmTotals) -> float:
    outcomes = totals.ended + totals.cancelled
    if stage == "ended":
        return min(1.0, outcomes / max(totals.decided, 1))
    return min(1.0, totals.learned / max(outcomes or totals.decided, 1))
