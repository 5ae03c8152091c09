"""Prometheus metrics of what all processes of a store see alike: arms, learner, workers, versions of the policy.

Counters come from SQL, where they never fall: every process exports the same value, and restarts move none back. Sums
of rewards may fall and are gauges: `delta()` of them over `increase()` of the updates is a mean.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final, get_args

from prometheus_client.core import HistogramMetricFamily, Metric

from ragbandit.router.api.metrics.families import counter, gauge
from ragbandit.router.serving.health.state import RouterState
from ragbandit.router.serving.overview import Earned
from ragbandit.shared.types import LATENCY_EDGES, ArmName, ArmTotals, SampleStage

_QUEUES: Final = ("answer", "judge", "learn")
_STATES: Final = ("idle", "busy")


def earned_metrics(earned: Earned) -> Iterator[Metric]:
    """What the arms did and earned since the store began, how far that is counted, and the policy's versions."""
    yield from _traffic(earned.arms)
    yield from _rewards(earned.arms)
    yield from _latency(earned.arms)
    text = "1 where draws, outcomes or ratings favour an arm beyond chance, by what is counted: comparisons wait."
    uneven = {
        stage: float(earned.uneven is not None and earned.uneven.stage == stage) for stage in get_args(SampleStage)
    }
    yield gauge("ragbandit_sample_ratio_uneven", text, uneven, labels=["stage"])
    progress, versions = earned.progress, earned.versions
    text = "Seconds from the last decision in the totals of the arms to the newest one."
    yield gauge("ragbandit_totals_behind_seconds", text, progress.behind_s)
    text = "Updates of the ledger that are not in the totals of the arms yet."
    yield gauge("ragbandit_totals_updates_behind", text, progress.updates_behind)
    text = "1 for the state that a version of the policy is in."
    states = {(version.name, version.state): 1.0 for version in versions}
    yield gauge("ragbandit_policy_version", text, states, labels=["version", "state"])
    text = "Share of the version's pmf in what is served."
    weights = {version.name: version.weight for version in versions}
    yield gauge("ragbandit_policy_version_weight", text, weights, labels=["version"])
    yield gauge("ragbandit_kill_switch", "1 while the kill switch decides instead of the policy.", earned.killed)


def _traffic(arms: Mapping[ArmName, ArmTotals]) -> Iterator[Metric]:
    decided = {arm: totals.decided for arm, totals in arms.items()}
    yield counter("ragbandit_arm_decisions", "Decisions of the store, by arm.", decided, labels=["arm"])
    ended = {
        (arm, status): getattr(totals, status)
        for arm, totals in arms.items()
        for status in ("answered", "failed", "cancelled")
    }
    text = "Outcomes: answered, failed, or cancelled by the caller."
    yield counter("ragbandit_arm_outcomes", text, ended, labels=["arm", "status"])
    text = "Price of the tokens that outcomes took, where there are prices."
    yield counter("ragbandit_arm_dollars", text, {arm: one.dollars for arm, one in arms.items()}, labels=["arm"])
    prompts = {(arm, "prompt"): totals.prompt_tokens for arm, totals in arms.items()}
    completions = {(arm, "completion"): totals.completion_tokens for arm, totals in arms.items()}
    text = "Tokens that outcomes took: prompt or completion."
    yield counter("ragbandit_arm_tokens", text, prompts | completions, labels=["arm", "kind"])


def _rewards(arms: Mapping[ArmName, ArmTotals]) -> Iterator[Metric]:
    updates = {(arm, "feedback"): totals.learned for arm, totals in arms.items()}
    updates |= {(arm, "default"): totals.defaulted for arm, totals in arms.items()}
    text = "Updates of the ledger: of feedback, or by default."
    yield counter("ragbandit_arm_updates", text, updates, labels=["arm", "source"])
    for kind, name, text, field in (
        (gauge, "ragbandit_arm_reward", "Sum of the rewards of the updates.", "reward"),
        (gauge, "ragbandit_arm_quality", "Sum of the qualities of the updates.", "quality"),
        (counter, "ragbandit_arm_cost", "Sum of the costs of the updates, in units of reward.cost.", "cost"),
    ):
        sums = {arm: getattr(totals, field) for arm, totals in arms.items()}
        yield kind(name, text, sums, labels=["arm"])


def _latency(arms: Mapping[ArmName, ArmTotals]) -> Iterator[Metric]:
    text = "Wall clock of the outcomes that tell it."
    seconds = HistogramMetricFamily("ragbandit_arm_answer_seconds", text, labels=["arm"])
    edges = [*map(str, LATENCY_EDGES), "+Inf"]
    for arm, totals in arms.items():
        buckets = list(zip(edges, map(float, accumulate(totals.latency)), strict=True))
        seconds.add_metric([arm], buckets=buckets, sum_value=totals.seconds)
    yield seconds
    text = "Largest wall clock of them; no percentile is above it."
    slowest = {arm: one.latency_range[1] for arm, one in arms.items() if one.latency_range is not None}
    yield gauge("ragbandit_arm_answer_slowest_seconds", text, slowest, labels=["arm"])


def worker_metrics(state: RouterState) -> Iterator[Metric]:
    """The learner's ledger, and the workers that are registered in Redis; these are absent while Redis is down."""
    ledger, work = state.ledger, state.work or {}
    yield counter("ragbandit_updates", "Updates of the ledger.", ledger.last_seq)
    yield gauge("ragbandit_updates_behind", "Updates that the newest snapshot does not have.", ledger.behind)
    if ledger.learning is not None:
        text = "1 for how far an arm is learned: steady, learning, held back, stuck or drifting."
        states = {(arm, one.state): 1.0 for arm, one in ledger.learning.arms.items()}
        yield gauge("ragbandit_arm_learning", text, states, labels=["arm", "state"])
        text = "1 for how far the policy has learned: as of an arm, or starved."
        yield gauge("ragbandit_learning", text, {(ledger.learning.state,): 1.0}, labels=["state"])
    if state.workers is not None:
        counts = Counter((one.queue, one.state if one.state in _STATES else "other") for one in state.workers)
        keys = sorted({(queue, name) for queue in _QUEUES for name in _STATES} | counts.keys())
        text = "Threads that take jobs of a queue: idle, busy or other."
        yield gauge("ragbandit_workers", text, {key: counts[key] for key in keys}, labels=["queue", "state"])
    jobs = {(queue, result): getattr(one, result) for queue, one in work.items() for result in ("done", "failed")}
    yield counter("ragbandit_worker_jobs", "Jobs that workers did, or failed at.", jobs, labels=["queue", "result"])
    busy = {queue: one.seconds for queue, one in work.items()}
    yield counter("ragbandit_worker_busy_seconds", "Seconds that workers were at work.", busy, labels=["queue"])
