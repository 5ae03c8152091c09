"""Values as the JSON that callers see: one shape for HTTP, the command line and the client."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ragbandit.router.errors import RagBanditError
from ragbandit.router.serving.cancellation import Cancellation
from ragbandit.router.serving.circuit_breaker import ArmHealth
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.decisions import DecisionRecord
from ragbandit.router.storage.rows import trace_json
from ragbandit.router.types import Decision, Outcome, Receipt, finite_json

__all__ = [
    "arms_json",
    "cancellation_json",
    "decision_json",
    "error_body",
    "error_json",
    "headers",
    "outcome_json",
    "receipt_json",
    "record_json",
    "status_json",
]


def status_json(router: Router) -> dict[str, Any]:
    """Counters, lag, snapshot, and the lag measured by this router."""
    status = router.status()
    lags = sorted(router.lags)
    percentiles = np.percentile(lags, [50, 99]) * 1000 if lags else (None, None)
    return asdict(status) | {
        "balanced": status.counters.balanced,
        "serving": router.service.serving.version,
        "algorithm": router.settings.policy.name,
        "policy": router.store.label,
        "faults": router.service.faults,
        "forced": router.service.fail_opens,
        "arms": arms_json(router.service.healths()),
        "feedback_to_policy_ms": {"p50": percentiles[0], "p99": percentiles[1], "n": len(lags)},
    }


def arms_json(healths: Sequence[ArmHealth]) -> dict[str, Any]:
    """How the arms are, by name: state, offered, failures, since."""
    return {health.arm: {k: v for k, v in asdict(health).items() if k != "arm"} for health in healths}


def headers(decision: Decision) -> dict[str, str]:
    """What a caller may want without reading the body."""
    return {
        "x-ragbandit-decision-id": decision.id,
        "x-ragbandit-strategy": decision.arm,
        "x-ragbandit-policy-version": decision.version,
        "x-ragbandit-propensity": repr(decision.propensity),
        "x-ragbandit-explored": str(decision.explored).lower(),
    }


def decision_json(decision: Decision, *, seconds: float | None = None) -> dict[str, Any]:
    """A decision as route replies it; seconds: from request to committed decision, where this reply made it."""
    timing = {} if seconds is None else {"route_ms": round(seconds * 1000, 3)}
    return timing | {
        "decision_id": decision.id,
        "arm": decision.arm,
        "propensity": decision.propensity,
        "pmf": dict(zip(decision.arms, decision.pmf, strict=True)),
        "scores": None if decision.scores is None else dict(zip(decision.arms, decision.scores, strict=True)),
        "policy": decision.policy,
        "version": decision.version,
        "explored": decision.explored,
        "fault": decision.fault,
    }


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome without its trace."""
    return {
        "status": outcome.status,
        "answer": outcome.answer,
        "stop_reason": outcome.stop_reason,
        "error": outcome.error,
        "steps": outcome.steps,
        "cost": asdict(outcome.cost),
    }


def record_json(record: DecisionRecord) -> dict[str, Any]:
    """Everything known of a decision, as JSON."""
    return finite_json(_record_json(record))  # type: ignore[no-any-return] # a dict in, a dict out


def _record_json(record: DecisionRecord) -> dict[str, Any]:
    decision, outcome, reward = record.decision, record.outcome, record.reward
    return decision_json(decision) | {
        "question": decision.query.text,
        "context": dict(decision.query.context),
        "tenant": decision.query.tenant,
        "budget": {cap: value for cap, value in asdict(decision.query.budget).items() if value is not None},
        "seed": str(decision.seed),
        "floor": decision.floor,
        "encoder_hash": decision.encoder_hash,
        "run_by": decision.run_by,
        "facts": dict(decision.facts),
        "made_at": decision.made_at,
        "state": record.state,
        "reason": record.reason,
        "outcome": None
        if outcome is None
        else outcome_json(outcome)
        | {
            "trace": trace_json(outcome.trace),
            "run_by": outcome.run_by,
            "made_by": dict(outcome.made_by),
            "made_at": outcome.made_at,
        },
        "feedback": [asdict(item) | {"late": item.id in record.late} for item in record.feedback],
        "reward": None if reward is None else asdict(reward) | {"clipped": reward.clipped},
        "learned_seq": record.learned_seq,
    }


def receipt_json(receipt: Receipt) -> dict[str, Any]:
    """A receipt."""
    return asdict(receipt)


def cancellation_json(cancellation: Cancellation) -> dict[str, Any]:
    """Where a cancelled decision stands; "cancelled" is null while its status is "pending"."""
    return asdict(cancellation) | {"status": cancellation.status or "pending"}


def error_json(error: RagBanditError) -> dict[str, Any]:
    """An error of ours."""
    return error_body(error.code, error.message, field=error.field, remedy=error.remedy)


def error_body(code: str, message: str, *, field: str | None = None, remedy: str | None = None) -> dict[str, Any]:
    """The shape of every error: stable code, message, field, remedy."""
    # A message may quote what was sent, and that may not be valid Unicode.
    safe = json.loads(json.dumps(message).encode("utf-8", "replace"))
    return {"error": {"code": code, "message": safe, "field": field, "remedy": remedy}}
