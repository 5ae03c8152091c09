"""Tracing of endpoints: the place of a decision in a trace, the attributes of its span, what is told of feedback."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from fastapi import Request

from ragbandit.router.api.dependencies import reads_of, router_of
from ragbandit.router.storage.decisions.links import traces_of
from ragbandit.router.telemetry import conventions as names
from ragbandit.router.telemetry.carriers import REQUEST_ID, SCOPE_ID, carrier_of
from ragbandit.router.telemetry.evaluations import tell_evaluation
from ragbandit.router.telemetry.tracing import OFF, Attribute, Span, Tracing
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.types import Decision, Feedback, Query, Receipt


def tracing_of(request: Request) -> Tracing:
    """The app's tracing."""
    tracing: Tracing = getattr(request.app.state, "tracing", OFF)
    return tracing


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
    new = [(feedback, receipt) for feedback, receipt in taken if not receipt.duplicate]
    if not tracing.enabled or not new:
        return
    database = router_of(request).database
    traces: Mapping[str, Mapping[str, object]] = {}
    with suppress(RagBanditError):
        ids = {feedback.decision_id for feedback, _ in new}
        traces = await reads_of(request).run(lambda: traces_of(database, ids))
    for feedback, receipt in new:
        carrier = carrier_of(traces.get(feedback.decision_id, {}))
        tell_evaluation(tracing, feedback, late=receipt.late, carrier=carrier)
