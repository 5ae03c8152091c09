"""Prometheus metrics: what this process counts, and the router's state at the time of the scrape."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ragbandit.router.api.limiting.rate_limiter import RateLimiter
from ragbandit.router.api.metrics.arms import earned_metrics, worker_metrics
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.encoders.feature_cache import CachingEncoder
from ragbandit.router.serving.conversations.queries import ConversationQueries
from ragbandit.router.serving.deciding.context_counts import ContextCounts
from ragbandit.router.serving.health.state import RouterState
from ragbandit.router.serving.router import Router
from ragbandit.shared.types import Decision


class Metrics:
    """The Prometheus side of one app, with a registry of its own."""

    def __init__(self, router: Router) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "ragbandit_requests_total", "HTTP requests, by path and status.", ["path", "status"], registry=self.registry
        )
        self.route_seconds = Histogram(
            "ragbandit_route_seconds",
            "Seconds from request to committed decision.",
            buckets=(0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1, 2),
            registry=self.registry,
        )
        self.decisions = Counter(
            "ragbandit_decisions_total", "Decisions, by arm.", ["arm", "explored"], registry=self.registry
        )
        self.faults = Counter(
            "ragbandit_policy_faults_total",
            "Decisions made by the fallback arm because the policy broke its contract.",
            registry=self.registry,
        )
        self.feedback = Counter(
            "ragbandit_feedback_total",
            "Feedback received, by kind and result.",
            ["kind", "result"],
            registry=self.registry,
        )
        self.events = Counter(
            "ragbandit_feedback_events_total",
            "Events of users received, by name and result.",
            ["event", "result"],
            registry=self.registry,
        )
        self.unseen = Counter(
            "ragbandit_replies_unseen",
            "Decisions, outcomes and feedback that were stored after their caller had closed the connection.",
            registry=self.registry,
        )
        self.registry.register(_ProcessCollector(router))
        #: of the event loops of this process; their counts are shown too
        self.limiters: list[RateLimiter] = []
        self.registry.register(_RateCollector(self.limiters))

    def decided(self, decision: Decision, *, seconds: float) -> None:
        """Count a decision. seconds: from request to committed decision."""
        self.route_seconds.observe(seconds)
        self.decisions.labels(decision.arm, decision.explored).inc()
        if decision.fault:
            self.faults.inc()

    def own_text(self) -> bytes:
        """Prometheus text of what this process counts."""
        return bytes(generate_latest(self.registry))

    def state_text(self, state: RouterState | None) -> bytes:
        """Prometheus text of the ledger and of the queues in Redis; None: it could not be read."""
        read = CollectorRegistry()
        read.register(_StateCollector(state))
        return bytes(generate_latest(read))


class _RateCollector(Collector):
    def __init__(self, limiters: Sequence[RateLimiter]) -> None:
        self._limiters = limiters

    def collect(self) -> Iterator[Metric]:
        """Requests over a rate, and those counted without Redis."""
        refused = CounterMetricFamily(
            "ragbandit_rate_limited", "Requests refused with 429: over the rate of their API key.", labels=["role"]
        )
        for role in sorted({role for limiter in self._limiters for role in limiter.refused}):
            refused.add_metric([role], sum(limiter.refused.get(role, 0) for limiter in self._limiters))
        yield refused
        yield CounterMetricFamily(
            "ragbandit_rate_in_memory",
            "Requests counted by this process for itself, since Redis could not be reached.",
            value=float(sum(limiter.in_memory for limiter in self._limiters)),
        )


class _StateCollector(Collector):
    def __init__(self, state: RouterState | None) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """The router's state as metrics, if it could be read."""
        yield GaugeMetricFamily(
            "ragbandit_ledger_readable",
            "1 if the ledger could be read for this scrape; 0 if not, and then its metrics are missing.",
            value=float(self._state is not None),
        )
        if self._state is not None:
            yield from _shared(self._state)


