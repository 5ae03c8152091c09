"""Status of a ledger for people: its diagnosis also names what decides now instead of the policy (`deciders`)."""

import time
from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy import and_

from ragbandit.router.learning import status as ledger_status
from ragbandit.router.learning.monitoring.diagnosis import Diagnosis
from ragbandit.router.learning.monitoring.drifts import drifts_of
from ragbandit.router.policies.base import Policy
from ragbandit.router.reporting.deciders import newest_deciders, state_of
from ragbandit.router.storage.ledgers.closing import ClosingRule
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.types import ArmName


def status(
    ledger: Ledger, *, serving: Policy | None, rule: ClosingRule, now: float, arms: Iterable[ArmName] = ()
) -> ledger_status.Status:
    """The status of `learning.status.read_status`, whose diagnosis names what decides now. Raises StoreError."""
    read = ledger_status.read_status(ledger, serving=serving, rule=rule, now=now, arms=arms)
    return replace(read, learning=_with_decider(read.learning, ledger=ledger))


def learning_of(ledger: Ledger) -> Diagnosis | None:
    """The diagnosis of the ledger's policy, as in `status`; None if no learner has stored one. Raises StoreError."""
    return _with_decider(ledger_status.stored_diagnosis(ledger), ledger=ledger)


def _with_decider(learning: Diagnosis | None, *, ledger: Ledger) -> Diagnosis | None:
    if learning is None:
        return None
    with ledger.database.read() as connection:
        drifts = drifts_of(connection, learning, label=ledger.label)
        changes = "; ".join(one.what for one in drifts) or None
        own = and_(decisions.c.made_at < time.time(), decisions.c.turn_of.is_(None), decisions.c.policy == ledger.label)
        decider = state_of(newest_deciders(connection, own))
        return replace(learning, changes=changes).with_decider(decider)
