"""Dollars around a call: reserved before, counted afterwards. Every payment goes through these functions.

    before a call     after it           if its process dies
    reserve           settle             the estimate stays counted: the call may have been paid
    reserve_answers   settle_answers     charge_lost: the estimate is charged, and reserved again for the next run
    no_reservation    settle             nothing is counted

`reserve` is for embeddings and the questions of a bought verdict, `reserve_answers` for decisions, in the transaction
that stores the decisions. Scores of the judge, rewrites, picks and runs without an outcome have `no_reservation`, so
nothing is written before their calls.

Estimates have two places, and `spending.spent` reads both. The estimate of a call is added to the sums of its spenders
until the call is settled. The estimate of an answer is a column of its row in `jobs`, inserted with the decision and
deleted with the outcome: so no further row is written, every deletion of the job releases the estimate, and every
gateway sees it. Estimates of answers in the sums would let each question change rows that all gateways share, and each
way in which a job ends would have to settle one.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from ragbandit.router.storage.access.spending import (
    MOST_DOLLARS,
    UNIT,
    Spender,
    Spent,
    change_dollars,
    count_dollars,
    lock,
    spenders_of,
    spent,
)
from ragbandit.router.storage.rows.outcome_rows import cost_value
from ragbandit.router.storage.sql.bulk_insert import Row, run_statement
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Moves, counting
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.types import ArmName, Cost, Decision, DecisionId, Outcome, SpendLimit

#: columns of `jobs` that `charge_lost` needs
RESERVING: Final = ("tenant", "api_key", "reserved")
#: number of newest answers whose mean costs are estimates
_RECENT: Final = 200
_NEWEST: Final = (
    "SELECT d.arm AS arm, o.cost AS cost, o.steps AS steps FROM outcomes o JOIN decisions d ON d.id = o.decision_id"
    " ORDER BY o.made_at DESC LIMIT ?"
)
_STORED: Final = "SELECT id FROM decisions WHERE id IN ?"
#: seconds for which the mean costs of arms are used again
_FRESH_S: Final = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """Dollars that are counted before a call. dollars: the estimate, 0.0 if nothing is. at: time of its day."""

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
    with counting(database) as (connection, moves):
        lock(connection, spenders)
        check(spent(connection, spenders, now=now))
        count_dollars(moves, spenders, dollars=dollars, now=now)
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
        with counting(database) as (connection, moves):
            before, at = reservation.dollars, reservation.at
            change_dollars(moves, reservation.spenders, before=before, after=dollars, now=at)
            if note is not None:
                note(connection)


def newest_costs(connection: Connection, *, most: int) -> dict[ArmName, list[tuple[Cost, float]]]:
    """Arm -> (cost, steps) of its answers among the newest `most`, each with its later turns. Raises StoreError."""
    costs: dict[ArmName, list[tuple[Cost, float]]] = {}
    for row in run_statement(connection, _NEWEST, most):
        costs.setdefault(row["arm"], []).append((cost_value(row["cost"]), row["steps"]))
    return costs


class AnswerReservations:
    """Refuses new decisions of spenders whose budget is spent."""

    def __init__(self) -> None:
        self._means: Mapping[str, float] = {}
        self._read_at = -_FRESH_S

    def reserve_answers(
        self, connection: Connection, group: Sequence[Decision], *, estimates: dict[DecisionId, float]
    ) -> dict[DecisionId, RagBanditError]:
        """Returns id -> error for the new decisions of the group that a spent budget refuses. In a write transaction.

        A decision is admitted while spending and reservations are below its budgets; each admitted one counts at once.
        So in all, a budget is passed by at most one estimate, and by what answers cost above their estimates.
        estimates: raised to the mean cost of the arm's newest answers if that is larger
        """
        limited = [decision for decision in group if decision.query.limits and decision.run_by == "worker"]
        if not limited:
            return {}
        spenders = {Spender(limit.kind, limit.name) for decision in limited for limit in decision.query.limits}
        lock(connection, spenders)
        known = {row["id"] for row in run_statement(connection, _STORED, sorted({decision.id for decision in limited}))}
        means = self._mean_costs(connection)
        sums = spent(connection, sorted(spenders, key=repr), now=limited[0].made_at)
        refused = dict[DecisionId, RagBanditError]()
        admitted = dict.fromkeys(spenders, 0.0)
        for decision in limited:
            if decision.id in known:  # a repeated request gets its stored decision, also if both come at once
                continue
            over = _spent_limit(decision.query.limits, sums=sums, admitted=admitted)
            if over is not None:
                refused[decision.id] = over.refusal
                continue
            known.add(decision.id)
            amount = estimates[decision.id] = max(estimates.get(decision.id, 0.0), means.get(decision.arm, 0.0))
            for spender in {Spender(limit.kind, limit.name) for limit in decision.query.limits}:
                admitted[spender] += amount
        return refused

    def _mean_costs(self, connection: Connection) -> Mapping[str, float]:
        """Arm -> mean dollars of its answers among the newest outcomes."""
        if time.monotonic() - self._read_at >= _FRESH_S:
            costs = newest_costs(connection, most=_RECENT)
            self._means = {arm: fmean(cost.dollars for cost, _ in of_arm) for arm, of_arm in costs.items()}
            self._read_at = time.monotonic()
        return self._means


def settle_answers(
    moves: Moves, outcomes: Iterable[Outcome], *, rows: Mapping[str, Row], is_stored: bool = True
) -> None:
    """Count the cost of new outcomes, in the transaction that deletes their jobs.

    rows: decision id -> its row, with the columns `tenant` and `api_key`. is_stored: False for outcomes of second runs,
    which are not stored
    """
    for outcome in outcomes:
        row = rows[outcome.decision_id]
        spenders = spenders_of(row["tenant"], key=row["api_key"])
        count_dollars(
            moves, spenders, dollars=max(0.0, outcome.cost.dollars), now=outcome.made_at, is_outcome=is_stored
        )


def charge_lost(moves: Moves, rows: Iterable[Row], *, now: float) -> None:
    """Charge the estimates of answers whose process died. rows: rows of `jobs`, with the columns RESERVING."""
    for row in rows:
        if row["reserved"]:
            spenders = spenders_of(row["tenant"], key=row["api_key"])
            count_dollars(moves, spenders, dollars=row["reserved"] * UNIT, now=now)


def units(dollars: float) -> int | None:
    """The value of `jobs.reserved` for an estimate; None for nothing."""
    return round(min(dollars, MOST_DOLLARS) / UNIT) or None


def _spent_limit(
    limits: Iterable[SpendLimit], *, sums: Mapping[Spender, Spent], admitted: Mapping[Spender, float]
) -> SpendLimit | None:
    for limit in limits:
        spender = Spender(limit.kind, limit.name)
        if sums[spender].of(limit.period) + admitted[spender] >= limit.dollars:
            return limit
    return None
