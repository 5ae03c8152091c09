"""Converts the state of a router and of its ledger to replies."""

from collections.abc import Sequence

from ragbandit.client.replies.status import ArmReply, LedgerReply, StatusReply
from ragbandit.router.learning.status import Status
from ragbandit.router.replies.values import build_reply
from ragbandit.router.serving.health.circuit_breaker import ArmHealth
from ragbandit.router.serving.health.readiness import RouterState


def status_json(state: RouterState) -> StatusReply:
    ledger = ledger_json(state.ledger, label=state.label, arms=state.arms, rebuilding=state.rebuilding)
    return build_reply(StatusReply, state, **ledger)


def ledger_json(status: Status, *, label: str, arms: Sequence[ArmHealth], rebuilding: bool) -> LedgerReply:
    return build_reply(
        LedgerReply,
        status,
        policy=label,
        balanced=status.counters.balanced,
        rebuilding=rebuilding,
        arms={arm.arm: build_reply(ArmReply, arm) for arm in arms},
    )
