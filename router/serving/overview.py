"""Overview: rewards and costs of the policy and of each arm over a period, from the hourly totals and newer rows."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from sqlalchemy import func, select

from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.learning.monitoring.sample_ratio import SampleRatio, recent_sample_ratio
from ragbandit.router.storage.policy_versions import control_of, versions_of
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.router.storage.totals import (
    KEPT,
    ArmHour,
    Progress,
    hour_of,
    hours_of,
    minutes_of,
    totals_ever,
    totals_progress,
    uncounted_hours,
)
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName, ArmTotals, Cost, PolicyLabel, PolicyVersion, sum_totals

HOUR_S: Final = 3600
MOST_ROWS: Final = 5_000
#: an overview reads the rows that the totals do not count yet if each table has fewer such rows than this
MOST_UNCOUNTED: Final = 10_000
MOST_POINTS: Final = 1000
MOST_VERSIONS: Final = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Counts of decisions, outcomes and updates, with means and latencies."""

    decided: int
    """Decisions."""
    explored: int
    """Decisions in which another arm was at least as likely as the one drawn."""
    turns: int
    """Later turns of decisions, counted for the arm that got the turn; `decided` does not include them."""
    forced: int
    """Decisions whose arm the caller chose."""
    killed: int
    """Decisions made by the kill switch."""
    faults: int
    """Decisions by the fallback arm."""
    answered: int
    """Outcomes with an answer."""
    failed: int
    """Outcomes without an answer."""
    cancelled: int
    """Outcomes that callers cancelled."""
    failure_share: float | None
    """Share of failures among the outcomes that were not cancelled; null without outcomes."""
    learned: int
    """Updates of the ledger, default rewards included."""
    reward: float | None
    """Mean reward of these updates; null without updates."""
    quality: float | None
    """Mean quality of these updates; null without updates."""
    cost: float | None
    """Mean cost of these updates, in units of the setting `reward.cost`; null without updates."""
    dollars: float
    """Price of the tokens of all outcomes whose generator has prices."""
    prompt_tokens: int
    """Tokens that models read."""
    completion_tokens: int
    """Tokens that models wrote."""
    p50_s: float | None
    """Median latency of the outcomes, seconds; estimated from a histogram. Null if no latency was reported."""
    p95_s: float | None
    """95th percentile of the latency, seconds."""
    p99_s: float | None
    """99th percentile of the latency, seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmOverview:
    """One arm over the period."""

    arm: ArmName
    """The arm."""
    share: float
    """The arm's share of the decisions, 0 to 1."""
    totals: Totals
    """Totals of the arm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One step of the period."""

    at: float
    """Beginning of the step, seconds since 1970."""
    totals: Totals
    """Totals of all arms."""
    arms: Mapping[ArmName, Totals]
    """Totals of each arm with decisions, outcomes or updates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """Rewards and costs of a policy over a period."""

    policy: PolicyLabel
    """Label of the ledger that the policy learns from (setting `policy.label`)."""
    since: float
    """Beginning of the period, a whole hour, seconds since 1970."""
    until: float
    """End of the period, a whole hour, seconds since 1970."""
    step: int
    """Length of a step, seconds."""
    totals: Totals
    """Totals of all arms over the period."""
    arms: tuple[ArmOverview, ...]
    """Each arm over the period, most used first."""
    points: tuple[Point, ...]
    """The steps of the period, oldest first."""
    counted_to: float | None
    """Decisions up to this time are in the totals, seconds since 1970; null if none are yet."""
    behind_s: float
    """Seconds from `counted_to` to the newest decision."""
    updates_behind: int
    """Updates of the ledger that are not in the totals yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Earned:
    """Totals of all arms since the beginning, and the versions, for the metrics."""

    arms: Mapping[ArmName, ArmTotals]
    progress: Progress
    #: the newest versions, at most MOST_VERSIONS
    versions: tuple[PolicyVersion, ...]
    killed: bool
    #: stage of the log since Monday of last week at which chance does not explain the arms' counts; None without one
    uneven: SampleRatio | None


def read_earned(database: Database, *, policy: PolicyLabel, now: float) -> Earned:
    uneven = recent_sample_ratio(database, policy=policy, now=now)
    with database.read() as connection:
        return Earned(
            arms=totals_ever(connection, policy=policy),
            progress=_totals_progress(connection, policy=policy),
            versions=tuple(versions_of(connection, base=policy)[-MOST_VERSIONS:]),
            killed=control_of(connection, base=policy).killed is not None,
            uneven=uneven,
        )


def mean(total: float, count: int) -> float | None:
    return total / count if count else None


_MEANS: Final = ("reward", "quality", "cost")
_SUMS: Final = {total.name for total in fields(Totals)} & set(ArmTotals.__slots__) - {"learned", *_MEANS}


def totals_of(sums: ArmTotals) -> Totals:
    values: dict[str, Any] = {name: getattr(sums, name) for name in _SUMS}
    values |= {name: mean(getattr(sums, name), sums.rewarded) for name in _MEANS}
    values |= {f"p{percent}_s": sums.latency_at(percent / 100) for percent in (50, 95, 99)}
    return Totals(failure_share=mean(sums.failed, sums.ended), learned=sums.rewarded, **values)


