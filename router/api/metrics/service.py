"""Prometheus metrics: what this process counts, and the router's state at the time of the scrape."""

from collections import Counter as Counts
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ragbandit.router.api.limiting.rate_limiter import RateLimiter
from ragbandit.router.api.metrics.arms import earned_metrics, worker_metrics
from ragbandit.router.api.metrics.families import counter, gauge
from ragbandit.router.encoders.base import CachingEncoder, Encoder
from ragbandit.router.serving.conversations import ConversationQueries
from ragbandit.router.serving.deciding.candidates import ContextCounts
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

    def state_text(
        self, state: RouterState | None, *, budgets: Mapping[tuple[str, str, str], float] | None = None
    ) -> bytes:
        """Prometheus text of the ledger and of the queues in Redis; None: it could not be read.

        budgets: kind and name of the spender, and period -> share of the dollars that is spent.
        """
        read = CollectorRegistry()
        read.register(_StateCollector(state, budgets or {}))
        return bytes(generate_latest(read))


class _RateCollector(Collector):
    def __init__(self, limiters: Sequence[RateLimiter]) -> None:
        self._limiters = limiters

    def collect(self) -> Iterator[Metric]:
        """Requests over a rate, and those counted without Redis."""
        refused: Counts[str] = sum((Counts(limiter.refused) for limiter in self._limiters), Counts())
        text = "Requests refused with 429: over the rate of their API key."
        yield counter("ragbandit_rate_limited", text, dict(sorted(refused.items())), labels=["role"])
        text = "Requests counted by this process for itself, since Redis could not be reached."
        yield counter("ragbandit_rate_in_memory", text, sum(limiter.in_memory for limiter in self._limiters))


class _StateCollector(Collector):
    def __init__(self, state: RouterState | None, budgets: Mapping[tuple[str, str, str], float]) -> None:
        self._state, self._budgets = state, budgets

    def collect(self) -> Iterator[Metric]:
        """The router's state as metrics, if it could be read."""
        text = "1 if the ledger could be read for this scrape; 0 if not, and then its metrics are missing."
        yield gauge("ragbandit_ledger_readable", text, self._state is not None)
        if self._state is not None:
            yield from _shared(self._state)
            text = "Share of a dollar budget that is spent in its period (UTC); the 100 that are spent furthest."
            yield gauge("ragbandit_budget_spent_ratio", text, self._budgets, labels=["scope", "name", "period"])


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
        queues = self._router.queues()
        waiting = {queue: state.waiting for queue, state in queues.items()}
        yield gauge("ragbandit_queue_waiting", "Items waiting for their batch.", waiting, labels=["queue"])
        waits = {queue: state.expected_wait_s for queue, state in queues.items()}
        yield gauge("ragbandit_queue_wait_seconds", "Expected wait of an item that came now.", waits, labels=["queue"])
        refused, dropped = (
            {(queue, why): n for queue, state in queues.items() for why, n in getattr(state, kind).items()}
            for kind in ("refused", "dropped")
        )
        text = (
            "Items refused when they came: expected to wait too long (wait), too many waiting (count), too many of one "
            "tenant (tenant)."
        )
        yield counter("ragbandit_requests_refused", text, refused, labels=["queue", "reason"])
        text = "Items dropped before any work: their caller left (gone), or they had waited too long (expired)."
        yield counter("ragbandit_requests_dropped", text, dropped, labels=["queue", "reason"])


def _redis(router: Router) -> Iterator[Metric]:
    """Whether notifications arrive."""
    text = "1 if notifications of workers and learner arrive in this process; 0 if not: answers are up to 1 s late."
    yield gauge("ragbandit_listener_up", text, router.updates.hears())


def _context(counts: ContextCounts) -> Iterator[Metric]:
    """What callers send as context."""
    text = (
        "Questions by declared key of the context: with a value (given), with one that `values` does not list (other), "
        "without one (missing)."
    )
    yield counter("ragbandit_context_values", text, dict(counts.declared()), labels=["key", "kind"])
    text = "Values of contexts under keys that the setting context does not declare: kept, and not learned from."
    yield counter("ragbandit_context_undeclared", text, counts.undeclared)


def _rewrites(conversations: ConversationQueries) -> Iterator[Metric]:
    """Questions of conversations that a model was asked to rewrite; nothing where nobody rewrites."""
    rewriter = conversations.rewriter
    if rewriter is None:
        return
    text = (
        "Questions of conversations by what came of their rewrite: rewritten, unchanged, or the reason of the failure."
    )
    yield counter("ragbandit_rewrites", text, dict(rewriter.results), labels=["result"])
    tokens = dict(rewriter.tokens)
    yield counter("ragbandit_rewrite_tokens", "Tokens that rewrites took.", tokens, labels=["kind"])


def _feature_cache(encoder: Encoder) -> Iterator[Metric]:
    """The features that the encoder of this process remembers; nothing where it remembers none."""
    if not isinstance(encoder, CachingEncoder):
        return
    counts = encoder.counts()
    yield counter("ragbandit_feature_cache_hits", "Questions whose features were in memory.", counts.hits)
    yield counter("ragbandit_feature_cache_misses", "Questions whose features were computed.", counts.misses)
    yield gauge("ragbandit_feature_cache_entries", "Questions whose features are in memory.", counts.entries)


def _policy(router: Router) -> Iterator[Metric]:
    service, snapshots = router.service, router.following.snapshots
    yield counter("ragbandit_policy_swaps", "Snapshots taken over.", snapshots.swaps)
    text = "Snapshots that could not be used (missing, damaged, or of another encoder)."
    yield counter("ragbandit_snapshots_refused", text, snapshots.refused)
    text = "Notifications of workers and learner that did not reach Redis; they are repeated."
    yield counter("ragbandit_failed_notifications", text, router.notifier.failed_notifications)
    text = "Questions that were offered all arms because none of theirs was healthy."
    yield counter("ragbandit_decisions_fail_open", text, service.fail_opens)
    serving = service.serving
    yield gauge("ragbandit_policy_last_seq", "Last update that the policy in use has learned.", serving.last_seq)
    text = "1 while the policy is being learned again from the ledger and another one decides; else 0."
    yield gauge("ragbandit_policy_rebuilding", text, serving.rebuilding)
    yield gauge("ragbandit_route_queue", "Requests waiting for the next batch.", service.batcher.depth())


def _shared(state: RouterState) -> Iterator[Metric]:
    """What all processes of the store see alike."""
    ledger = state.ledger
    text = "Seconds for which the oldest feedback that can be learned has been waiting."
    yield gauge("ragbandit_lag_seconds", text, ledger.lag_s)
    text = "Decisions and feedback in the ledger, by state."
    yield gauge("ragbandit_ledger", text, asdict(ledger.counters), labels=["place"])
    yield gauge("ragbandit_judge_waiting", "Answers that wait for the judge.", ledger.judge.waiting)
    text = "What the judge did and took in the present day (UTC), over all processes of the store."
    yield gauge("ragbandit_judge_today", text, dict(ledger.judge.today), labels=["what"])
    yield gauge("ragbandit_check_waiting", "Answers that wait for the check of reward.check.", ledger.unchecked)
    offered = {one.arm: one.offered for one in state.arms}
    yield gauge("ragbandit_arm_offered", "1 if the arm is offered, 0 if it is suspended.", offered, labels=["arm"])
    yield from worker_metrics(state)
    yield from earned_metrics(state.earned)
    text = "Jobs waiting, by queue; absent while Redis is down."
    yield gauge("ragbandit_jobs", text, dict(state.jobs or {}), labels=["queue"])
