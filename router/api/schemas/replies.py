"""Replies as values of the router fill them; `ragbandit.client.replies` has their types."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any, TypeVar, cast

from ragbandit.client.replies.decisions import (
    AnswerReply,
    CancellationReply,
    CostReply,
    DecisionFields,
    KeptFeedback,
    KeptOutcome,
    KeptReward,
    OutcomeFields,
    PendingReply,
    ReceiptReply,
    RecordReply,
    RouteReply,
    SavedFields,
    SourceReply,
)
from ragbandit.client.replies.status import (
    ArmLearningReply,
    ArmOverviewReply,
    ArmReply,
    ComparisonReply,
    CountersReply,
    JudgeReply,
    LagReply,
    LearningReply,
    LedgerReply,
    LineReply,
    OverviewReply,
    PointReply,
    ReportReply,
    StatusReply,
    TotalsReply,
    WorkerReply,
)
from ragbandit.router.learning.monitoring.diagnosis import Diagnosis
from ragbandit.router.learning.status import Status
from ragbandit.router.queue.presence import WorkerState
from ragbandit.router.reporting import report as words
from ragbandit.router.reporting.reading import Comparison, Unit
from ragbandit.router.reporting.report import Line, Report
from ragbandit.router.serving.deciding.question import price_name
from ragbandit.router.serving.explanations.values import Explanation
from ragbandit.router.serving.health.circuit_breaker import ArmHealth
from ragbandit.router.serving.health.readiness import RouterState
from ragbandit.router.serving.overview import Overview, mean
from ragbandit.router.serving.pending import Cancellation
from ragbandit.router.storage.decisions.store import DecisionRecord
from ragbandit.router.storage.rows.outcome_rows import trace_json
from ragbandit.router.telemetry.tracing import trace_id_of
from ragbandit.shared.types import ArmTotals, Decision, Outcome, Query, Receipt, finite_json

_Reply = TypeVar("_Reply")


def _filled(kind: type[_Reply], value: object, **own: object) -> _Reply:
    """A reply of this type: each field from `own`, or from the value's attribute of that name."""
    return cast(_Reply, {name: own[name] if name in own else getattr(value, name) for name in kind.__annotations__})


def headers(decision: Decision) -> dict[str, str]:
    """The decision's main facts as HTTP headers, for callers that do not read the body."""
    trace = trace_id_of(decision.query.request)
    return {
        "x-ragbandit-decision-id": decision.id,
        "x-ragbandit-strategy": decision.arm,
        "x-ragbandit-policy-version": decision.version,
        "x-ragbandit-propensity": repr(decision.propensity),
        "x-ragbandit-explored": str(decision.explored).lower(),
        **({} if decision.cost_weight is None else {"x-ragbandit-cost-weight": repr(decision.cost_weight)}),
        **({} if trace is None else {"x-ragbandit-trace-id": trace}),
    }


def decision_json(decision: Decision) -> DecisionFields:
    """A decision without what its query was."""
    return {
        "decision_id": decision.id,
        "arm": decision.arm,
        "propensity": decision.propensity,
        "pmf": dict(zip(decision.arms, decision.pmf, strict=True)),
        "scores": None if decision.scores is None else dict(zip(decision.arms, decision.scores, strict=True)),
        "policy": decision.policy,
        "version": decision.version,
        "explored": decision.explored,
        "fault": decision.fault,
        "cost_weight": decision.cost_weight,
        "price": price_name(decision.query),
    }


def route_json(decision: Decision, *, seconds: float) -> RouteReply:
    """A decision that was just made. seconds: from request to committed decision."""
    reply = cast(RouteReply, {"route_ms": round(seconds * 1000, 3), **decision_json(decision)})
    if decision.query.asked is not None:
        reply["question"] = decision.query.text
    if (trace := trace_id_of(decision.query.request)) is not None:
        reply["trace_id"] = trace
    return reply


def answer_json(decision: Decision, outcome: Outcome, *, seconds: float, saved: float | None = None) -> AnswerReply:
    """A decision that was just made, and its outcome. saved: in dollars; None: it is not known."""
    known: SavedFields = {} if saved is None else {"saved": saved}
    return {**route_json(decision, seconds=seconds), **outcome_json(outcome), **known}


def pending_json(decision: Decision, *, seconds: float) -> PendingReply:
    """A decision that was just made, and has no outcome yet."""
    return {**route_json(decision, seconds=seconds), "status": "pending", "answer": None}


def outcome_json(outcome: Outcome) -> OutcomeFields:
    """An outcome without its trace."""
    sources = [_filled(SourceReply, source) for source in outcome.sources]
    return _filled(OutcomeFields, outcome, cost=_filled(CostReply, outcome.cost), sources=sources)


def receipt_json(receipt: Receipt) -> ReceiptReply:
    """Confirmation of a feedback."""
    return _filled(ReceiptReply, receipt)


def cancellation_json(cancellation: Cancellation) -> CancellationReply:
    """State of a cancelled decision."""
    return _filled(CancellationReply, cancellation, status=cancellation.status or "pending")


def record_json(record: DecisionRecord) -> RecordReply:
    """All that is stored about a decision."""
    decision, outcome = record.decision, record.outcome
    stored = {
        "outcome": None if outcome is None else _kept_outcome(outcome),
        "feedback": [
            _filled(KeptFeedback, item, facts=dict(item.facts), late=item.id in record.late) for item in record.feedback
        ],
        "reward": None
        if record.reward is None
        else _filled(KeptReward, record.reward, terms=dict(record.reward.terms)),
    }
    of_decision = {name: getattr(decision, name) for name in ("floor", "encoder_hash", "run_by", "made_at")}
    own = {**decision_json(decision), **_asked(decision.query), **of_decision, **stored}
    return _filled(RecordReply, record, **own, seed=str(decision.seed), facts=dict(decision.facts))


