"""Dollars around a call: reserved before, counted afterwards. Every payment goes through these functions.

    before a call     after it           if its process dies
    reserve           settle             the estimate stays counted: the call may have been paid
    reserve_answers   settle_answers     charge_lost: the estimate is charged, and reserved again for the next run
    no_reservation    settle             nothing is counted

`reserve` is for embeddings and the questions of a bought verdict, `reserve_answers` for decisions, in the transaction
that stores the decisions. Scores of the judge, rewrites, picks and runs without an outcome have `no_reservation`, so
nothing is written before their calls.

Estimates have two places, and `read_spending` reads both. The estimate of a call is added to the sums of its spenders
until the call is settled. The estimate of an answer is a column of its row in `jobs`, inserted with the decision and
deleted with the outcome: so no further row is written, every deletion of the job releases the estimate, and every
process sees it. With estimates of answers in the sums of a day, each question would change rows that all processes
share, and each way in which a job ends would have to settle one. The sums of a session or task, which few questions
share, have the estimates too, so that a question reads one row and not all jobs; see turn_sums.py.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from ragbandit.router.storage.access.spending import (
    DOLLARS,
    MOST_DOLLARS,
    TURNS,
    UNIT,
    Spender,
    Spent,
    change_dollars,
    count_dollars,
    lock,
    read_spending,
    spenders_of,
)
from ragbandit.router.storage.access.turn_sums import (
    REACHED,
    ensure_sums,
    is_turn,
    refusal_of,
    spending_rows,
    turn_spenders,
)
from ragbandit.router.storage.sql.bulk_insert import Row, run_statement
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Increments, WriteTransaction
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.model_servers.failures import successor_of
from ragbandit.shared.types import TURN_KINDS, Decision, DecisionId, Outcome, SpendLimit, TurnKind

#: names of the columns of `jobs` that `charge_lost` needs
RESERVING: Final = ("decision_id", "tenant", "api_key", "reserved")
_STORED: Final = "SELECT id FROM decisions WHERE id IN ?"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """Dollars counted before a call. dollars: the estimate, 0.0 if nothing is counted. at: time, for the day's sum."""

    spenders: tuple[Spender, ...]
    dollars: float
    at: float


def no_reservation(spenders: Iterable[Spender], *, at: float) -> Reservation:
    """The reservation of a call before which nothing is counted."""
    return Reservation(spenders=tuple(spenders), dollars=0.0, at=at)


def reserve(
    database: Database,
    spenders: Sequence[Spender],
    *,
    dollars: float,
    now: float,
    check: Callable[[Mapping[Spender, Spent]], None],
    note: Callable[[Connection, Reservation], object] = lambda _connection, _reservation: None,
) -> Reservation:
    """Count an estimate if `check` does not raise for the sums so far. Raises what `check` raises, and StoreError.

    note: writes what belongs to the estimate, in the same transaction. Reservations of a spender run one after another,
    in all processes, so together they exceed a budget by at most one.
    """
    with WriteTransaction(database) as (connection, tally):
        lock(connection, spenders)
        check(read_spending(connection, spenders, now=now))
        count_dollars(tally, spenders, dollars=dollars, now=now)
        reservation = Reservation(spenders=tuple(spenders), dollars=dollars, at=now)
        note(connection, reservation)
    return reservation


def settle(
    database: Database, reservation: Reservation, *, dollars: float, note: Callable[[Connection], object] | None = None
) -> None:
    """Replace an estimate by the cost, 0.0 for a call that failed and is not paid. Raises StoreError; the estimate then
    stays. note: as in `reserve`.
    """
    dollars = max(0.0, dollars)
    if dollars != reservation.dollars or note is not None:
        with WriteTransaction(database) as (connection, tally):
            before, at = reservation.dollars, reservation.at
            change_dollars(tally, reservation.spenders, before=before, after=dollars, now=at)
            if note is not None:
                note(connection)


class _Sums:
    """Amounts that spenders have used, and amounts that a group of decisions adds."""

    def __init__(self, connection: Connection, spenders: Collection[Spender], *, now: float) -> None:
        of_days = sorted((spender for spender in spenders if spender.kind not in TURN_KINDS), key=repr)
        self._spent = read_spending(connection, of_days, now=now) if of_days else {}
        self._sums = ensure_sums(connection, [spender for spender in spenders if spender.kind in TURN_KINDS])
        self._added = dict.fromkeys(spenders, 0.0)
        self._turns = dict.fromkeys(spenders, 0)

    def of(self, limit: SpendLimit) -> float:
        spender = Spender(limit.kind, limit.name)
        if limit.period is not None:
            return self._spent[spender].of(limit.period) + self._added[spender]
        more = self._turns[spender] if limit.unit == "turns" else self._added[spender]
        return round(self._sums[spender].of(limit) + more, 9)  # as exact as the sum

    def add(self, spender: Spender, *, dollars: float) -> None:
        self._added[spender] += dollars
        self._turns[spender] += 1


