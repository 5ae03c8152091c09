"""Prometheus metrics of this process and of the store. All processes export the same values for the store.

Metrics of the store are read from SQL, so a restart does not reset them. Sums of rewards may fall, so they are gauges:
their `delta()` in PromQL divided by the `increase()` of the updates is the mean reward.
"""

from collections import Counter as Counts
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import accumulate, chain
from types import SimpleNamespace
from typing import Any, Final, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ragbandit.router.api.security.rate_limiter import RateLimiter
from ragbandit.router.serving.deciding.steps.breaker import Breaker
from ragbandit.router.serving.health.readiness import RouterState
from ragbandit.router.serving.overview import Earned
from ragbandit.router.serving.router import Router
from ragbandit.shared.types import LATENCY_EDGES, ArmName, ArmTotals, Decision, SampleStage

_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)
#: value of a metric without labels; else label -> value, or (label, label) -> value if the metric has two labels
Values = float | Mapping[Any, float]


def counter(name: str, text: str, values: Values, *, labels: Sequence[str] = ()) -> CounterMetricFamily:
    return _with_values(CounterMetricFamily(name, text, labels=labels), values)


def gauge(name: str, text: str, values: Values, *, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    return _with_values(GaugeMetricFamily(name, text, labels=labels), values)


def _with_values(family: _Family, values: Values) -> _Family:
    if not isinstance(values, Mapping):
        family.add_metric([], float(values))
        return family
    for key, value in values.items():
        family.add_metric([key] if isinstance(key, str) else list(key), float(value))
    return family


_QUEUES: Final = ("answer", "judge", "learn")
_STATES: Final = ("idle", "busy")


def _earned_metrics(earned: Earned) -> Iterator[Metric]:
    yield from _traffic_metrics(earned.arms)
    yield from _reward_metrics(earned.arms)
    yield from _latency_metrics(earned.arms)
    text = "1 if draws, outcomes or ratings favour an arm beyond chance, by stage; comparisons then wait."
    uneven_stage = earned.uneven and earned.uneven.stage
    uneven = {stage: stage == uneven_stage for stage in get_args(SampleStage)}
    yield gauge("ragbandit_sample_ratio_uneven", text, uneven, labels=["stage"])
    progress, versions = earned.progress, earned.versions
    text = "Seconds from the last decision in the totals of the arms to the newest one."
    yield gauge("ragbandit_totals_behind_seconds", text, progress.behind_s)
    text = "1 for the state that a version of the policy is in."
    states = {(version.name, version.state): 1.0 for version in versions}
    yield gauge("ragbandit_policy_version", text, states, labels=["version", "state"])
    yield gauge("ragbandit_kill_switch", "1 while the kill switch decides instead of the policy.", earned.killed)


def _traffic_metrics(arms: Mapping[ArmName, ArmTotals]) -> Iterator[Metric]:
    decided = {arm: totals.decided for arm, totals in arms.items()}
    yield counter("ragbandit_arm_decisions", "Decisions of the store, by arm.", decided, labels=["arm"])
    statuses = ("answered", "failed", "cancelled")
    ended = {(arm, status): getattr(totals, status) for arm, totals in arms.items() for status in statuses}
    text = "Outcomes: answered, failed, or cancelled by the caller."
    yield counter("ragbandit_arm_outcomes", text, ended, labels=["arm", "status"])
    text = "Price of the tokens that outcomes used, if they have a price."
    yield counter("ragbandit_arm_dollars", text, {arm: totals.dollars for arm, totals in arms.items()}, labels=["arm"])
    prompts = {(arm, "prompt"): totals.prompt_tokens for arm, totals in arms.items()}
    completions = {(arm, "completion"): totals.completion_tokens for arm, totals in arms.items()}
    text = "Tokens that outcomes used: prompt or completion."
    yield counter("ragbandit_arm_tokens", text, prompts | completions, labels=["arm", "kind"])


def _reward_metrics(arms: Mapping[ArmName, ArmTotals]) -> Iterator[Metric]:
    updates = {(arm, "feedback"): totals.learned for arm, totals in arms.items()}
    updates |= {(arm, "default"): totals.defaulted for arm, totals in arms.items()}
    text = "Updates of the ledger, by source: feedback or the default reward."
    yield counter("ragbandit_arm_updates", text, updates, labels=["arm", "source"])
    for kind, name, text, field in (
        (gauge, "ragbandit_arm_reward", "Sum of the rewards of the updates.", "reward"),
        (gauge, "ragbandit_arm_quality", "Sum of the qualities of the updates.", "quality"),
        (counter, "ragbandit_arm_cost", "Sum of the costs of the updates, in units of reward.cost.", "cost"),
    ):
        sums = {arm: getattr(totals, field) for arm, totals in arms.items()}
        yield kind(name, text, sums, labels=["arm"])


def _latency_metrics(arms: Mapping[ArmName, ArmTotals]) -> Iterator[Metric]:
    text = "Wall clock of the outcomes that report it."
    seconds = HistogramMetricFamily("ragbandit_arm_answer_seconds", text, labels=["arm"])
    edges = [*map(str, LATENCY_EDGES), "+Inf"]
    for arm, totals in arms.items():
        buckets = list(zip(edges, map(float, accumulate(totals.latency)), strict=True))
        seconds.add_metric([arm], buckets=buckets, sum_value=totals.seconds)
    yield seconds
    text = "Largest wall clock of these outcomes."
    slowest = {arm: totals.latency_range[1] for arm, totals in arms.items() if totals.latency_range is not None}
    yield gauge("ragbandit_arm_answer_slowest_seconds", text, slowest, labels=["arm"])


def _worker_metrics(state: RouterState) -> Iterator[Metric]:
    """Metrics of the ledger, and of the workers registered in Redis; the workers are missing while Redis is down."""
    ledger, work = state.ledger, state.work or {}
    yield counter("ragbandit_updates", "Updates of the ledger.", ledger.last_seq)
    yield gauge("ragbandit_updates_behind", "Updates that the newest snapshot does not have.", ledger.behind)
    if ledger.learning is not None:
        text = "1 for the state of an arm: steady, learning, held back, stuck or drifting."
        states = {(name, arm.state): 1.0 for name, arm in ledger.learning.arms.items()}
        yield gauge("ragbandit_arm_learning", text, states, labels=["arm", "state"])
        text = "1 for the own state of the policy, whatever decides in its place: a state of an arm, or starved."
        yield gauge("ragbandit_learning", text, {(ledger.learning.own_state,): 1.0}, labels=["state"])
    if state.workers is not None:
        counts = Counts(
            (worker.queue, worker.state if worker.state in _STATES else "other") for worker in state.workers
        )
        keys = sorted({(queue, name) for queue in _QUEUES for name in _STATES} | counts.keys())
        text = "Threads that take jobs of a queue: idle, busy or other."
        yield gauge("ragbandit_workers", text, {key: counts[key] for key in keys}, labels=["queue", "state"])
    jobs = {(queue, result): getattr(done, result) for queue, done in work.items() for result in ("done", "failed")}
    yield counter("ragbandit_worker_jobs", "Jobs that workers did, or failed at.", jobs, labels=["queue", "result"])


class Metrics:
    def __init__(self, router: Router) -> None:
        self.registry = CollectorRegistry()
        count = partial(Counter, registry=self.registry)
        self.requests = count("ragbandit_requests_total", "HTTP requests, by path and status.", ["path", "status"])
        self.route_seconds = Histogram(
            "ragbandit_route_seconds",
            "Seconds from request to committed decision.",
            buckets=(0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1, 2),
            registry=self.registry,
        )
        self.decisions = count("ragbandit_decisions_total", "Decisions, by arm.", ["arm", "explored"])
        text = "Decisions made by the fallback arm because the policy broke its contract."
        self.faults = count("ragbandit_policy_faults_total", text)
        text = "Feedback received, by kind and result."
        self.feedback = count("ragbandit_feedback_total", text, ["kind", "result"])
        text = "Events of users received, by name and result."
        self.events = count("ragbandit_feedback_events_total", text, ["event", "result"])
        text = "Decisions, outcomes and feedback that were stored after their caller had closed the connection."
        self.unseen = count("ragbandit_replies_unseen", text)
        text = "Answers by another arm in place of one that failed, by the failed arm and how it failed."
        self.failovers = count("ragbandit_failovers", text, ["arm", "reason"])
        self._counters: dict[tuple[object, ...], Counter] = {}
        self.limiters: list[RateLimiter] = []
        self._router = router

    def count_reply(self, path: str, status: int) -> None:
        self._counter_with(self.requests, path, status).inc()

    def _counter_with(self, counter: Counter, *labels: object) -> Counter:
        """The counter with these labels. It is cached, since `Counter.labels` takes as long as ten lookups."""
        key = (counter, *labels)
        if key not in self._counters:
            self._counters[key] = counter.labels(*labels)
        return self._counters[key]

    def count_decision(self, decision: Decision, *, seconds: float) -> None:
        self.route_seconds.observe(seconds)
        self._counter_with(self.decisions, decision.arm, decision.explored).inc()
        if decision.fault:
            self.faults.inc()

    def exposition(self, state: RouterState | None, *, budgets: Mapping[tuple[str, str, str], float] | None) -> bytes:
        """The metrics as Prometheus reads them. budgets: (kind of spender, name, period) -> spent share. Metrics of
        `state` or `budgets` are left out if it is None, because it could not be read.
        """
        text = "1 if the ledger could be read for this scrape; 0 if not, and then its metrics are missing."
        readable = gauge("ragbandit_ledger_readable", text, state is not None)
        read = chain(self.registry.collect(), _process_metrics(self._router), _rate_metrics(self.limiters), [readable])
        if state is not None:
            read = chain(read, _store_metrics(state))
        if budgets is not None:
            text = "Share of a dollar budget that is spent in its period (UTC); the 100 that are spent furthest."
            spent = gauge("ragbandit_budget_spent_ratio", text, budgets, labels=["scope", "name", "period"])
            read = chain(read, [spent])
        return bytes(generate_latest(SimpleNamespace(collect=lambda: read)))


def _rate_metrics(limiters: Sequence[RateLimiter]) -> Iterator[Metric]:
    refused: Counts[str] = sum((Counts(limiter.refused) for limiter in limiters), Counts())
    text = "Requests refused with 429: over the rate of their API key."
    yield counter("ragbandit_rate_limited", text, dict(sorted(refused.items())), labels=["role"])


def _process_metrics(router: Router) -> Iterator[Metric]:
    yield from _policy_metrics(router)
    rewriter = router.conversations.rewriter
    if rewriter is not None:
        text = "Questions of conversations by the result of their rewrite: rewritten, unchanged, or why it failed."
        yield counter("ragbandit_rewrites", text, dict(rewriter.results), labels=["result"])
    for step in router.service.steps:
        for name, text, results in step.counters():
            yield counter(name, text, results, labels=["result"])
    text = "1 if notifications of workers and learner arrive in this process; 0 if not: answers are up to 1 s late."
    yield gauge(
        "ragbandit_listener_up", text, router.process.listener is None or router.process.listener.fault() is None
    )
    queues = router.process.queues()
    waiting = {queue: state.waiting for queue, state in queues.items()}
    yield gauge("ragbandit_queue_waiting", "Items waiting for their batch.", waiting, labels=["queue"])
    waits = {queue: state.expected_wait_s for queue, state in queues.items()}
    yield gauge("ragbandit_queue_wait_seconds", "Expected wait of an item that came now.", waits, labels=["queue"])
    refused, dropped = (
        {(queue, why): n for queue, state in queues.items() for why, n in getattr(state, kind).items()}
        for kind in ("refused", "dropped")
    )
    text = (
        "Items refused on arrival: their expected wait was too long (wait), or too many waited (count), or too many of "
        "one tenant (tenant)."
    )
    yield counter("ragbandit_requests_refused", text, refused, labels=["queue", "reason"])
    text = "Items dropped before any work: their caller left (gone), or they had waited too long (expired)."
    yield counter("ragbandit_requests_dropped", text, dropped, labels=["queue", "reason"])


def _policy_metrics(router: Router) -> Iterator[Metric]:
    service, snapshots = router.service, router.process.versions.snapshots
    text = "Snapshots that could not be used (missing, damaged, or of another encoder)."
    yield counter("ragbandit_snapshots_refused", text, snapshots.refused)
    text = "Questions that were offered all arms because no arm was healthy."
    yield counter("ragbandit_decisions_fail_open", text, service.step(Breaker).fail_opens)
    serving = service.serving
    yield gauge("ragbandit_policy_last_seq", "Last update that the policy in use has learned.", serving.last_seq)
    text = "1 while the policy is being learned again from the ledger and another one decides; else 0."
    yield gauge("ragbandit_policy_rebuilding", text, serving.rebuilding)


def _store_metrics(state: RouterState) -> Iterator[Metric]:
    ledger = state.ledger
    text = "Seconds for which the oldest feedback that can be learned has been waiting."
    yield gauge("ragbandit_lag_seconds", text, ledger.lag_s)
    text = "Decisions and feedback in the ledger, by state."
    yield gauge("ragbandit_ledger", text, asdict(ledger.counters), labels=["place"])
    yield gauge("ragbandit_judge_waiting", "Answers that wait for the judge.", ledger.judge.waiting)
    text = "What the judge did and used today (UTC), over all processes of the store."
    yield gauge("ragbandit_judge_today", text, dict(ledger.judge.today), labels=["what"])
    yield gauge("ragbandit_check_waiting", "Answers that wait for the check of reward.check.", ledger.unchecked)
    offered = {health.arm: health.offered for health in state.arms}
    yield gauge("ragbandit_arm_offered", "1 if the arm is offered, 0 if it is suspended.", offered, labels=["arm"])
    yield from _worker_metrics(state)
    yield from _earned_metrics(state.earned)
    text = "Wake-ups waiting in Redis, by queue: about one per decision to answer; absent while Redis is down."
    yield gauge("ragbandit_jobs", text, dict(state.jobs or {}), labels=["queue"])
