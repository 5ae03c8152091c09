"""Prometheus metrics of what all processes of a store see alike: arms, learner, workers, versions of the policy.

Counters come from SQL, where they never fall: every process exports the same value, and restarts move none back. Sums
of rewards may fall and are gauges: `delta()` of them over `increase()` of the updates is a mean.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ragbandit.router.serving.health.state import RouterState
from ragbandit.router.serving.overview import Earned
from ragbandit.shared.types import FEWEST_EFFECTIVE, LATENCY_EDGES, ArmName, ArmTotals

_QUEUES: Final = ("answer", "judge", "learn")
_STATES: Final = ("idle", "busy")


def earned_metrics(earned: Earned) -> Iterator[Metric]:
    """What the arms did and earned since the store began, how far that is counted, and the policy's versions."""
    yield from _traffic(earned.arms)
    yield from _rewards(earned.arms)
    yield from _latency(earned.arms)
    yield GaugeMetricFamily(
        "ragbandit_totals_behind_seconds",
        "Seconds from the last decision in the totals of the arms to the newest one.",
        value=earned.progress.behind_s,
    )
    yield GaugeMetricFamily(
        "ragbandit_totals_updates_behind",
        "Updates of the ledger that are not in the totals of the arms yet.",
        value=earned.progress.updates_behind,
    )
    yield from _versions(earned)


def _traffic(arms: Mapping[ArmName, ArmTotals]) -> Iterator[Metric]:
    decisions = CounterMetricFamily("ragbandit_arm_decisions", "Decisions of the store, by arm.", labels=["arm"])
    outcomes = CounterMetricFamily(
        "ragbandit_arm_outcomes", "Outcomes: answered, failed, or cancelled by the caller.", labels=["arm", "status"]
    )
    dollars = CounterMetricFamily(
        "ragbandit_arm_dollars", "Price of the tokens that outcomes took, where there are prices.", labels=["arm"]
    )
    tokens = CounterMetricFamily(
        "ragbandit_arm_tokens", "Tokens that outcomes took: prompt or completion.", labels=["arm", "kind"]
    )
    for arm, totals in arms.items():
        decisions.add_metric([arm], totals.decided)
        for status in ("answered", "failed", "cancelled"):
            outcomes.add_metric([arm, status], getattr(totals, status))
        dollars.add_metric([arm], totals.dollars)
        tokens.add_metric([arm, "prompt"], totals.prompt_tokens)
        tokens.add_metric([arm, "completion"], totals.completion_tokens)
    yield from (decisions, outcomes, dollars, tokens)


def _rewards(arms: Mapping[ArmName, ArmTotals]) -> Iterator[Metric]:
    updates = CounterMetricFamily(
        "ragbandit_arm_updates",
        "Updates of the ledger: of feedback, or by default.",
        labels=["arm", "source"],
    )
    reward = GaugeMetricFamily("ragbandit_arm_reward", "Sum of the rewards of the updates.", labels=["arm"])
    quality = GaugeMetricFamily("ragbandit_arm_quality", "Sum of the qualities of the updates.", labels=["arm"])
    cost = CounterMetricFamily(
        "ragbandit_arm_cost", "Sum of the costs of the updates, in units of reward.cost.", labels=["arm"]
    )
    compared = CounterMetricFamily(
        "ragbandit_arm_compared", "Updates that compare the policy with always taking the arm.", labels=["arm"]
    )
    saved = GaugeMetricFamily(
        "ragbandit_arm_saved_reward",
        "Sum over these of what the policy earned beyond always taking the arm, doubly robust; absent before "
        f"{FEWEST_EFFECTIVE} effective rows.",
        labels=["arm"],
    )
    effective = GaugeMetricFamily(
        "ragbandit_arm_effective_rows",
        "Effective rows of the comparison of the policy with always taking the arm.",
        labels=["arm"],
    )
    for arm, totals in arms.items():
        updates.add_metric([arm, "feedback"], totals.learned)
        updates.add_metric([arm, "default"], totals.defaulted)
        reward.add_metric([arm], totals.reward)
        quality.add_metric([arm], totals.quality)
        cost.add_metric([arm], totals.cost)
        compared.add_metric([arm], totals.compared)
        effective.add_metric([arm], totals.effective)
        if totals.effective >= FEWEST_EFFECTIVE:
            saved.add_metric([arm], totals.difference)
    yield from (updates, reward, quality, cost, compared, effective, saved)


def _latency(arms: Mapping[ArmName, ArmTotals]) -> Iterator[Metric]:
    seconds = HistogramMetricFamily(
        "ragbandit_arm_answer_seconds", "Wall clock of the outcomes that tell it.", labels=["arm"]
    )
    slowest = GaugeMetricFamily(
        "ragbandit_arm_answer_slowest_seconds",
        "Largest wall clock of them; no percentile is above it.",
        labels=["arm"],
    )
    edges = [*map(str, LATENCY_EDGES), "+Inf"]
    for arm, totals in arms.items():
        buckets = list(zip(edges, map(float, accumulate(totals.latency)), strict=True))
        seconds.add_metric([arm], buckets=buckets, sum_value=totals.seconds)
        if totals.latency_range is not None:
            slowest.add_metric([arm], totals.latency_range[1])
    yield from (seconds, slowest)


def _versions(earned: Earned) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        "ragbandit_policy_version", "1 for the state that a version of the policy is in.", labels=["version", "state"]
    )
    weights = GaugeMetricFamily(
        "ragbandit_policy_version_weight", "Share of the version's pmf in what is served.", labels=["version"]
    )
    for version in earned.versions:
        states.add_metric([version.name, version.state], 1.0)
        weights.add_metric([version.name], version.weight)
    yield from (states, weights)
    yield GaugeMetricFamily(
        "ragbandit_kill_switch", "1 while the kill switch decides instead of the policy.", value=float(earned.killed)
    )


def worker_metrics(state: RouterState) -> Iterator[Metric]:
    """The learner's ledger, and the workers that are registered in Redis; these are absent while Redis is down."""
    yield CounterMetricFamily("ragbandit_updates", "Updates of the ledger.", value=float(state.ledger.last_seq))
    yield GaugeMetricFamily(
        "ragbandit_updates_behind", "Updates that the newest snapshot does not have.", value=state.ledger.behind
    )
    if state.workers is not None:
        counts = Counter((one.queue, one.state if one.state in _STATES else "other") for one in state.workers)
        workers = GaugeMetricFamily(
            "ragbandit_workers", "Threads that take jobs of a queue: idle, busy or other.", labels=["queue", "state"]
        )
        for key in sorted({(queue, name) for queue in _QUEUES for name in _STATES} | counts.keys()):
            workers.add_metric(list(key), counts[key])
        yield workers
    jobs = CounterMetricFamily(
        "ragbandit_worker_jobs",
        "Jobs that workers did, or failed at.",
        labels=["queue", "result"],
    )
    busy = CounterMetricFamily("ragbandit_worker_busy_seconds", "Seconds that workers were at work.", labels=["queue"])
    for queue, work in (state.work or {}).items():
        jobs.add_metric([queue, "done"], work.done)
        jobs.add_metric([queue, "failed"], work.failed)
        busy.add_metric([queue], work.seconds)
    yield from (jobs, busy)
