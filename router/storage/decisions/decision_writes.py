"""Stores a group of decisions in one transaction. Its phases lock rows in this order; `add` calls them:

1. reserve: the spending of budgets (`reserve_answers`), which refuses decisions beyond a spent budget.
2. insert: rows of `decisions`. Then the revision of the versions is compared with the one that decided.
3. refuse: `units` and `outcomes`. A turn is deleted again if another request has meanwhile continued the same answer.
4. queue: `waiting`, for each ledger, and `jobs`, for workers.
5. count: `WriteTransaction` adds to the counters when the block ends.

The tasks of turns that a budget has refused end in a transaction of their own, since it locks other rows of `units`.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter, not_
from types import MappingProxyType
from typing import Any, Final, Literal

from sqlalchemy import select

from ragbandit.router.storage.access.expected_dollars import ExpectedDollars
from ragbandit.router.storage.access.reservations import billionths, reserve_answers
from ragbandit.router.storage.access.turn_sums import add_turns_of
from ragbandit.router.storage.decisions import tasks
from ragbandit.router.storage.decisions.continuing import take_answers
from ragbandit.router.storage.jobs import answers
from ragbandit.router.storage.rows.conversion import canonical, decision_row, read_decision, without_words
from ragbandit.router.storage.rows.waiting import labels_in_use, waiting_row
from ragbandit.router.storage.sql.bulk_insert import Row, Rows, insert_rows, send, send_new
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Increments, WriteTransaction
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, waiting
from ragbandit.shared.errors import Conflict, RagBanditError, StoreError, TooManyRequests
from ragbandit.shared.types import Decision, DecisionId, PolicyLabel, TurnKind

#: `field` of the error of decisions that were made with an older revision of versions and kill switch
OUTDATED: Final = "revision"
#: fields of errors after which decisions are made again: others have changed the task or the versions meanwhile
STALE: Final = (tasks.TAKEN, OUTDATED)
_REVISION: Final = "SELECT revision FROM policy_control WHERE base = ?"
_ID: Final = attrgetter("id")


class _OutdatedError(Exception):
    """The decisions were made with an older revision of versions and kill switch."""


@dataclass(frozen=True, slots=True)
class _Queues:
    """Queries, sent by `send`, whose results are needed to queue new decisions for ledgers and workers."""

    #: rows of `labels_in_use`: labels of the ledgers that get the decisions
    labels: Callable[[], set[str]]
    #: tenant -> positions in the answer queue, see `answers.read_positions`
    positions: Mapping[str, Rows]

    @classmethod
    def of(
        cls, connection: Connection, group: Iterable[Decision], *, label: PolicyLabel, claims: Collection[str] = ()
    ) -> "_Queues":
        """Send the queries, after the decisions were inserted. claims: ids of decisions that a process has claimed."""
        labels = labels_in_use(connection, label=label)
        for_workers = [decision for decision in group if decision.run_by == "worker"]
        return cls(labels, answers.read_positions(connection, for_workers, claims=claims))


class DecisionWrites:
    """Stores decisions. Thread-safe."""

    def __init__(
        self,
        database: Database,
        *,
        text: Literal["full", "none"],
        context: frozenset[str],
        expected: ExpectedDollars,
        turn_kinds: Collection[TurnKind],
    ) -> None:
        """Takes the parameters of DecisionStore."""
        self.database, self.text, self.context = database, text, context
        self.expected, self.turn_kinds = expected, turn_kinds

    def add(
        self,
        group: Sequence[Decision],
        *,
        label: PolicyLabel,
        base: PolicyLabel,
        claims: Mapping[DecisionId, str],
        revision: int | None,
    ) -> list[Decision | RagBanditError]:
        """See `DecisionStore.add_decisions`.

        label: label of the ledger. base: label that versions of the policy refer to.
        """
        try:
            with WriteTransaction(self.database) as (connection, tally):
                estimates = self._estimates(connection, group)
                over = reserve_answers(connection, group, estimates=estimates)
                rest = [decision for decision in group if decision.id not in over] if over else group
                rows = list(map(self.row, rest))
                are_new, queues = _insert(
                    connection, rest, rows=rows, label=label, base=base, revision=revision, claims=claims
                )
                new = list(compress(rest, are_new))
                refused = over | _take(connection, new)
                begun = [decision for decision in new if decision.id not in refused]
                _queue(connection, begun, queues=queues, tally=tally, claims=claims, reserved=estimates)
                self._add_turns(begun, estimates=estimates, tally=tally)
                stored = stored_decisions(connection, map(_ID, compress(rest, map(not_, are_new))))
        except _OutdatedError:
            message, remedy = "the kill switch or a version of the policy has changed", "send the request again"
            return [Conflict(message, field=OUTDATED, remedy=remedy) for _ in group]
        self._stop_tasks([decision for decision in group if isinstance(over.get(decision.id), TooManyRequests)])
        hashes = {id(decision): row["body_hash"] for decision, row in zip(rest, rows, strict=True)}
        replies = list[Decision | RagBanditError]()
        for decision in group:
            if decision.id in stored and id(decision) in hashes:
                replies.append(repeated_reply(*stored[decision.id], request_hash=hashes[id(decision)]))
            else:
                replies.append(refused.get(decision.id, decision))
        return replies

    def replace(self, connection: Connection, successor: Decision, *, label: PolicyLabel, tally: Increments) -> None:
        """Store the decision that answers instead of a failed one, in the transaction of the failed outcome.

        The successor is put in front of the answer queue. If it is a turn, call `tasks.lock_task` first.
        """
        insert_rows(connection, decisions, [self.row(successor)])
        if successor.turn_of is not None:
            tasks.move_task(connection, successor)
        queues = _Queues.of(connection, [successor], label=label)
        reserved = {successor.id: self.expected.estimate(successor)}
        _queue(connection, [successor], queues=queues, tally=tally, in_front=True, reserved=reserved)
        self._add_turns([successor], estimates=reserved, tally=tally)

    def _estimates(self, connection: Connection, group: Sequence[Decision]) -> dict[DecisionId, float]:
        """Estimated dollars of answers; for an answer under a limit, at least the expected cost of the arm."""
        limited = [decision for decision in group if decision.query.limits and decision.run_by == "worker"]
        if limited or any(decision.arm in self.expected.unpriced for decision in group):
            self.expected.refresh(connection)
        estimates = {decision.id: self.expected.estimate(decision) for decision in group}
        for decision in limited:
            mean = self.expected.of(decision.arm, tenant=decision.query.tenant) or 0.0
            estimates[decision.id] = max(estimates[decision.id], mean)
        return estimates

    def _add_turns(self, new: Sequence[Decision], *, estimates: Mapping[DecisionId, float], tally: Increments) -> None:
        """Count new decisions in the sums of their sessions and tasks."""
        if self.turn_kinds and new:
            for_workers = [decision.id for decision in new if decision.run_by == "worker"]
            reserved = {key: billionths(estimates.get(key, 0.0)) or 0 for key in for_workers}
            add_turns_of(tally, new, reserved=reserved, kinds=self.turn_kinds)

    def row(self, decision: Decision) -> dict[str, Any]:
        """The row of `decisions`, without texts if they are not stored."""
        row = decision_row(decision)
        return row if self.text == "full" else row | _without_texts(row, context=self.context)

    def _stop_tasks(self, refused: Sequence[Decision]) -> None:
        stopped = {decision.turn_of: decision.made_at for decision in refused if decision.turn_of is not None}
        if stopped:
            with WriteTransaction(self.database) as (connection, tally):
                tasks.stop_tasks(connection, [*stopped], tally=tally, now=min(stopped.values()))


def _insert(
    connection: Connection,
    group: Sequence[Decision],
    *,
    rows: Sequence[Row],
    label: PolicyLabel,
    base: PolicyLabel,
    revision: int | None,
    claims: Collection[str],
) -> tuple[list[bool], _Queues]:
    """Returns (whether each decision is new, the sent queries). Raises _OutdatedError."""
    inserted = send_new(connection, decisions, rows, key="id")
    queues = _Queues.of(connection, group, label=label, claims=claims)
    # The revision is read after the locks of budgets and of the insertion: it may change while these block.
    stored = None if revision is None else send(connection, _REVISION, base)
    if stored is not None and next((row["revision"] for row in stored()), 0) != revision:
        raise _OutdatedError
    return inserted(), queues


def _take(connection: Connection, new: Sequence[Decision]) -> dict[DecisionId, RagBanditError]:
    """Mark continued answers as taken, and store tasks. Deletes a decision if another turn has continued the answer,
    or the task was begun or ended meanwhile. Returns deleted decision -> error.
    """
    tasks.lock_tasks(connection, new)
    refused = take_answers(connection, new)
    return refused | tasks.store_tasks(connection, [decision for decision in new if decision.id not in refused])


def _queue(
    connection: Connection,
    new: Sequence[Decision],
    *,
    queues: _Queues,
    tally: Increments,
    in_front: bool = False,
    claims: Mapping[DecisionId, str] = MappingProxyType({}),
    reserved: Mapping[DecisionId, float] = MappingProxyType({}),
) -> None:
    """Insert rows of `waiting` for new decisions, and jobs for workers.

    in_front, claims, reserved: see `answers.enqueue`.
    """
    if not new:
        return
    drawn = [decision for decision in new if decision.turn_of is None]
    tally.add("decided", len(drawn))
    in_use = sorted(queues.labels())
    rows = [waiting_row(decision, label=label) for decision in drawn for label in in_use]
    insert_rows(connection, waiting, rows)
    tally.count_waiting(rows)
    tasks.keep_open(connection, new)
    for_workers = [decision for decision in new if decision.run_by == "worker"]
    if for_workers:
        answers.enqueue(
            connection, for_workers, positions=queues.positions, in_front=in_front, claims=claims, reserved=reserved
        )


def _without_texts(row: Mapping[str, Any], *, context: frozenset[str]) -> dict[str, Any]:
    """Columns of a decision if texts are not stored. context: keys of the context that are still stored."""
    values = {key: value for key, value in json.loads(row["context"]).items() if key in context}
    request = without_words(row["request"], arm_by=row["arm_by"], is_erased=False)
    return {"text": "", "context": canonical(values), "request": request, "responses": None}


def stored_decisions(connection: Connection, ids: Iterable[str]) -> dict[str, tuple[Decision | StoreError, str]]:
    """Id -> (stored decision, or StoreError for an unreadable row; hash of its request), without unknown ids."""
    listed = list(ids)
    if not listed:
        return {}
    rows = connection.execute(select(decisions).where(decisions.c.id.in_(listed))).mappings()
    return {row["id"]: (read_decision(row), row["body_hash"]) for row in rows}


def repeated_reply(stored: Decision | StoreError, stored_hash: str, *, request_hash: str) -> Decision | RagBanditError:
    """The reply to a repeated id: the stored decision, or Conflict if a different request made it."""
    if stored_hash == request_hash:
        return stored
    remedy = "use a new id for a new question"
    return Conflict("this decision id was used for another request", field="decision_id", remedy=remedy)
