"""Decision store: writes and reads decisions, outcomes and feedback.

Every write takes a group of items, so that concurrent requests share one transaction. Ids are the callers' idempotency
keys. A repeated id is a duplicate if the body is the same, and a conflict if it differs; neither changes a row.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal, TypeVar

from sqlalchemy import RowMapping, Table, exists, select

from ragbandit.router.storage.access.expected_dollars import ExpectedDollars
from ragbandit.router.storage.access.shared_secrets import DRAWS, shared_secret
from ragbandit.router.storage.decisions import feedback_writes, tasks
from ragbandit.router.storage.decisions.continuing import newest_tasks, task_key
from ragbandit.router.storage.decisions.decision_writes import DecisionWrites, stored_decisions
from ragbandit.router.storage.decisions.outcome_writes import OutcomeWrites, Scoring
from ragbandit.router.storage.jobs.scores import JudgeSample
from ragbandit.router.storage.rows.conversion import decision_value, feedback_value, read_decision, reward_value
from ragbandit.router.storage.rows.outcome_rows import outcome_row, outcome_value
from ragbandit.router.storage.rows.waiting import with_open_turn
from ragbandit.router.storage.sql.bulk_insert import Row, run_statement
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Increments, WriteTransaction, is_missing_outcome
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import (
    cancellations,
    closures,
    decisions,
    feedback,
    outcomes,
    units,
    updates,
    waiting,
)
from ragbandit.shared.errors import RagBanditError, StoreError
from ragbandit.shared.types import (
    TURN_KINDS,
    Decision,
    DecisionId,
    DecisionState,
    Feedback,
    Outcome,
    PolicyLabel,
    Query,
    Receipt,
    Reward,
    TurnKind,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionRecord:
    """A decision or a turn. The ledger knows only decisions: a turn has the feedback, state, reward and reason of its
    decision.
    """

    decision: Decision
    outcome: Outcome | None
    #: all feedback, oldest first
    feedback: tuple[Feedback, ...]
    #: ids of feedback that arrived after the decision was closed
    late: frozenset[str]
    state: DecisionState
    #: the reward, and its seq in the ledger; both None unless the decision was learned or defaulted
    reward: Reward | None
    learned_seq: int | None
    #: why the decision was closed or quarantined, or what the caller has to send before it can be learned
    reason: str | None
    #: time of the decision (for a turn, of the decision that it belongs to), seconds since 1970
    begun_at: float
    #: end of the decision's task, seconds since 1970; None without a task, or after a ledger learned or closed it
    open_until: float | None = None


Made = TypeVar("Made", Decision, Outcome)


class DecisionStore:
    """Reads and writes decisions, outcomes and feedback. Thread-safe."""

    def __init__(
        self,
        database: Database,
        *,
        label: PolicyLabel,
        text: Literal["full", "none"] = "full",
        context: frozenset[str] = frozenset(),
        judge: JudgeSample | None = None,
        check: bool = False,
        expected: ExpectedDollars | None = None,
        turn_kinds: Collection[TurnKind] = TURN_KINDS,
    ) -> None:
        """text: the setting log.text. judge: None if judging is off. check: whether `reward.check` scores outcomes.

        expected: estimates the dollars of a decision's answer, which limits count until its outcome is stored

        context: keys of a question's context that are stored even if texts are not

        turn_kinds: kinds of sums of sessions and tasks that may exist; no statement is run for other kinds
        """
        self.database, self.label = database, label
        #: label of the configured policy, which versions refer to
        self._base = label
        self.text, self.judge, self.check = text, judge, check
        self._decisions = DecisionWrites(
            database,
            text=text,
            context=context,
            expected=expected or ExpectedDollars(),
            turn_kinds=turn_kinds,
        )
        self._outcomes = OutcomeWrites(self._decisions, text=text)

    @cached_property
    def secret(self) -> bytes:
        """The secret from which seeds of draws are computed. Raises StoreError."""
        return shared_secret(self.database, name=DRAWS, now=time.time())

    def add_decisions(
        self,
        group: Sequence[Decision],
        *,
        claims: Mapping[DecisionId, str] = MappingProxyType({}),
        revision: int | None = None,
    ) -> list[Decision | RagBanditError]:
        """Commit the decisions. Returns for each the decision, or an error; every returned decision is durable.

        A repeated id gets its stored decision, or Conflict if the request differs. A tool turn gets Conflict if another
        turn has brought the same tool results, and so does a first turn if another one has begun the task. A decision
        beyond a spent budget gets the budget's refusal. claims: see `answers.enqueue`.

        revision: revision of versions and kill switch. If the store has another one, nothing is stored, and every
            decision gets Conflict with the field OUTDATED
        """
        return self._decisions.add(group, label=self.label, base=self._base, claims=claims, revision=revision)

    def decisions_by_id(self, ids: Iterable[DecisionId]) -> dict[str, tuple[Decision | StoreError, str]]:
        """Id -> (stored decision, or StoreError for an unreadable row; hash of its request), without unknown ids."""
        with self.database.connection() as connection:
            return stored_decisions(connection, ids)

    def tenants_by_id(self, ids: Iterable[str]) -> dict[str, str]:
        with self.database.connection() as connection:
            rows = run_statement(connection, "SELECT id, tenant FROM decisions WHERE id IN ?", list(ids))
        return {row["id"]: row["tenant"] for row in rows}

    def decision_to_answer(self, decision_id: DecisionId) -> tuple[Decision | StoreError, bool] | None:
        """Returns (decision, whether a caller asked to cancel it); None if it is unknown or answered."""
        is_cancelled = exists().where(cancellations.c.decision_id == decisions.c.id).label("cancelled")
        is_answered = exists().where(outcomes.c.decision_id == decisions.c.id)
        query = select(decisions, is_cancelled).where(decisions.c.id == decision_id, ~is_answered)
        with self.database.connection() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else (read_decision(row), row["cancelled"])

    def add_outcome(self, outcome: Outcome, *, successor: Decision | None = None) -> bool:
        """Like `add_outcomes`, for one outcome. Raises NotFound or Conflict."""
        (result,) = self.add_outcomes([outcome], successor=successor)
        if isinstance(result, RagBanditError):
            raise result
        return result

    def add_outcomes(
        self, group: Sequence[Outcome], *, successor: Decision | None = None
    ) -> list[bool | RagBanditError]:
        """Store the outcomes, durable on return. Returns for each True if it is new, False if not, or an error.

        If a worker ran an arm twice, its second outcome gets False, and the first one stays. The error is NotFound if
        the decision is unknown. It is Conflict if a caller reports a second, different outcome, or an outcome of a
        decision that our workers run.

        successor: the decision that answers instead of a failed one; stored and queued in front if the outcome is new
        """
        group, successor = self._with_store_times(group), successor and self._with_store_times([successor])[0]
        sample = None if self.judge is None else replace(self.judge, secret=self.secret)
        scoring = Scoring(judge=sample, check=self.check)
        return self._outcomes.add(group, label=self.label, scoring=scoring, successor=successor)

    def _with_store_times(self, group: Sequence[Made]) -> Sequence[Made]:
        """The values; if the clock of this host is ahead, with times of the store's clock."""
        clock = self.database.clock
        return [replace(value, made_at=clock.corrected(value.made_at)) for value in group] if clock.ahead_s() else group

    def has_outcome(self, outcome: Outcome) -> bool:
        """Whether an outcome with the same body is stored."""
        query = select(outcomes.c.body_hash).where(outcomes.c.decision_id == outcome.decision_id)
        with self.database.connection() as connection:
            return bool(connection.execute(query).scalar() == outcome_row(outcome)["body_hash"])

    def ids_with_outcome(self, ids: Iterable[str]) -> list[str]:
        """The ids whose decisions have an outcome."""
        with self.database.connection() as connection:
            rows = run_statement(connection, "SELECT decision_id FROM outcomes WHERE decision_id IN ?", list(ids))
        return [row["decision_id"] for row in rows]

    def outcomes_by_id(self, ids: Iterable[str]) -> dict[str, Outcome | StoreError]:
        """Decision id -> stored outcome, or StoreError for an unreadable row."""
        with self.database.connection() as connection:
            rows = connection.execute(select(outcomes).where(outcomes.c.decision_id.in_(list(ids)))).mappings()
            return {row["decision_id"]: read_outcome(row) for row in rows}

    def add_feedback(
        self, group: Sequence[Feedback], *, also: Callable[[Connection, Increments], object] | None = None
    ) -> list[Receipt | RagBanditError]:
        """Store the feedback, durable on return. Returns for each a Receipt, NotFound or Conflict.

        also: makes further changes in the same transaction; if it raises, nothing is stored
        """
        clock = self.database.clock
        if clock.ahead_s():
            group = [replace(item, received_at=clock.corrected(item.received_at)) for item in group]
        with WriteTransaction(self.database) as (connection, tally):
            replies = feedback_writes.write_feedback(connection, group, tally=tally)
            if also is not None:
                also(connection, tally)
        return replies

    def decision_of_session(
        self, session: str, *, tenant: str, feedback_id: str | None = None, api_key: str | None = None
    ) -> tuple[DecisionId, float | None] | None:
        """The decision for which feedback on this session counts, see `tasks.newest_decision`; None if there is none.

        Returns (decision, time at which the feedback was received; None if it is not stored). feedback_id: id of the
        feedback. If it is stored, the request is a repetition, and gets the stored feedback's decision.
        """
        with self.database.read() as connection:
            if feedback_id is not None:
                judged = feedback_writes.decision_of_feedback(connection, feedback_id, session=session, tenant=tenant)
                if judged is not None:
                    return judged
            newest = tasks.newest_decision(connection, session=session, tenant=tenant, api_key=api_key)
        return None if newest is None else (newest, None)

    def end_session(
        self, session: str, *, tenant: str, now: float, begun_until: float | None = None, api_key: str | None = None
    ) -> int:
        """End the open tasks of a session. Returns their number. begun_until: tasks that began later stay open."""
        of_session = tasks.decisions_of_session(session, tenant=tenant, api_key=api_key)
        if begun_until is not None:
            of_session.append(decisions.c.made_at <= begun_until)
        begun = select(units.c.first).join(decisions, decisions.c.id == units.c.first)
        is_open = begun.where(*of_session, units.c.until > now).order_by(units.c.first)
        with self.database.write() as connection:
            return len(tasks.end_tasks(connection, connection.execute(is_open).scalars().all(), now=now))

    def open_task(self, query: Query, *, now: float) -> DecisionId | None:
        """The decision of the open task to which this query would belong; None without one."""
        key = task_key(query)
        task = None if key is None else newest_tasks(self.database, {key}).get(key)
        return None if task is None or task.turns == tasks.ENDED or task.until <= now else DecisionId(task.first)

    def stop_task(self, query: Query, *, now: float) -> None:
        """End the open task to which this query would belong, because a budget refuses the query."""
        first = self.open_task(query, now=now)
        if first is not None:
            with WriteTransaction(self.database) as (connection, tally):
                tasks.stop_tasks(connection, [first], tally=tally, now=now)

    def record(self, decision_id: DecisionId) -> DecisionRecord:
        """Raises NotFound, or StoreError if a row of the decision cannot be read."""
        with self.database.read() as connection:
            row = connection.execute(select(decisions).where(decisions.c.id == decision_id)).mappings().first()
            if row is None:
                raise feedback_writes.unknown_decision()
            query = select(outcomes).where(outcomes.c.decision_id == decision_id)
            outcome = connection.execute(query).mappings().first()
            first = row["turn_of"] or decision_id
            query = select(feedback).where(feedback.c.decision_id == first)
            query = query.order_by(feedback.c.received_at, feedback.c.id)
            feedback_rows = connection.execute(query).mappings().all()
            tables = updates, closures, waiting
            learned, closed, open_row = (self._row_in(connection, table, first) for table in tables)
            begun_at = row["made_at"]
            if row["turn_of"] is not None:
                query = select(decisions.c.made_at).where(decisions.c.id == first)
                begun_at = connection.execute(query).scalar() or begun_at
            has_open_turn = open_row is not None and bool(with_open_turn(connection, [decision_id]))
        reason = "waiting for a worker's answer to a later turn" if has_open_turn else None
        if open_row is not None and is_missing_outcome(open_row):
            reason = "waiting for an outcome: report it by POST /v1/outcomes or Router.outcome(...)"
        try:
            return DecisionRecord(
                decision=decision_value(row),
                outcome=None if outcome is None else outcome_value(outcome),
                feedback=tuple(map(feedback_value, feedback_rows)),
                late=frozenset(row["id"] for row in feedback_rows if row["late"]),
                state=_state(learned, closed),
                reward=None if learned is None else reward_value(learned),
                learned_seq=None if learned is None else learned["seq"],
                reason=reason if closed is None else closed["reason"],
                begun_at=begun_at,
                open_until=None if open_row is None else open_row["open_until"],
            )
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(f"the rows of decision {row['id']} cannot be read: {error}") from error

    def _row_in(self, connection: Connection, table: Table, decision_id: str) -> RowMapping | None:
        query = select(table).where(table.c.policy == self.label, table.c.decision_id == decision_id)
        return connection.execute(query).mappings().first()


def _state(learned: Row | None, closed: Row | None) -> DecisionState:
    if learned is not None:
        return "learned" if learned["source"] == "explicit" else "defaulted"
    if closed is not None:
        return "quarantined" if closed["state"] == "quarantined" else "closed"
    return "waiting"


def read_outcome(row: Row) -> Outcome | StoreError:
    try:
        return outcome_value(row)
    except (ValueError, TypeError, KeyError) as error:
        fault = f"the outcome of decision {row['decision_id']} cannot be read: {error}"
        return StoreError(fault, remedy="see: `ragbandit verify`")
