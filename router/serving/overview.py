"""Overview: what the policy earned and spent in a time, of all arms and of each; read from the hourly totals.

Nothing here counts decisions: the cost follows the hours and the arms that are asked for, never the size of the store.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from sqlalchemy import Connection, func, select

from ragbandit.router.config.settings import PolicySettings
from ragbandit.router.learning.monitoring.arm_changes import SampleRatio, lately
from ragbandit.router.storage.policy_versions import control_of, versions_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.router.storage.totals import (
    KEPT,
    ArmHour,
    Progress,
    hour_of,
    hours_of,
    minutes_of,
    progress_of,
    totals_ever,
)
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName, ArmTotals, Cost, PolicyLabel, PolicyVersion, sum_of

HOUR_S: Final = 3600
#: newest rows of a table that the points of single minutes count
MOST_ROWS: Final = 5_000
#: most points of a series
MOST_POINTS: Final = 1000
#: versions of a policy that a scrape tells of
MOST_VERSIONS: Final = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """What was decided, answered and learned."""

    decided: int
    """Decisions."""
    explored: int
    """Decisions in which another arm was at least as likely as the one drawn."""
    sticky: int
    """Decisions that kept the arm of an earlier turn of their conversation."""
    forced: int
    """Decisions whose arm the caller chose."""
    killed: int
    """Decisions that the kill switch made."""
    faults: int
    """Decisions by the fallback arm."""
    answered: int
    """Outcomes with an answer."""
    failed: int
    """Outcomes without one."""
    cancelled: int
    """Outcomes that callers ended."""
    failure_share: float | None
    """Failed ones of all outcomes that were not cancelled; null where there are none."""
    learned: int
    """Updates of the ledger, default rewards included."""
    reward: float | None
    """Mean reward of these updates; null where there are none."""
    quality: float | None
    """Mean quality of these updates; null where there are none."""
    cost: float | None
    """Mean cost of these updates, in units of the setting `reward.cost`; null where there are none."""
    dollars: float
    """Price of the tokens of all outcomes, where the generator has prices."""
    prompt_tokens: int
    """Tokens that models read."""
    completion_tokens: int
    """Tokens that models wrote."""
    p50_s: float | None
    """Median latency of the outcomes, seconds: from a histogram, within the least and the largest that were observed;
    null where none was reported."""
    p95_s: float | None
    """95th percentile of the latency, seconds."""
    p99_s: float | None
    """99th percentile of the latency, seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmOverview:
    """One arm over the time."""

    arm: ArmName
    """The arm."""
    share: float
    """Its share of the decisions."""
    totals: Totals
    """Totals of the arm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A step of the time."""

    at: float
    """When the step begins, seconds since 1970."""
    totals: Totals
    """Totals of all arms."""
    arms: Mapping[ArmName, Totals]
    """Totals of each arm that did anything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """What the policy earned and spent."""

    policy: PolicyLabel
    """Label of the ledger that the policy learns from (setting `policy.label`)."""
    since: float
    """Beginning of the time, a whole hour, seconds since 1970."""
    until: float
    """End of the time."""
    step: int
    """Length of a point, seconds."""
    totals: Totals
    """Totals of all arms over the time."""
    arms: tuple[ArmOverview, ...]
    """Each arm over the time, the most used first."""
    points: tuple[Point, ...]
    """The time in steps, the oldest first."""
    counted_to: float | None
    """The totals hold decisions up to this time, seconds since 1970; null: none yet."""
    behind_s: float
    """Seconds from `counted_to` to the newest decision."""
    updates_behind: int
    """Updates of the ledger that are not in the totals yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Earned:
    """What the arms of a policy ever did, and its versions: what a scrape of the metrics reads."""

    arms: Mapping[ArmName, ArmTotals]
    progress: Progress
    #: the newest ones, MOST_VERSIONS at most
    versions: tuple[PolicyVersion, ...]
    #: the kill switch decides
    killed: bool
    #: the side that the log of these two weeks favours, or None
    uneven: SampleRatio | None


def earned(database: Database, *, policy: PolicyLabel, now: float) -> Earned:
    """One row for each arm, its hours of two weeks, and the rows of the versions. Raises StoreError."""
    uneven = lately(database, policy=policy, now=now)
    with database.read() as connection:
        return Earned(
            arms=totals_ever(connection, policy=policy),
            progress=_progress(connection, policy=policy),
            versions=tuple(versions_of(connection, base=policy)[-MOST_VERSIONS:]),
            killed=control_of(connection, base=policy).killed is not None,
            uneven=uneven,
        )


def mean(total: float, count: int) -> float | None:
    """The mean; None of nothing."""
    return total / count if count else None


_MEANS: Final = ("reward", "quality", "cost")
#: totals that are sums as they are
_SUMS: Final = tuple(
    one.name for one in fields(Totals) if one.name in ArmTotals.__slots__ and one.name not in ("learned", *_MEANS)
)


def totals_of(sums: ArmTotals) -> Totals:
    """These sums, with their means."""
    own: dict[str, Any] = {
        "failure_share": mean(sums.failed, sums.ended),
        "learned": sums.rewarded,
        **{name: mean(getattr(sums, name), sums.rewarded) for name in _MEANS},
        **{f"p{percent}_s": sums.latency_at(percent / 100) for percent in (50, 95, 99)},
    }
    return Totals(**{name: getattr(sums, name) for name in _SUMS}, **own)