def reserve_answers(
    connection: Connection, group: Sequence[Decision], *, estimates: Mapping[DecisionId, float]
) -> dict[DecisionId, RagBanditError]:
    """Returns id -> error for the new decisions of the group that a limit refuses. Needs a write transaction.

    A decision is admitted while spending and reservations are below its limits; each admitted one counts at once. So in
    all, a limit of dollars is passed by at most one estimate, and by what answers cost above their estimates, and a
    limit of turns by none.
    """
    limited = {decision.id: limits for decision in group if (limits := _limits_of(decision))}
    if not limited:
        return {}
    spenders = {Spender(limit.kind, limit.name) for limits in limited.values() for limit in limits}
    lock(connection, spenders)
    known = {row["id"] for row in run_statement(connection, _STORED, sorted(limited))}
    sums = _Sums(connection, spenders, now=group[0].made_at)
    refused = dict[DecisionId, RagBanditError]()
    for decision in group:
        if decision.id in known:  # a repeated request gets its stored decision, also if both come at once
            continue
        limits = limited.get(decision.id, [])
        refusal = _refusal(decision, limits, sums=sums)
        if refusal is not None:
            refused[decision.id] = refusal
            continue
        known.add(decision.id)
        for spender in {Spender(limit.kind, limit.name) for limit in limits}:
            sums.add(spender, dollars=estimates.get(decision.id, 0.0))
    return refused


def _limits_of(decision: Decision) -> list[SpendLimit]:
    """The limits that a decision has to meet: budgets only of a worker's answer, and no limit of a new task."""
    of_turns = [limit for limit in decision.query.limits if limit.kind in TURN_KINDS and limit.name != decision.id]
    if decision.run_by != "worker":
        return of_turns
    return [limit for limit in decision.query.limits if limit.kind not in TURN_KINDS] + of_turns


def _refusal(decision: Decision, limits: Sequence[SpendLimit], *, sums: _Sums) -> RagBanditError | None:
    for limit in limits:
        used = sums.of(limit)
        if used < limit.most:
            continue
        if limit.kind not in TURN_KINDS:
            return limit.refusal
        if not limit.moves:
            return refusal_of(replace(limit, used=used), limits=decision.query.turn_limits)
        if not limit.is_reached:
            return refusal_of(replace(limit, used=used), limits=decision.query.turn_limits, field=REACHED)
    return None


def settle_answers(
    tally: Increments,
    outcomes: Iterable[Outcome],
    *,
    rows: Mapping[str, Row],
    kinds: Collection[TurnKind],
    reserved: Mapping[str, int] = MappingProxyType({}),
    is_stored: bool = True,
) -> None:
    """Count the cost of new outcomes, in the transaction that deletes their jobs.

    rows: decision id -> its row, with the columns of `turn_spenders`. kinds: kinds of sums that may exist
    reserved: decision id -> the estimate of its deleted job, billionths of a dollar
    is_stored: False for outcomes of second runs, which are not stored
    """
    for outcome in outcomes:
        row = rows[outcome.decision_id]
        sums = turn_spenders(row, kinds=kinds)
        cost, now, budgets = outcome.cost, outcome.made_at, spenders_of(row["tenant"], key=row["api_key"])
        count_dollars(tally, budgets, dollars=cost.dollars, now=now, is_outcome=is_stored)
        count_dollars(tally, sums, dollars=cost.charged_dollars, now=now, is_outcome=is_stored)
        is_replaced = successor_of(outcome.made_by) is not None
        ended = {"status": outcome.status, "stop_reason": outcome.stop_reason}
        is_lost = is_stored and not is_turn(cost=outcome.cost, is_replaced=is_replaced, **ended)
        for spender in sums:
            tally.change_sum(DOLLARS, -reserved.get(outcome.decision_id, 0), label=spender.label)
            tally.change_sum(TURNS, -int(is_lost), label=spender.label)


def charge_lost(connection: Connection, tally: Increments, rows: Iterable[Row], *, now: float) -> None:
    """Charge the estimates of answers whose process died. rows: rows of `jobs`, with the columns RESERVING."""
    lost = {row["decision_id"]: row for row in rows if row["reserved"]}
    for row in spending_rows(connection, lost):
        spenders = [*spenders_of(row["tenant"], key=row["api_key"]), *turn_spenders(row)]
        count_dollars(tally, spenders, dollars=lost[row["id"]]["reserved"] * UNIT, now=now)


def billionths(dollars: float) -> int | None:
    """The value of `jobs.reserved` for an estimate; None for an estimate of 0."""
    return round(min(dollars, MOST_DOLLARS) / UNIT) or None
