"""Draws made again from the rows of decisions: seeds from the ids and the store's secret, arms from pmf and seed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import func, select, tuple_

from ragbandit.router.learning.audit.rules import draw_fault, seed_fault
from ragbandit.router.learning.audit.verdict import Verdict
from ragbandit.router.policies.draw import seed_of
from ragbandit.router.storage.access.service_secrets import DRAWS, Secret, known_secret
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import decision_value
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.types import ERASED, IMPORTED, STICKY, Decision

PAGE = 500


def check_draws(ledger: Ledger, *, verdict: Verdict, progress: Callable[[int, int], None]) -> None:
    """Draw every decision again."""
    with ledger.database.read() as connection:
        total = int(connection.execute(select(func.count()).select_from(decisions)).scalar_one())

    def unreadable(text: str) -> None:
        verdict.decisions += 1
        verdict.fail("propensity_mismatches", text)

    stayed: list[Decision] = []
    secret = known_secret(ledger.database, name=DRAWS)
    for decision in pages(ledger, unreadable=unreadable):
        _check(decision, secret=secret, verdict=verdict)
        if STICKY in decision.facts and IMPORTED not in decision.facts:
            stayed.append(decision)
        if len(stayed) == PAGE:
            _check_stays(ledger, stayed, verdict=verdict)
            stayed = []
        if verdict.decisions % PAGE == 0 or verdict.decisions == total:
            progress(verdict.decisions, total)
    _check_stays(ledger, stayed, verdict=verdict)


def _check_stays(ledger: Ledger, stayed: Sequence[Decision], *, verdict: Verdict) -> None:
    """Hold turns that stayed against the draws that they name, where these are in the database still."""
    firsts = {decision.id: _first_of(decision) for decision in stayed}
    known = select(decisions.c.id, decisions.c.arm).where(decisions.c.id.in_({*firsts.values()} - {None}))
    with ledger.database.read() as connection:
        arms = {row.id: row.arm for row in connection.execute(known)}
    for decision in stayed:
        arm = arms.get(firsts[decision.id] or "")
        if arm is not None and arm != decision.arm:
            stayed_on = f"it stayed on {decision.arm}, and {firsts[decision.id]} drew {arm}"
            verdict.fail("propensity_mismatches", f"decision {decision.id}: {stayed_on}")


def _first_of(decision: Decision) -> str | None:
    """The decision that drew the arm on which this one stayed."""
    facts = decision.facts[STICKY]
    first = facts.get("first") if isinstance(facts, dict) else None
    return first if isinstance(first, str) else None


def _check(decision: Decision, *, secret: Secret | None, verdict: Verdict) -> None:
    verdict.decisions += 1
    elsewhere = IMPORTED in decision.facts
    verdict.made_elsewhere += elsewhere
    verdict.erased += ERASED in decision.facts
    if elsewhere:
        return
    # A release before this one that still runs beside it draws so.
    verdict.seeded_by_id += (
        secret is not None and decision.made_at >= secret.made_at and decision.seed == seed_of(decision.id)
    )
    fault = seed_fault(decision, secret=None if secret is None else secret.value) or draw_fault(decision)
    if fault:
        verdict.fail("propensity_mismatches", f"decision {decision.id}: {fault}")


def pages(
    ledger: Ledger, *where: Any, by_time: bool = False, unreadable: Callable[[str], None] = lambda _: None
) -> Iterator[Decision]:
    """The decisions, in the order of ids; what cannot be read is handed to `unreadable` instead.

    by_time: in the order of their time, where the condition is about it: an index gives just these.
    """
    order = (decisions.c.made_at, decisions.c.id) if by_time else (decisions.c.id,)
    last: list[Any] = []
    while True:
        query = select(decisions).where(*where).order_by(*order).limit(PAGE)
        if last:
            query = query.where(tuple_(*order) > tuple_(*last) if by_time else decisions.c.id > last[0])
        with ledger.database.read() as connection:
            rows = connection.execute(query).mappings().all()
        if not rows:
            return
        for row in rows:
            try:
                decision = decision_value(row)
            except (ValueError, TypeError, KeyError) as error:
                unreadable(f"decision {row['id']}: cannot be read: {error}")
                continue
            yield decision
        last = [rows[-1][column.name] for column in order]