def overview(database: Database, *, policy: PolicyLabel, since: float, until: float, step: int = HOUR_S) -> Overview:
    """The overview of since <= time < until, widened to whole hours.

    step: seconds of a point, a multiple of an hour. Raises InvalidInput, StoreError.
    """
    first, last = _checked(since=since, until=until, step=step)
    with database.read() as connection:
        rows = hours_of(connection, policy=policy, since=first, until=last)
        progress = _progress(connection, policy=policy)
    by_arm: dict[ArmName, list[ArmTotals]] = {}
    for row in rows:
        by_arm.setdefault(row.arm, []).append(row.totals)
    sums = {arm: sum_of(parts) for arm, parts in by_arm.items()}
    everything = sum_of(sums.values())
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
        arms=tuple(sorted(arms, key=lambda one: (-one.totals.decided, one.arm))),
        points=tuple(_points(rows, first=first, last=last, hours=step // HOUR_S)),
        counted_to=progress.decided_to,
        behind_s=progress.behind_s,
        updates_behind=progress.updates_behind,
    )


MINUTE_S: Final = 60


def with_minutes(database: Database, *, history: Overview, weight: float, now: float) -> Overview:
    """The same with a point for each of the last 60 minutes, unless these have `MOST_ROWS` rows or more.

    weight: of cost, at which rewards are read. Raises StoreError.
    """
    last = int(now // MINUTE_S) + 1
    with database.read() as connection:
        rows = minutes_of(connection, policy=history.policy, since=last - 60, weight=weight, limit=MOST_ROWS)
    if not rows:
        return history
    points = tuple(_points(rows, first=last - 60, last=last, hours=1, unit_s=MINUTE_S))
    return replace(history, points=points, step=MINUTE_S)


def _checked(*, since: float, until: float, step: int) -> tuple[int, int]:
    """The hours of the time. Raises InvalidInput."""
    if not (math.isfinite(since) and math.isfinite(until) and 0.0 <= since < until < 1e11):
        raise InvalidInput(f'"since" is {since}, "until" is {until}', field="since", remedy="send an earlier since")
    if step < HOUR_S or step % HOUR_S:
        raise InvalidInput(f'"step" is {step}', field="step", remedy="send a multiple of 3600, seconds")
    first, last = hour_of(since), hour_of(math.ceil(until) + HOUR_S - 1)
    if last - first > KEPT or (last - first) * HOUR_S > MOST_POINTS * step:
        remedy = f"ask for at most {KEPT // 24} days and {MOST_POINTS} steps"
        raise InvalidInput("the time is too long for its step", field="step", remedy=remedy)
    return first, last


def _points(rows: Iterable[ArmHour], *, first: int, last: int, hours: int, unit_s: int = HOUR_S) -> Iterable[Point]:
    """Points of `hours` units each. unit_s: seconds of the unit in which the rows, first and last count."""
    by_step: dict[int, dict[ArmName, ArmTotals]] = {}
    for row in rows:
        arms = by_step.setdefault((row.hour - first) // hours, {})
        arms[row.arm] = arms[row.arm] + row.totals if row.arm in arms else row.totals
    for number in range(-(-(last - first) // hours)):
        arms = by_step.get(number, {})
        yield Point(
            at=float((first + number * hours) * unit_s),
            totals=totals_of(sum_of(arms.values())),
            arms={arm: totals_of(sums) for arm, sums in arms.items()},
        )


def _progress(connection: Connection, *, policy: PolicyLabel) -> Progress:
    newest = connection.execute(select(func.max(decisions.c.made_at))).scalar()
    last_seq = connection.execute(select(func.max(updates.c.seq)).where(updates.c.policy == policy)).scalar()
    return progress_of(connection, label=policy, newest=newest, last_seq=int(last_seq or 0))


#: how old the mean may become, seconds
_KEPT_S: Final = 60.0


class Savings:
    """The mean dollars of an answer by the holdback's arm. Read by one thread, used by all."""

    def __init__(
        self, database: Database, *, policy: PolicySettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database, self._policy, self._clock = database, policy, clock
        self._read_at = float("-inf")
        #: None without a holdback, or if too few outcomes of its arm have dollars
        self.mean: float | None = None

    def refresh(self) -> None:
        """Read the mean where it is older than _KEPT_S. Raises StoreError."""
        if self._policy.holdback is None or self._clock() - self._read_at < _KEPT_S:
            return
        with self._database.read() as connection:
            arms = totals_ever(connection, policy=PolicyLabel(self._policy.label))
        self._read_at, of = self._clock(), arms.get(ArmName(self._policy.holdback.arm))
        known = of is not None and of.ended >= FEWEST_EFFECTIVE and of.dollars > 0.0
        self.mean = of.dollars / of.ended if of is not None and known else None

    def of(self, cost: Cost) -> float | None:
        """What an answer of this cost saved, in dollars, below 0 if it was more expensive; None if it is not known."""
        return None if self.mean is None else self.mean - cost.dollars
