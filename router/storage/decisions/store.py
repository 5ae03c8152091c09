"""Decision store: writes and reads decisions, outcomes and feedback.

Every write takes a group of items, so that concurrent requests share one transaction. Ids are the callers' idempotency
keys. A repeated id is a duplicate if the body is the same, and a conflict if it differs; neither changes a row.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from types import MappingProxyType
from typing import Any, Final, Literal

from sqlalchemy import RowMapping, Table, exists, select

from ragbandit.router.storage.access.reservations import Reservations
from ragbandit.router.storage.access.shared_secrets import DRAWS, shared_secret
from ragbandit.router.storage.access.spending import count_spending
from ragbandit.router.storage.decisions import feedback_writes, tasks
from ragbandit.router.storage.decisions.label_queue import ids_to_label
from ragbandit.router.storage.decisions.turns import (
    CONVERSATION,
    TOOL_TURN,
    add_turns,
    called,
    earlier_turns,
    take_results,
)
from ragbandit.router.storage.jobs import answers
from ragbandit.router.storage.jobs.scores import MAX_CHECKS, JudgeSample, add_jobs, add_labels, sample_outcomes
from ragbandit.router.storage.rows.conversion import (
    LINKED,
    RATED_MESSAGE,
    Row,
    canonical,
    decision_row,
    decision_value,
    feedback_value,
    reward_value,
    without_messages,
)
from ragbandit.router.storage.rows.outcome_rows import outcome_row, outcome_value
from ragbandit.router.storage.sql.bulk_insert import insert_rows, run, send, send_new
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Moves, counting, is_missing_outcome, kept
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import key_pattern, object_pattern
from ragbandit.router.storage.sql.tables import cancellations, closures, decisions, feedback, outcomes, updates, waiting
from ragbandit.router.storage.sql.waiting import flag_waiting, labels_in_use, lock_waiting, waiting_row
from ragbandit.shared.errors import Conflict, RagBanditError, StoreError
from ragbandit.shared.types import (
    ERASED,
    NAMED_ID,
    PICK,
    Decision,
    DecisionId,
    DecisionState,
    Feedback,
    JudgeRequest,
    LabelRequest,
    Outcome,
    PolicyLabel,
    Query,
    Receipt,
    Reward,
    TaskTurn,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionRecord:
    decision: Decision
    outcome: Outcome | None
    #: all feedback on the decision, oldest first
    feedback: tuple[Feedback, ...]
    #: ids of feedback that came after the decision was closed
    late: frozenset[str]
    state: DecisionState
    #: the reward, and its seq in the ledger; both None unless the decision was learned or defaulted
    reward: Reward | None
    learned_seq: int | None
    #: why the decision was closed or quarantined, or what the caller has to send before it can be learned
    reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerTask:
    decision: Decision | StoreError
    answered: bool
    #: whether a caller asked to cancel the decision
    cancelled: bool


#: query for the columns of decisions that are needed to store their outcomes; asked: whether a label is wanted. Its
#: locks let one writer at a time add an outcome to a decision, or to a turn of it
_DECISIONS_OF_OUTCOMES: Final = (
    "SELECT id, run_by, tenant, api_key, request, session, turn_of, facts LIKE ? AS asked, facts LIKE ? AS is_erased,"
    " facts LIKE ? AS is_task, facts LIKE ? AS is_drawn, facts LIKE ? AS is_judged"
    " FROM decisions WHERE id IN ? OR id IN (SELECT turn_of FROM decisions WHERE id IN ?)"
    " ORDER BY id FOR NO KEY UPDATE"
)
#: LIKE patterns for `facts`
_ASKED, _IS_ERASED = object_pattern(LabelRequest.key, first='"asked":true'), key_pattern(ERASED)
_IS_TASK: Final = key_pattern(TaskTurn.key)
#: the judge's share was drawn when the decision was made, and the decision is in it
_IS_DRAWN, _IS_JUDGED = key_pattern(JudgeRequest.key), object_pattern(JudgeRequest.key, first='"asked":true')
_PATTERNS: Final = (_ASKED, _IS_ERASED, _IS_TASK, _IS_DRAWN, _IS_JUDGED)
#: columns of an outcome that are NULL if texts are not stored; repeated outcomes are recognised by body_hash
_NO_OUTCOME_TEXTS: Final[dict[str, Any]] = dict.fromkeys(("answer", "trace", "error", "sources", "reply"))


def _without_texts(row: Mapping[str, Any], *, context: frozenset[str]) -> dict[str, Any]:
    """Columns of a decision if texts are not stored. context: keys of the context that are still stored."""
    values = {key: value for key, value in json.loads(row["context"]).items() if key in context}
    kept = (TOOL_TURN, CONVERSATION, NAMED_ID, RATED_MESSAGE, PICK)
    request = without_messages(row["request"], keep=kept)
    return {"text": "", "context": canonical(values), "request": request}


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
        estimate: Callable[[Decision], float] = lambda _decision: 0.0,
    ) -> None:
        """text: the setting log.text. judge: None if judging is off. check: whether outcomes wait for `reward.check`.

        estimate: estimated dollars of a decision's answer, which budgets count until its outcome is stored.

        context: keys of a question's context that are stored even if texts are not
        """
        self.database, self.label = database, label
        self.text, self.context = text, context
        self.judge, self.check = judge, check
        self.estimate, self._reservations = estimate, Reservations()

    @cached_property
    def secret(self) -> bytes:
        """The secret from which seeds of draws are computed. Raises StoreError."""
        return shared_secret(self.database, name=DRAWS, now=time.time())

    def add_decisions(
        self,
        group: Sequence[Decision],
        *,
        claims: Mapping[DecisionId, str] = MappingProxyType({}),
    ) -> list[Decision | RagBanditError]:
        """Commit the decisions. Returns for each the decision, or an error; every returned decision is durable.

        A repeated id gets its stored decision, or Conflict if the request differs. A tool turn gets Conflict if another
        turn has brought the same tool results, and so does a first turn if another one has begun the task. A decision
        beyond a spent budget gets the budget's refusal. claims: see
        `answers.enqueue`.
        """
        refused = dict[DecisionId, RagBanditError]()
        with counting(self.database) as (connection, moves):
            reserved = {decision.id: self.estimate(decision) for decision in group}
            over = self._reservations.admit(connection, group, estimates=reserved)
            refused.update(over)
            stopped = [item.turn_of for item in group if item.id in over and item.turn_of is not None]
            if stopped:
                tasks.stop_tasks(connection, stopped, moves=moves, now=group[0].made_at)
            whole, group = group, [decision for decision in group if decision.id not in over]
            rows = [self._row(decision) for decision in group]
            are_new = send_new(connection, decisions, rows, key="id")

            def accept() -> list[Decision]:
                new = list(compress(group, are_new()))
                refused.update(take_results(connection, new))
                refused.update(tasks.take_places(connection, [item for item in new if item.id not in refused]))
                return [decision for decision in new if decision.id not in refused]

            self._begin(connection, group, accept=accept, moves=moves, claims=claims, reserved=reserved)
            repeated = [row["id"] for row, inserted in zip(rows, are_new(), strict=True) if not inserted]
            stored = _stored_decisions(connection, repeated)
        results: list[Decision | RagBanditError] = []
        hashes = iter([row["body_hash"] for row in rows])
        for decision in whole:
            is_over = decision.id in over
            request_hash = "" if is_over else next(hashes)
            if decision.id in stored and not is_over:
                results.append(settle(*stored[decision.id], request_hash=request_hash))
            else:
                results.append(refused.get(decision.id, decision))
        return results

    def _row(self, decision: Decision) -> dict[str, Any]:
        row = decision_row(decision)
        return row if self.text == "full" else row | _without_texts(row, context=self.context)

    def _begin(
        self,
        connection: Connection,
        group: Sequence[Decision],
        *,
        accept: Callable[[], Sequence[Decision]],
        moves: Moves,
        in_front: bool = False,
        claims: Mapping[DecisionId, str] = MappingProxyType({}),
        reserved: Mapping[DecisionId, float] = MappingProxyType({}),
    ) -> None:
        """Let new decisions of the group wait in ledgers and in the answer queue.

        accept: returns the new ones, after the reads were sent. in_front, claims, reserved: see `answers.enqueue`
        """
        labels = labels_in_use(connection, label=self.label)
        turns = answers.read_turns(connection, [item.query.tenant for item in group if item.run_by == "worker"])
        new = accept()
        drawn = [decision for decision in new if decision.turn_of is None]
        moves.add("decided", len(drawn))
        if new:
            in_use = sorted(labels())
            rows = [waiting_row(decision, label=label) for decision in drawn for label in in_use]
            insert_rows(connection, waiting, rows)
            moves.waiting(rows)
            tasks.keep_open(connection, new)
            for_workers = [decision for decision in new if decision.run_by == "worker"]
            answers.enqueue(connection, for_workers, turns=turns, in_front=in_front, claims=claims, reserved=reserved)

    def decisions_by_id(self, ids: Iterable[DecisionId]) -> dict[str, tuple[Decision | StoreError, str]]:
        """Id -> (stored decision, or StoreError for an unreadable row; hash of its request), without unknown ids."""
        with self.database.look() as connection:
            return _stored_decisions(connection, ids)

    def tenants_by_id(self, ids: Iterable[str]) -> dict[str, str]:
        with self.database.look() as connection:
            rows = run(connection, "SELECT id, tenant FROM decisions WHERE id IN ?", list(ids))
        return {row["id"]: row["tenant"] for row in rows}

    def answer_task(self, decision_id: DecisionId) -> AnswerTask | None:
        """Returns None for an unknown id."""
        query = select(
            decisions,
            exists().where(outcomes.c.decision_id == decisions.c.id).label("answered"),
            exists().where(cancellations.c.decision_id == decisions.c.id).label("cancelled"),
        ).where(decisions.c.id == decision_id)
        with self.database.look() as connection:
            row = connection.execute(query).mappings().first()
        if row is None:
            return None
        return AnswerTask(decision=readable(row), answered=row["answered"], cancelled=row["cancelled"])

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
        rows = [outcome_row(outcome) for outcome in group]
        if self.text != "full":
            rows = [row | _NO_OUTCOME_TEXTS for row in rows]
        sample = None if self.judge is None else replace(self.judge, secret=self.secret)
        with counting(self.database) as (connection, moves):
            if successor is not None and successor.turn_of is not None:
                tasks.lock_task(connection, successor)
            ids = sorted({row["decision_id"] for row in rows})
            locked = send(connection, _DECISIONS_OF_OUTCOMES, *_PATTERNS, ids, ids)
            stored = send(connection, "SELECT decision_id, body_hash FROM outcomes WHERE decision_id IN ?", ids)
            waits = lock_waiting(connection, ids)
            decided = {row["id"]: row for row in locked()}
            run_by = {key: row["run_by"] for key, row in decided.items()}
            hashes = {row["decision_id"]: row["body_hash"] for row in stored()}
            new: dict[str, tuple[Outcome, Row]] = {}
            for outcome, row in zip(group, rows, strict=True):
                key = outcome.decision_id
                if key in decided and key not in hashes and not feedback_writes.is_foreign(outcome, run_by):
                    blank = _NO_OUTCOME_TEXTS if decided[key]["is_erased"] else {}
                    call = called(outcome, request=decided[key]["request"], session=decided[key]["session"])
                    new[key], hashes[key] = (outcome, {**row, **blank, "call": call}), row["body_hash"]
            again = [
                outcome
                for outcome, row in zip(group, rows, strict=True)
                if run_by.get(outcome.decision_id) == outcome.run_by == "worker"
                and row["body_hash"] != hashes[outcome.decision_id]
            ]
            count_spending(moves, again, rows=decided, is_stored=False)  # a second run has no row, but it was paid for
            if new:
                insert_rows(connection, outcomes, [new[key][1] for key in sorted(new)])
                flagged = [row for row in waits() if row["decision_id"] in new]
                flag_waiting(connection, flagged, moves=moves, has_outcome=True)
                self._follow_up(connection, [*new.values()], decided=decided, sample=sample, moves=moves)
                if successor is not None:
                    insert_rows(connection, decisions, [self._row(successor)])
                    if successor.turn_of is not None:
                        tasks.move_task(connection, successor)
                    estimate = {successor.id: self.estimate(successor)}
                    self._begin(
                        connection,
                        [successor],
                        accept=lambda: [successor],
                        moves=moves,
                        in_front=True,
                        reserved=estimate,
                    )
        return [
            outcome is new.get(outcome.decision_id, (None,))[0]
            or feedback_writes.outcome_reply(outcome, row["body_hash"], run_by=run_by, hashes=hashes)
            for outcome, row in zip(group, rows, strict=True)
        ]

    def _follow_up(
        self,
        connection: Connection,
        inserted: Sequence[tuple[Outcome, Row]],
        *,
        decided: Mapping[str, Row],
        sample: JudgeSample | None,
        moves: Moves,
    ) -> None:
        """Change the rows that depend on new outcomes: queues, spending, and outcomes with later tool turns."""
        ids = [outcome.decision_id for outcome, _ in inserted]
        answers.remove(connection, [key for key in ids if decided[key]["run_by"] == "worker"])
        count_spending(moves, (outcome for outcome, _ in inserted), rows=decided)
        drawn = list[Outcome]()
        turns = list[tuple[Outcome, Row, DecisionId]]()
        for outcome, row in inserted:
            decision = decided[outcome.decision_id]
            if decision["turn_of"] is None:
                drawn.append(outcome)
            else:
                turns.append((outcome, {**row, "request": decision["request"]}, decision["turn_of"]))
        of_tasks = [outcome.decision_id for outcome in drawn if decided[outcome.decision_id]["is_task"]]
        turns += earlier_turns(connection, of_tasks)
        scored = [outcome for outcome in drawn if LINKED not in (decided[outcome.decision_id]["request"] or "")]
        if turns:
            waits = {row["decision_id"] for row in lock_waiting(connection, {first for _, _, first in turns})()}
            scored += add_turns(connection, turns, waits=waits)
        if sample is not None:
            shard = self.database.shard
            drawn_before = {key: bool(row["is_judged"]) for key, row in decided.items() if row["is_drawn"]}
            sample_outcomes(
                connection, scored, label=self.label, sample=sample, drawn=drawn_before, moves=moves, shard=shard
            )
        to_label = [outcome for outcome in drawn if decided[outcome.decision_id]["asked"] and outcome.answer]
        add_labels(connection, to_label, moves=moves)
        if self.check:
            room = MAX_CHECKS - kept(connection, label=self.label)["check_due"]
            add_jobs(connection, scored, kind="check", room=room, moves=moves)

    def has_outcome(self, outcome: Outcome) -> bool:
        """Whether an outcome with the same body is stored."""
        query = select(outcomes.c.body_hash).where(outcomes.c.decision_id == outcome.decision_id)
        with self.database.look() as connection:
            return bool(connection.execute(query).scalar() == outcome_row(outcome)["body_hash"])

    def with_outcome(self, ids: Iterable[str]) -> list[str]:
        """The ids whose decisions have an outcome."""
        with self.database.look() as connection:
            rows = run(connection, "SELECT decision_id FROM outcomes WHERE decision_id IN ?", list(ids))
        return [row["decision_id"] for row in rows]

    def outcomes_by_id(self, ids: Iterable[str]) -> dict[str, Outcome | StoreError]:
        """Decision id -> stored outcome, or StoreError for an unreadable row."""
        with self.database.look() as connection:
            rows = connection.execute(select(outcomes).where(outcomes.c.decision_id.in_(list(ids)))).mappings()
            return {row["decision_id"]: readable_outcome(row) for row in rows}

    def add_feedback(
        self, group: Sequence[Feedback], *, also: Callable[[Connection, Moves], object] | None = None
    ) -> list[Receipt | RagBanditError]:
        """Store the feedback, durable on return. Returns for each a Receipt, NotFound or Conflict.

        also: makes further changes in the same transaction; if it raises, nothing is stored
        """
        with counting(self.database) as (connection, moves):
            replies = feedback_writes.write_feedback(connection, group, moves=moves)
            if also is not None:
                also(connection, moves)
        return replies

    def decision_of_session(
        self, session: str, *, tenant: str, feedback_id: str | None = None
    ) -> tuple[DecisionId, float | None] | None:
        """The decision for which feedback on this session counts, see `tasks.newest_decision`; None without one.

        Returns (decision, when this feedback was received if it is stored). feedback_id: id of the feedback. If it is
        stored, the request is repeated, and the decision is that of the stored feedback.
        """
        with self.database.read() as connection:
            if feedback_id is not None:
                judged = feedback_writes.judged_decision(connection, feedback_id, session=session, tenant=tenant)
                if judged is not None:
                    return judged
            newest = tasks.newest_decision(connection, session=session, tenant=tenant)
        return None if newest is None else (newest, None)

    def end_session(self, session: str, *, tenant: str, now: float, begun_until: float | None = None) -> int:
        """End the open tasks of a session. Returns their number. begun_until: leave tasks that began later."""
        of_session = [decisions.c.session == session, decisions.c.tenant == tenant, decisions.c.turn_of.is_(None)]
        if begun_until is not None:
            of_session.append(decisions.c.made_at <= begun_until)
        newest = select(decisions.c.id).where(*of_session).order_by(decisions.c.made_at.desc()).limit(tasks.READ)
        with self.database.write() as connection:
            return len(tasks.end_tasks(connection, connection.execute(newest).scalars().all(), now=now))

    def stop_task(self, query: Query, *, now: float) -> None:
        """End the open task to which this query would belong, because a budget refuses the query."""
        key = tasks.unit_key(query)
        task = None if key is None else tasks.newest_tasks(self.database, {key}).get(key)
        if task is not None and task.until > now:
            with counting(self.database) as (connection, moves):
                tasks.stop_tasks(connection, [task.first], moves=moves, now=now)

    def label_queue(self, *, tenant: str | None, limit: int, skip: int = 0) -> list[DecisionRecord]:
        """Answers that wait for a person's label, newest first. If `tenant` is None, all tenants take turns."""
        with self.database.read() as connection:
            ids = ids_to_label(connection, tenant=tenant, limit=limit, skip=skip)
        return [self.record(DecisionId(key)) for key in ids]

    def record(self, decision_id: DecisionId) -> DecisionRecord:
        """Raises NotFound, or StoreError if a row of the decision cannot be read."""
        with self.database.read() as connection:
            row = connection.execute(select(decisions).where(decisions.c.id == decision_id)).mappings().first()
            if row is None:
                raise feedback_writes.unknown_decision()
            query = select(outcomes).where(outcomes.c.decision_id == decision_id)
            outcome = connection.execute(query).mappings().first()
            query = select(feedback).where(feedback.c.decision_id == decision_id)
            query = query.order_by(feedback.c.received_at, feedback.c.id)
            feedback_rows = connection.execute(query).mappings().all()
            learned = self._row_in(connection, updates, decision_id)
            closed = self._row_in(connection, closures, decision_id)
            open_row = self._row_in(connection, waiting, decision_id)
        waits = None
        if open_row is not None and is_missing_outcome(open_row):
            waits = "waiting for an outcome: report it by POST /v1/outcomes or Router.outcome(...)"
        try:
            return DecisionRecord(
                decision=decision_value(row),
                outcome=None if outcome is None else outcome_value(outcome),
                feedback=tuple(map(feedback_value, feedback_rows)),
                late=frozenset(row["id"] for row in feedback_rows if row["late"]),
                state=_state(learned, closed),
                reward=None if learned is None else reward_value(learned),
                learned_seq=None if learned is None else learned["seq"],
                reason=waits if closed is None else closed["reason"],
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


def _stored_decisions(connection: Connection, ids: Iterable[str]) -> dict[str, tuple[Decision | StoreError, str]]:
    listed = list(ids)
    if not listed:
        return {}
    rows = connection.execute(select(decisions).where(decisions.c.id.in_(listed))).mappings()
    return {row["id"]: (readable(row), row["body_hash"]) for row in rows}


def settle(stored: Decision | StoreError, stored_hash: str, *, request_hash: str) -> Decision | RagBanditError:
    """The reply to a repeated id: the stored decision, or Conflict if a different request made it."""
    if stored_hash == request_hash:
        return stored
    remedy = "use a new id for a new question"
    return Conflict("this decision id was used for another request", field="decision_id", remedy=remedy)


def readable(row: Row) -> Decision | StoreError:
    """The decision of a row. StoreError is returned, not raised, so that other rows can still be read."""
    try:
        return decision_value(row)
    except (ValueError, TypeError, KeyError) as error:
        return StoreError(f"the row of decision {row['id']} cannot be read: {error}", remedy="see: ragbandit verify")


def readable_outcome(row: Row) -> Outcome | StoreError:
    try:
        return outcome_value(row)
    except (ValueError, TypeError, KeyError) as error:
        fault = f"the outcome of decision {row['decision_id']} cannot be read: {error}"
        return StoreError(fault, remedy="see: ragbandit verify")
