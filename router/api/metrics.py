"""What is counted and bounded around every HTTP request."""

from collections.abc import Callable
from dataclasses import asdict

from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragbandit.router.api.responses import error_body
from ragbandit.router.errors import QueueError
from ragbandit.router.serving.router import Router

__all__ = ["BodyLimitMiddleware", "Metrics"]


class Metrics:
    """The Prometheus side, one registry per app."""

    def __init__(self, router: Router) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("ragbandit_requests_total", "HTTP requests", ["path", "status"], registry=self.registry)
        self.route_seconds = Histogram(
            "ragbandit_route_seconds",
            "From request to committed decision",
            buckets=(0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1, 2),
            registry=self.registry,
        )
        self.decisions = Counter("ragbandit_decisions_total", "Decisions", ["arm", "explored"], registry=self.registry)
        self.faults = Counter("ragbandit_policy_faults_total", "Decisions made by the fallback", registry=self.registry)
        self.feedback = Counter("ragbandit_feedback_total", "Feedback kept", ["kind", "result"], registry=self.registry)
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "ragbandit_policy_last_seq": ("Last update of the serving policy", lambda: router.service.serving.last_seq),
            "ragbandit_policy_swaps": ("Snapshots taken over", lambda: router.swaps),
            "ragbandit_snapshots_refused": ("Snapshots refused", lambda: len(router.refused)),
            "ragbandit_bells_not_rung": ("Times Redis could not be reached", lambda: router.unrung),
            "ragbandit_decisions_forced": (
                "Questions none of whose arms was healthy",
                lambda: router.service.fail_opens,
            ),
            "ragbandit_route_queue": ("Requests that wait for their group", router.service.depth),
        }
        for name, (text, value) in gauges.items():
            Gauge(name, text, registry=self.registry).set_function(value)
        self.counters = Gauge("ragbandit_ledger", "Decisions and feedback by place", ["place"], registry=self.registry)
        self.lag = Gauge("ragbandit_lag_seconds", "Age of the oldest feedback not learned", registry=self.registry)
        self.offered = Gauge("ragbandit_arm_offered", "0: left out, it fails", ["arm"], registry=self.registry)
        self.jobs = Gauge("ragbandit_jobs", "Jobs that wait", ["queue"], registry=self.registry)

    def text(self, router: Router) -> bytes:
        """Prometheus text, ledger and queue figures taken now. Raises StoreError."""
        status = router.status()
        for place, count in asdict(status.counters).items():
            self.counters.labels(place).set(count)
        self.lag.set(status.lag_s)
        self.offered.clear()  # arms come and go
        for health in router.service.healths():
            self.offered.labels(health.arm).set(health.offered)
        try:
            for queue, depth in router.jobs.depth().items():
                self.jobs.labels(queue).set(depth)
        except QueueError:
            self.jobs.clear()  # no number is better than an old one
        return bytes(generate_latest(self.registry))


class BodyLimitMiddleware:
    """Outermost layer: refuses bodies over a size, announced or not, and counts every reply."""

    def __init__(self, app: ASGIApp, *, state: State, limit: Callable[[], int]) -> None:
        self.app = app
        self.state = state
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """OutcomePoller one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit, seen = self.limit(), 0

        async def bounded() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise HTTPException(413)
            return message

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = getattr(scope.get("route"), "path", "unknown")
                self.state.meters.requests.labels(path, message["status"]).inc()
            await send(message)

        announced = dict(scope["headers"]).get(b"content-length", b"")
        if announced.isdigit() and int(announced) > limit:
            refusal = error_body("BODY_TOO_LARGE", f"the body is larger than {limit} bytes", remedy="send less")
            await JSONResponse(refusal, status_code=413)(scope, receive, counted)
            return
        await self.app(scope, bounded, counted)