class _ProcessCollector(Collector):
    """What this process counts beside its requests, and its queues; nothing outside it is asked."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def collect(self) -> Iterator[Metric]:
        """The policy in use, the features in memory, and length, expected wait, refusals and drops of each queue."""
        yield from _policy(self._router)
        yield from _feature_cache(self._router.encoder)
        yield from _context(self._router.service.context_counts)
        yield from _rewrites(self._router.conversations)
        yield from _redis(self._router)
        waiting = GaugeMetricFamily("ragbandit_queue_waiting", "Items waiting for their batch.", labels=["queue"])
        wait = GaugeMetricFamily(
            "ragbandit_queue_wait_seconds", "Expected wait of an item that came now.", labels=["queue"]
        )
        refused = CounterMetricFamily(
            "ragbandit_requests_refused",
            "Items refused when they came: expected to wait too long (wait), too many waiting (count), too many of one "
            "tenant (tenant).",
            labels=["queue", "reason"],
        )
        dropped = CounterMetricFamily(
            "ragbandit_requests_dropped",
            "Items dropped before any work: their caller left (gone), or they had waited too long (expired).",
            labels=["queue", "reason"],
        )
        for queue, state in self._router.queues().items():
            waiting.add_metric([queue], state.waiting)
            wait.add_metric([queue], state.expected_wait_s)
            for reason, count in state.refused.items():
                refused.add_metric([queue, reason], count)
            for reason, count in state.dropped.items():
                dropped.add_metric([queue, reason], count)
        yield from (waiting, wait, refused, dropped)


def _redis(router: Router) -> Iterator[Metric]:
    """Whether notifications arrive, and what is in Redis and not ours."""
    yield GaugeMetricFamily(
        "ragbandit_listener_up",
        "1 if notifications of workers and learner arrive in this process; 0 if not: answers are up to 1 s late.",
        value=float(router.updates.hears()),
    )
    foreign = CounterMetricFamily(
        "ragbandit_redis_foreign",
        "Data in Redis that this process met, did not write, and ignored, by where it was.",
        labels=["part"],
    )
    for part, count in sorted(router.jobs.outage.foreign.counts().items()):
        foreign.add_metric([part], count)
    yield foreign


def _context(counts: ContextCounts) -> Iterator[Metric]:
    """What callers send as context."""
    declared = CounterMetricFamily(
        "ragbandit_context_values",
        "Questions by declared key of the context: with a value (given), with one that `values` does not list (other), "
        "without one (missing).",
        labels=["key", "kind"],
    )
    for (key, kind), count in counts.declared().items():
        declared.add_metric([key, kind], count)
    yield declared
    yield CounterMetricFamily(
        "ragbandit_context_undeclared",
        "Values of contexts under keys that the setting context does not declare: kept, and not learned from.",
        value=counts.undeclared,
    )


def _rewrites(conversations: ConversationQueries) -> Iterator[Metric]:
    """Questions of conversations that a model was asked to rewrite; nothing where nobody rewrites."""
    rewriter = conversations.rewriter
    if rewriter is None:
        return
    rewrites = CounterMetricFamily(
        "ragbandit_rewrites",
        "Questions of conversations by what came of their rewrite: rewritten, unchanged, or the reason of the failure.",
        labels=["result"],
    )
    for result, count in dict(rewriter.results).items():
        rewrites.add_metric([result], count)
    tokens = CounterMetricFamily("ragbandit_rewrite_tokens", "Tokens that rewrites took.", labels=["kind"])
    for kind, count in dict(rewriter.tokens).items():
        tokens.add_metric([kind], count)
    yield from (rewrites, tokens)


def _feature_cache(encoder: Encoder) -> Iterator[Metric]:
    """The features that the encoder of this process remembers; nothing where it remembers none."""
    if not isinstance(encoder, CachingEncoder):
        return
    counts = encoder.counts()
    yield CounterMetricFamily(
        "ragbandit_feature_cache_hits", "Questions whose features were in memory.", value=counts.hits
    )
    yield CounterMetricFamily(
        "ragbandit_feature_cache_misses", "Questions whose features were computed.", value=counts.misses
    )
    yield GaugeMetricFamily(
        "ragbandit_feature_cache_entries", "Questions whose features are in memory.", value=counts.entries
    )


def _policy(router: Router) -> Iterator[Metric]:
    counts = {
        "ragbandit_policy_swaps": ("Snapshots taken over.", router.following.snapshots.swaps),
        "ragbandit_snapshots_refused": (
            "Snapshots that could not be used (missing, damaged, or of another encoder).",
            router.following.snapshots.refused,
        ),
        "ragbandit_failed_notifications": (
            "Notifications of workers and learner that did not reach Redis; they are repeated.",
            router.notifier.failed_notifications,
        ),
        "ragbandit_decisions_fail_open": (
            "Questions that were offered all arms because none of theirs was healthy.",
            router.service.fail_opens,
        ),
    }
    for name, (text, value) in counts.items():
        yield CounterMetricFamily(name, text, value=value)
    serving = router.service.serving
    values: dict[str, tuple[str, float]] = {
        "ragbandit_policy_last_seq": ("Last update that the policy in use has learned.", serving.last_seq),
        "ragbandit_policy_rebuilding": (
            "1 while the policy is being learned again from the ledger and another one decides; else 0.",
            serving.rebuilding,
        ),
        "ragbandit_route_queue": ("Requests waiting for the next batch.", router.service.batcher.depth()),
    }
    for name, (help_text, number) in values.items():
        yield GaugeMetricFamily(name, help_text, value=number)


def _shared(state: RouterState) -> Iterator[Metric]:
    """What all processes of the store see alike."""
    if state.jobs_refused is not None:
        yield CounterMetricFamily(
            "ragbandit_jobs_refused",
            "What workers found in the queues that is none of our jobs, and removed; absent while Redis is down.",
            value=state.jobs_refused,
        )
    yield GaugeMetricFamily(
        "ragbandit_lag_seconds",
        "Seconds for which the oldest feedback that can be learned has been waiting.",
        value=state.ledger.lag_s,
    )
    ledger = GaugeMetricFamily("ragbandit_ledger", "Decisions and feedback in the ledger, by state.", labels=["place"])
    for place, count in asdict(state.ledger.counters).items():
        ledger.add_metric([place], count)
    yield ledger
    yield GaugeMetricFamily(
        "ragbandit_judge_waiting", "Answers that wait for the judge.", value=state.ledger.judge.waiting
    )
    judged = GaugeMetricFamily(
        "ragbandit_judge_today",
        "What the judge did and took in the present day (UTC), over all processes of the store.",
        labels=["what"],
    )
    for what, count in state.ledger.judge.today.items():
        judged.add_metric([what], count)
    yield judged
    offered = GaugeMetricFamily(
        "ragbandit_arm_offered", "1 if the arm is offered, 0 if it is suspended.", labels=["arm"]
    )
    for arm in state.arms:
        offered.add_metric([arm.arm], arm.offered)
    yield offered
    yield from worker_metrics(state)
    yield from earned_metrics(state.earned)
    jobs = GaugeMetricFamily("ragbandit_jobs", "Jobs waiting, by queue; absent while Redis is down.", labels=["queue"])
    for queue, depth in (state.jobs or {}).items():
        jobs.add_metric([queue], depth)
    yield jobs
