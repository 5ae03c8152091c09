"""Replies of /v1/overview: what the policy earned and spent in a time, as HTTP and `ragbandit top` show it."""

from typing_extensions import TypedDict

from ragbandit.client.replies.status import LearningReply


class TotalsReply(TypedDict):
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


class ArmOverviewReply(TypedDict):
    """One arm over the time."""

    arm: str
    """The arm."""
    share: float
    """Its share of the decisions."""
    totals: TotalsReply
    """Totals of the arm."""


class PointReply(TypedDict):
    """A step of the time."""

    at: float
    """When the step begins, seconds since 1970."""
    totals: TotalsReply
    """Totals of all arms."""
    arms: dict[str, TotalsReply]
    """Totals of each arm that did anything."""


class WorkerReply(TypedDict):
    """A worker that takes jobs."""

    name: str
    """Its name in the queue."""
    queue: str
    """answer, judge or learn."""
    state: str
    """For example idle or busy."""
    host: str
    """The host that it runs on."""
    heard_at: float | None
    """When it was last heard from, seconds since 1970; null if never."""


class OverviewReply(TypedDict):
    """What the policy earned and spent, and how the service is."""

    policy: str
    """Label of the ledger that the policy learns from (setting `policy.label`)."""
    since: float
    """Beginning of the time, a whole hour, seconds since 1970."""
    until: float
    """End of the time."""
    step: int
    """Length of a point, seconds."""
    totals: TotalsReply
    """Totals of all arms over the time."""
    arms: list[ArmOverviewReply]
    """Each arm over the time, the most used first."""
    points: list[PointReply]
    """The time in steps, the oldest first."""
    counted_to: float | None
    """The totals hold decisions up to this time, seconds since 1970; null: none yet."""
    behind_s: float
    """Seconds from `counted_to` to the newest decision."""
    updates_behind: int
    """Updates of the ledger that are not in the totals yet."""
    learning: LearningReply | None
    """How far the policy has learned; null where it does not say."""
    lag_s: float
    """Age of the oldest decision that is ready to be learned, seconds."""
    waiting: int
    """Decisions that wait to be learned."""
    behind: int
    """Updates of the ledger that are not in the newest snapshot."""
    queues: dict[str, int] | None
    """Jobs waiting, by queue; null if Redis cannot be reached."""
    workers: list[WorkerReply] | None
    """The registered workers; null if Redis cannot be reached."""