def _asked(query: Query) -> dict[str, Any]:
    """What a record has of its query."""
    return {
        "question": query.text,
        "asked": query.asked,
        "session_id": query.session,
        "messages": [{"role": message.role, "content": message.text} for message in query.messages],
        "context": dict(query.context),
        "tenant": query.tenant,
        "budget": {cap: value for cap, value in asdict(query.budget).items() if value is not None},
        "forced": query.forced,
        "aim": dict(query.aim),
        "request": dict(query.request),
    }


def _kept_outcome(outcome: Outcome) -> KeptOutcome:
    return _filled(
        KeptOutcome,
        outcome,
        **outcome_json(outcome),
        trace=trace_json(outcome.trace),
        made_by=dict(outcome.made_by),
    )


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """An explanation with its record as `GET /v1/decisions/{decision_id}` gives it."""
    values = {field.name: getattr(explanation, field.name) for field in fields(explanation)}
    return {**values, "record": record_json(explanation.record)}


def status_json(state: RouterState) -> StatusReply:
    """State of a router and of its ledger."""
    ledger = ledger_json(state.ledger, label=state.label, arms=state.arms, rebuilding=state.rebuilding)
    return _filled(StatusReply, state, **ledger, feedback_to_policy_ms=_filled(LagReply, state.feedback_to_policy_ms))


def ledger_json(status: Status, *, label: str, arms: Sequence[ArmHealth], rebuilding: bool) -> LedgerReply:
    """State of a ledger. rebuilding: the policy is being learned again from it."""
    return _filled(
        LedgerReply,
        status,
        policy=label,
        counters=_filled(CountersReply, status.counters),
        balanced=status.counters.balanced,
        judge=_filled(JudgeReply, status.judge, today=dict(status.judge.today)),
        learning=_learning(status.learning),
        rebuilding=rebuilding,
        arms={arm.arm: _filled(ArmReply, arm) for arm in arms},
    )


def _learning(read: Diagnosis | None) -> LearningReply | None:
    if read is None:
        return None
    arms = {str(arm): _filled(ArmLearningReply, one) for arm, one in read.arms.items()}
    return _filled(LearningReply, read, arms=arms)


def overview_json(
    overview: Overview,
    *,
    status: Status,
    queues: Mapping[str, int] | None = None,
    workers: Sequence[WorkerState] | None = None,
) -> OverviewReply:
    """What the policy earned in a time, and how the service is."""
    return _filled(
        OverviewReply,
        overview,
        totals=_totals(overview.totals),
        arms=[_filled(ArmOverviewReply, one, totals=_totals(one.totals)) for one in overview.arms],
        points=[
            _filled(
                PointReply,
                point,
                totals=_totals(point.totals),
                arms={str(arm): _totals(totals) for arm, totals in point.arms.items()},
            )
            for point in overview.points
        ],
        counted_to=overview.progress.decided_to,
        behind_s=overview.progress.behind_s,
        updates_behind=overview.progress.updates_behind,
        learning=_learning(status.learning),
        lag_s=status.lag_s,
        waiting=status.counters.waiting,
        behind=status.behind,
        queues=None if queues is None else dict(queues),
        workers=None if workers is None else [_filled(WorkerReply, one) for one in workers],
    )


def _totals(totals: ArmTotals) -> TotalsReply:
    return _filled(
        TotalsReply,
        totals,
        failure_share=mean(totals.failed, totals.ended),
        learned=totals.rewarded,
        reward=mean(totals.reward, totals.rewarded),
        quality=mean(totals.quality, totals.rewarded),
        cost=mean(totals.cost, totals.rewarded),
        p50_s=totals.latency_at(0.5),
        p95_s=totals.latency_at(0.95),
        p99_s=totals.latency_at(0.99),
    )


def report_json(report: Report, *, now: float, learning: str | None) -> ReportReply:
    """A report, with what it says in words. learning: the state of learning."""

    def lines(of: Sequence[Line]) -> list[LineReply]:
        return [_line(line, unit=report.unit) for line in of]

    return _filled(
        ReportReply,
        report,
        sentence=words.sentence(report, now=now),
        total=None if report.total is None else _line(report.total, unit=report.unit),
        costs={unit: _comparison(of) for unit, of in report.costs.items()},
        **{name: lines(getattr(report, name)) for name in ("arms", "tenants", "prices", "weeks")},
        left_out=dict(report.left_out),
        notes=list(words.footnotes(report)),
        learning=learning,
    )


def _line(line: Line, *, unit: Unit) -> LineReply:
    told = {"saved": words.saved(line, unit), "words": words.verdict(line)}
    return _filled(LineReply, line, cost=_comparison(line.cost), quality=_comparison(line.quality), **told)


def _comparison(of: Comparison) -> ComparisonReply:
    tried = of.tried
    counts = {"draws": tried.draws, "seen": tried.judged, "effective_rows": tried.effective, "missing": tried.missing}
    return _filled(ComparisonReply, of, **counts)


def plain(reply: Any) -> Any:
    """The reply as dicts, lists and scalars that JSON can hold."""
    return finite_json(_without_dataclasses(reply))


def _without_dataclasses(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _without_dataclasses(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _without_dataclasses(item) for key, item in value.items()}
    return [_without_dataclasses(item) for item in value] if isinstance(value, list | tuple) else value
