"""Overview replies, built from values of the router."""

from collections.abc import Mapping, Sequence

from ragbandit.router.api.schemas.overview_types import (
    OverviewReply,
    PointReply,
    SavedReply,
    TotalsReply,
    WorkerReply,
)
from ragbandit.router.jobs.worker_registry import WorkerState
from ragbandit.router.learning.status import Status
from ragbandit.router.serving.overview import Overview, Point, Saved, mean
from ragbandit.router.types import FEWEST_EFFECTIVE, ArmTotals

__all__ = ["overview_json"]


def overview_json(
    found: Overview,
    *,
    status: Status,
    queues: Mapping[str, int] | None = None,
    workers: Sequence[WorkerState] | None = None,
) -> OverviewReply:
    """The reply."""
    return {
        "policy": found.policy,
        "since": found.since,
        "until": found.until,
        "step": found.step,
        "totals": _totals(found.totals),
        "arms": [
            {"arm": one.arm, "share": one.share, "totals": _totals(one.totals), "saved": _saved(one.saved)}
            for one in found.arms
        ],
        "points": [_point(point) for point in found.points],
        "counted_to": found.progress.decided_to,
        "behind_s": found.progress.behind_s,
        "updates_behind": found.progress.updates_behind,
        "lag_s": status.lag_s,
        "waiting": status.counters.waiting,
        "behind": status.behind,
        "queues": None if queues is None else dict(queues),
        "workers": None if workers is None else [_worker(one) for one in workers],
    }


def _totals(of: ArmTotals) -> TotalsReply:
    return {
        "decided": of.decided,
        "explored": of.explored,
        "sticky": of.sticky,
        "forced": of.forced,
        "killed": of.killed,
        "faults": of.faults,
        "answered": of.answered,
        "failed": of.failed,
        "cancelled": of.cancelled,
        "failure_share": mean(of.failed, of.ended),
        "learned": of.rewarded,
        "reward": mean(of.reward, of.rewarded),
        "quality": mean(of.quality, of.rewarded),
        "cost": mean(of.cost, of.rewarded),
        "dollars": of.dollars,
        "prompt_tokens": of.prompt_tokens,
        "completion_tokens": of.completion_tokens,
        "p50_s": of.latency_at(0.5),
        "p95_s": of.latency_at(0.95),
        "p99_s": of.latency_at(0.99),
    }


def _saved(of: Saved) -> SavedReply:
    return {
        "questions": of.questions,
        "difference": of.difference,
        "low": of.low,
        "high": of.high,
        "draws": of.draws,
        "judged": of.judged,
        "effective_rows": of.effective,
        "needed_rows": FEWEST_EFFECTIVE,
        "missing": of.missing,
    }


def _point(of: Point) -> PointReply:
    arms = {str(arm): _totals(totals) for arm, totals in of.arms.items()}
    return {"at": of.at, "totals": _totals(of.totals), "arms": arms}


def _worker(of: WorkerState) -> WorkerReply:
    return {"name": of.name, "queue": of.queue, "state": of.state, "host": of.host, "heard_at": of.heard_at}
