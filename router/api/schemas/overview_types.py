"""Types of overview replies: what the policy earned and spent in a time, as HTTP and `ragbandit top` show it."""

from collections.abc import Mapping
from typing import Final

from typing_extensions import TypedDict

__all__ = [
    "OVERVIEW_FIELDS",
    "ArmOverviewReply",
    "OverviewReply",
    "PointReply",
    "SavedReply",
    "TotalsReply",
    "WorkerReply",
]

#: "Object.field" -> description, for /openapi.json
OVERVIEW_FIELDS: Final[Mapping[str, str]] = {
    "TotalsReply.decided": "Decisions.",
    "TotalsReply.explored": "Of these, those with another arm than the likeliest.",
    "TotalsReply.sticky": "Of these, turns that stayed on the arm of an earlier one.",
    "TotalsReply.forced": "Of these, those whose arm the caller chose.",
    "TotalsReply.killed": "Of these, those that the kill switch decided.",
    "TotalsReply.faults": "Of these, those by the fallback arm.",
    "TotalsReply.answered": "Outcomes with an answer.",
    "TotalsReply.failed": "Outcomes without one.",
    "TotalsReply.cancelled": "Outcomes that callers ended.",
    "TotalsReply.failure_share": "Failed ones of all outcomes that were not cancelled; null where there are none.",
    "TotalsReply.learned": "Updates of the ledger, of default rewards too.",
    "TotalsReply.reward": "Mean reward of these; null where there are none.",
    "TotalsReply.quality": "Mean quality of these; null where there are none.",
    "TotalsReply.cost": "Mean cost of these, in units of the setting `reward.cost`; null where there are none.",
    "TotalsReply.dollars": "Price of the tokens of all outcomes, where the generator has prices.",
    "TotalsReply.prompt_tokens": "Tokens that models read.",
    "TotalsReply.completion_tokens": "Tokens that models wrote.",
    "TotalsReply.p50_s": "Median latency of the outcomes, seconds: from buckets, within the least and the largest that "
    "were observed; null where none told it.",
    "TotalsReply.p95_s": "95th percentile of it.",
    "TotalsReply.p99_s": "99th percentile of it.",
    "SavedReply.questions": "Updates that compare the two.",
    "SavedReply.difference": "What the policy earned beyond always this arm, in reward per question; null where the "
    "comparison has fewer effective rows than it needs.",
    "SavedReply.low": "Lower end of its 95 % interval, which holds however often one looks; null with `difference`.",
    "SavedReply.high": "Upper end.",
    "SavedReply.draws": "Decisions with this arm.",
    "SavedReply.judged": "Updates of these.",
    "SavedReply.effective_rows": "Effective rows of the comparison: how many rows of equal weight it is worth.",
    "SavedReply.needed_rows": "Effective rows that an interval needs.",
    "SavedReply.missing": "Why there is no interval, in words; null where there is one.",
    "ArmOverviewReply.arm": "The arm.",
    "ArmOverviewReply.share": "Its share of the decisions.",
    "ArmOverviewReply.totals": "What it did.",
    "ArmOverviewReply.saved": "The policy against always this arm.",
    "PointReply.at": "When the step begins, seconds since 1970.",
    "PointReply.totals": "Of all arms.",
    "PointReply.arms": "Of each arm that did anything.",
    "WorkerReply.name": "Its name in the queue.",
    "WorkerReply.queue": "answer, judge or learn.",
    "WorkerReply.state": "idle or busy, for example.",
    "WorkerReply.host": "The host that it runs on.",
    "WorkerReply.heard_at": "When it was heard last, seconds since 1970; null if never.",
    "OverviewReply.since": "Beginning of the time, a whole hour, seconds since 1970.",
    "OverviewReply.until": "Its end.",
    "OverviewReply.step": "Seconds of a point.",
    "OverviewReply.totals": "Of all arms over the time.",
    "OverviewReply.arms": "Each arm over the time, the most used first.",
    "OverviewReply.points": "The time in steps, the oldest first.",
    "OverviewReply.counted_to": "The totals hold decisions up to this time, seconds since 1970; null: none yet.",
    "OverviewReply.behind_s": "Seconds from there to the newest decision.",
    "OverviewReply.updates_behind": "Updates of the ledger that are not in the totals yet.",
    "OverviewReply.waiting": "Decisions that wait to be learned.",
    "OverviewReply.queues": "Jobs waiting, by queue; null if Redis cannot be reached.",
    "OverviewReply.workers": "The registered workers; null if Redis cannot be reached.",
}


class TotalsReply(TypedDict):
    """What was decided, answered and learned."""

    decided: int
    explored: int
    sticky: int
    forced: int
    killed: int
    faults: int
    answered: int
    failed: int
    cancelled: int
    failure_share: float | None
    learned: int
    reward: float | None
    quality: float | None
    cost: float | None
    dollars: float
    prompt_tokens: int
    completion_tokens: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None


class SavedReply(TypedDict):
    """The policy against always taking one arm."""

    questions: int
    difference: float | None
    low: float | None
    high: float | None
    draws: int
    judged: int
    effective_rows: float
    needed_rows: int
    missing: str | None


class ArmOverviewReply(TypedDict):
    """One arm over the time."""

    arm: str
    share: float
    totals: TotalsReply
    saved: SavedReply


class PointReply(TypedDict):
    """A step of the time."""

    at: float
    totals: TotalsReply
    arms: dict[str, TotalsReply]


class WorkerReply(TypedDict):
    """A worker that takes jobs."""

    name: str
    queue: str
    state: str
    host: str
    heard_at: float | None


class OverviewReply(TypedDict):
    """What the policy earned, spent and saved, and how the service is."""

    policy: str
    since: float
    until: float
    step: int
    totals: TotalsReply
    arms: list[ArmOverviewReply]
    points: list[PointReply]
    counted_to: float | None
    behind_s: float
    updates_behind: int
    lag_s: float
    waiting: int
    behind: int
    queues: dict[str, int] | None
    workers: list[WorkerReply] | None
