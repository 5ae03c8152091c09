"""Tracing of requests: the request id, the server's span, the span of a decision, and what is told of feedback."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from fastapi import Request
from starlette.datastructures import MutableHeaders, State
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragbandit.router.api.dependencies import reads_of, router_of
from ragbandit.router.storage.decisions.links import traces_of
from ragbandit.router.telemetry import conventions as names
from ragbandit.router.telemetry.carriers import REQUEST_ID, SCOPE_ID, carrier_of, request_id_of, trace_id_of
from ragbandit.router.telemetry.evaluations import tell_evaluation
from ragbandit.router.telemetry.logs import bound
from ragbandit.router.telemetry.tracing import OFF, Attribute, Span, Tracing
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.types import Decision, Feedback, Query, Receipt

#: paths that are asked all the time and are no traffic
_UNTRACED: Final = ("/health", "/ready", "/metrics", "/docs", "/openapi.json", "/ui")


def tracing_of(request: Request) -> Tracing:
    """The app's tracing."""
    found: Tracing = getattr(request.app.state, "tracing", OFF)
    return found


class RequestMiddleware:
    """The outermost layer: every request has an id and, where telemetry is on, a span."""

    def __init__(self, app: ASGIApp, *, state: State) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope[SCOPE_ID] = request_id = request_id_of(scope["headers"])
        tracing: Tracing = getattr(self.state, "tracing", OFF)
        status = 0

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        with bound(request=request_id):
            if not tracing.enabled or scope["path"].startswith(_UNTRACED):
                await self.app(scope, receive, told)
                return
            parent = _sent(scope)
            with tracing.span(scope["method"], kind="server", attributes=_request(scope), parent=parent) as span:
                with bound(trace=trace_id_of(span.carrier)):
                    await self.app(scope, receive, told)
                _end(span, scope=scope, status=status)


def _sent(scope: Scope) -> Mapping[str, str]:
    """The caller's W3C headers. One that is sent twice counts as none."""
    found: dict[str, str] = {}
    for name in (b"traceparent", b"tracestate"):
        values = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
        if len(values) == 1:
            found[name.decode()] = values[0]
    return found


def _request(scope: Scope) -> dict[str, Attribute | None]:
    """No path: it may hold an id of a person's session. The route is told at the end."""
    return {
        names.HTTP_METHOD: scope["method"],
        names.URL_SCHEME: scope["scheme"],
        names.REQUEST_ID: scope[SCOPE_ID],
    }


def _end(span: Span, *, scope: Scope, status: int) -> None:
    route = getattr(scope.get("route"), "path", None)
    if route is not None:
        span.rename(f"{scope['method']} {route}")
    span.set({names.HTTP_ROUTE: route, names.HTTP_STATUS: status or None})
    if status >= 500:
        span.fail(str(status))


def in_trace(request: Request, query: Query, *, span: Span) -> Query:
    """The query with the place in the trace, and the id of the request, that its decision is kept with.

    The id is kept where the caller chose it, or where traces or JSON logs are made: those who read them look for it.
    """
    tracing, settings = tracing_of(request), router_of(request).settings
    more: dict[str, object] = dict(span.carrier)
    if tracing.enabled or settings.log.format == "json" or "x-request-id" in request.headers:
        more[REQUEST_ID] = request.scope.get(SCOPE_ID)
    return replace(query, request={**query.request, **more}) if more else query


def asked_attributes(query: Query) -> dict[str, Attribute | None]:
    """What is known before the draw."""
    return {names.SPAN_KIND: "DECISION", names.CONVERSATION: query.session}


def decided_attributes(decision: Decision) -> dict[str, Attribute | None]:
    """What is known after it."""
    return {
        names.DECISION_ID: decision.id,
        names.DECISION_ARM: decision.arm,
        names.DECISION_PROPENSITY: decision.propensity,
        names.DECISION_EXPLORED: decision.explored,
        names.DECISION_POLICY: decision.policy,
        names.DECISION_VERSION: decision.version,
        names.DECISION_DEGRADED: decision.fault is not None,
    }


async def tell_feedback(request: Request, taken: Sequence[tuple[Feedback, Receipt]]) -> None:
    """Tell of the judgements that are new, each in the trace of its decision. Never a reason to refuse one."""
    tracing = tracing_of(request)
    new = [(made, receipt) for made, receipt in taken if not receipt.duplicate]
    if not tracing.enabled or not new:
        return
    database = router_of(request).database
    found: Mapping[str, Mapping[str, object]] = {}
    with suppress(RagBanditError):
        ids = {made.decision_id for made, _ in new}
        found = await reads_of(request).run(lambda: traces_of(database, ids))
    for made, receipt in new:
        carrier = carrier_of(found.get(made.decision_id, {}))
        tell_evaluation(tracing, made, late=receipt.late, carrier=carrier)