def overview(
    database: Database, *, policy: PolicyLabel, since: float, until: float, weight: float, step: int = HOUR_S
) -> Overview:
    """The overview from `since` to `until`, in whole hours. Rows that the totals do not count yet are read if there are
    fewer than MOST_UNCOUNTED.

    weight: the setting reward.weight. step: a multiple of 3600, seconds. Raises InvalidInput.
    """
    first, last = _checked_hours(since=since, until=until, step=step)
    with database.read() as connection:
        rows = hours_of(connection, policy=policy, since=first, until=last)
        newer = uncounted_hours(connection, policy=policy, weight=weight, limit=MOST_UNCOUNTED)
        progress = _totals_progress(connection, policy=policy, is_whole=newer is not None)
    rows += [row for row in newer or () if first <= row.hour < last]
    by_arm: dict[ArmName, list[ArmTotals]] = {}
    for row in rows:
        by_arm.setdefault(row.arm, []).append(row.totals)
    sums = {arm: sum_totals(parts) for arm, parts in by_arm.items()}
    everything = sum_totals(sums.values())
    arms = [
        ArmOverview(
            arm=arm, totals=totals_of(totals), share=totals.decided / everything.decided if everything.decided else 0.0
        )
        for arm, totals in sums.items()
    ]
    return Overview(
        policy=policy,
        since=float(first * HOUR_S),
        until=float(last * HOUR_S),
        step=step,
        totals=totals_of(everything),
        arms=tuple(sorted(arms, key=lambda arm: (-arm.totals.decided, arm.arm))),
        points=tuple(_points(rows, first=first, last=last, hours=step // HOUR_S)),
        counted_to=progress.decided_to,
        behind_s=progress.behind_s,
        updates_behind=progress.updates_behind,
    )


MINUTE_S: Final = 60


def with_minutes(database: Database, *, history: Overview, weight: float, now: float) -> Overview:
    """Replace the points by minutes of the last hour, unless these have too many rows or none. weight: reward.weight"""
    last = int(now // MINUTE_S) + 1
    with database.read() as connection:
        rows = minutes_of(connection, policy=history.policy, since=last - 60, weight=weight, limit=MOST_ROWS)
    if not rows:
        return history
    points = tuple(_points(rows, first=last - 60, last=last, hours=1, unit_s=MINUTE_S))
    return replace(history, points=points, step=MINUTE_S)


def _checked_hours(*, since: float, until: float, step: int) -> tuple[int, int]:
    if not (math.isfinite(since) and math.isfinite(until) and 0.0 <= since < until < 1e11):
        message = f'"since" ({since}) and "until" ({until}) are not two times in order, below 1e11'
        raise InvalidInput(message, field="since", remedy="send an earlier since")
    if step < HOUR_S or step % HOUR_S:
        raise InvalidInput(f'"step" cannot be {step}', field="step", remedy="send a multiple of 3600, seconds")
    first, last = hour_of(since), hour_of(math.ceil(until) + HOUR_S - 1)
    if last - first > KEPT or (last - first) * HOUR_S > MOST_POINTS * step:
        remedy = f"ask for at most {KEPT // 24} days and {MOST_POINTS} steps"
        raise InvalidInput("the period is too long for its step", field="step", remedy=remedy)
    return first, last


def _points(rows: Iterable[ArmHour], *, first: int, last: int, hours: int, unit_s: int = HOUR_S) -> Iterable[Point]:
    """Yield the points from `first` to `last`.

    unit_s: length of a unit, seconds; `first`, `last` and the rows' `hour` are numbers of such units since 1970
    hours: length of a point, in units
    """
    by_step: dict[int, dict[ArmName, ArmTotals]] = {}
    for row in rows:
        arms = by_step.setdefault((row.hour - first) // hours, {})
        arms[row.arm] = arms[row.arm] + row.totals if row.arm in arms else row.totals
    for number in range(-(-(last - first) // hours)):
        arms = by_step.get(number, {})
        yield Point(
            at=float((first + number * hours) * unit_s),
            totals=totals_of(sum_totals(arms.values())),
            arms={arm: totals_of(sums) for arm, sums in arms.items()},
        )


def _totals_progress(connection: Connection, *, policy: PolicyLabel, is_whole: bool = False) -> Progress:
    """How far the totals are behind the store. is_whole: whether the rows that they do not count yet were read too."""
    newest = connection.execute(select(func.max(decisions.c.made_at))).scalar()
    if is_whole:
        return Progress(decided_to=newest, behind_s=0.0, updates_behind=0)
    last_seq = connection.execute(select(func.max(updates.c.seq)).where(updates.c.policy == policy)).scalar()
    return totals_progress(connection, label=policy, newest=newest, last_seq=int(last_seq or 0))


class Savings:
    """Compares the dollars of answers with those of the holdback's arm. Only one thread may call `refresh`."""

    def __init__(
        self, database: Database, *, policy: PolicySettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database, self._policy = database, policy
        self._clock = clock
        self._read_at = float("-inf")
        #: mean dollars of an answer by the holdback's arm; None without a holdback, or with too few outcomes or dollars
        self.mean: float | None = None

    def refresh(self) -> None:
        if self._policy.holdback is None or self._clock() - self._read_at < 60.0:
            return
        with self._database.read() as connection:
            arms = totals_ever(connection, policy=PolicyLabel(self._policy.label))
        self._read_at = self._clock()
        totals = arms.get(ArmName(self._policy.holdback.arm), ArmTotals())
        self.mean = totals.dollars / totals.ended if totals.ended >= FEWEST_EFFECTIVE and totals.dollars > 0.0 else None

    def of(self, cost: Cost) -> float | None:
        """Dollars saved: the mean of the holdback's arm minus the dollars of this cost; None if one is unknown."""
        return None if self.mean is None or cost.assumed_dollars else self.mean - cost.dollars
