"""Decision store: writes and reads decisions, outcomes and feedback.

Every write takes a group of items, so that concurrent requests share one transaction. Ids are the callers' idempotency
keys. A repeated id is a duplicate if the body is the same, and a conflict if it differs; neither changes a row.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from operator import attrgetter, itemgetter, not_
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

from sqlalchemy import RowMapping, Table, exists, select

from ragbandit.router.storage.access.reservations import Reservations
from ragbandit.router.storage.access.shared_secrets import DRAWS, shared_secret
from ragbandit.router.storage.access.spending import count_spending
from ragbandit.router.storage.decisions import feedback_writes, tasks
from ragbandit.router.storage.decisions.continuing import newest_tasks, stored_key, take_answers, task_key
from ragbandit.router.storage.decisions.label_queue import ids_to_label
from ragbandit.router.storage.decisions.turns import (
    CONVERSATION,
    TOOL_TURN,
    add_turns,
    earlier_turns,
    edge_of,
)
from ragbandit.router.storage.jobs import answers
from ragbandit.router.storage.jobs.scores import MAX_CHECKS, JudgeSample, add_jobs, add_labels, sample_outcomes
from ragbandit.router.storage.rows.conversion import (
    RATED_MESSAGE,
    Row,
    canonical,
    decision_row,
    decision_value,
    feedback_value,
    reward_value,
    without_messages,
)
from ragbandit.router.storage.rows.outcome_rows import KNOWN_REASONS, outcome_row, outcome_value
from ragbandit.router.storage.rows.waiting import (
    WITH_FIRSTS,
    flag_waiting,
    labels_in_use,
    lock_with_firsts,
    waiting_row,
    with_open_turn,
)
from ragbandit.router.storage.sql.bulk_insert import Rows, insert_rows, run, send, send_new
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Moves, ask_kept, counting, is_missing_outcome
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import object_or_empty
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
from ragbandit.shared.errors import Conflict, RagBanditError, StoreError
from ragbandit.shared.model_servers.failures import link_of
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
    """A decision or a turn. The ledger knows only decisions: feedback, state, reward and reason of a turn are those of
    the decision that it belongs to.
    """

    decision: Decision
    outcome: Outcome | None
    #: all feedback, oldest first
    feedback: tuple[Feedback, ...]
    #: ids of feedback that came after the decision was closed
    late: frozenset[str]
    state: DecisionState
    #: the reward, and its seq in the ledger; both None unless the decision was learned or defaulted
    reward: Reward | None
    learned_seq: int | None
    #: why the decision was closed or quarantined, or what the caller has to send before it can be learned
    reason: str | None
    #: time of the decision, of a turn that of its decision; and the end of its task while a ledger waits for it, None
    #: for one turn; seconds since 1970
    begun_at: float
    open_until: float | None = None


Made = TypeVar("Made", Decision, Outcome)


class _OutdatedError(Exception):
    """The decisions were made with an older revision of versions and kill switch."""


@dataclass(frozen=True, slots=True)
class _Places:
    """The ledgers and the turns of new decisions: functions that return what `send` has asked."""

    #: see `labels_in_use`
    labels: Callable[[], set[str]]
    #: by tenant, see `answers.read_turns`
    turns: Mapping[str, Rows]

    @classmethod
    def of(cls, connection: Connection, group: Iterable[Decision], *, label: PolicyLabel) -> "_Places":
        """Ask; call this after the decisions were inserted."""
        labels = labels_in_use(connection, label=label)
        tenants = {decision.query.tenant for decision in group if decision.run_by == "worker"}
        return cls(labels, answers.read_turns(connection, tenants))


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerTask:
    decision: Decision | StoreError
    answered: bool
    #: whether a caller asked to cancel the decision
    cancelled: bool


#: `field` of the error of decisions that were made with an older revision of versions and kill switch
OUTDATED: Final = "revision"
#: tables that have a decision's row of a ledger, by its state: learned, closed, waiting
_PLACES: Final = (updates, closures, waiting)
_REVISION: Final = "SELECT revision FROM policy_control WHERE base = ?"
_ID: Final = attrgetter("id")
_DECISION_ID: Final = itemgetter("decision_id")
#: query for the columns of decisions that are needed to store their outcomes. Its locks let one writer at a time add an
#: outcome to a decision, or to a turn of it
_DECISIONS_OF_OUTCOMES: Final = (
    "SELECT id, run_by, tenant, api_key, request, session, turn_of, facts"  # noqa: S608 # names of ours
    f" FROM decisions WHERE id {WITH_FIRSTS} ORDER BY id FOR NO KEY UPDATE"
)
#: locks the outcomes of decisions for `add_turns`
_OUTCOMES: Final = (
    f"SELECT decision_id, body_hash FROM outcomes WHERE decision_id {WITH_FIRSTS}"  # noqa: S608 # names of ours
    " ORDER BY decision_id FOR UPDATE"
)
#: columns of an outcome that are NULL if texts are not stored; repeated outcomes are recognised by body_hash
_NO_OUTCOME_TEXTS: Final[dict[str, Any]] = dict.fromkeys(("answer", "trace", "error", "sources", "reply"))


def _blank(outcome: Row) -> dict[str, Any]:
    """Columns of the outcome of an erased decision."""
    is_known = outcome["stop_reason"] in KNOWN_REASONS
    return _NO_OUTCOME_TEXTS if is_known else {**_NO_OUTCOME_TEXTS, "stop_reason": ERASED}


def _without_texts(row: Mapping[str, Any], *, context: frozenset[str]) -> dict[str, Any]:
    """Columns of a decision if texts are not stored. context: keys of the context that are still stored."""
    values = {key: value for key, value in json.loads(row["context"]).items() if key in context}
    kept = (TOOL_TURN, CONVERSATION, NAMED_ID, RATED_MESSAGE, PICK)
    request = without_messages(row["request"], keep=kept)
    return {"text": "", "context": canonical(values), "request": request, "continues": None}


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
        #: label of the configured policy, which versions refer to
        self._base = label
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
        revision: int | None = None,
    ) -> list[Decision | RagBanditError]:
        """Commit the decisions. Returns for each the decision, or an error; every returned decision is durable.

        A repeated id gets its stored decision, or Conflict if the request differs. A tool turn gets Conflict if another
        turn has brought the same tool results, and so does a first turn if another one has begun the task. A decision
        beyond a spent budget gets the budget's refusal. claims: see
        `answers.enqueue`.

        revision: of versions and kill switch. If the store has another one, nothing is stored, and every decision gets
            Conflict with the field OUTDATED
        """
        try:
            return self._add_decisions(group, claims=claims, revision=revision)
        except _OutdatedError:
            message, remedy = "the kill switch or a version of the policy has changed", "send the request again"
            return [Conflict(message, field=OUTDATED, remedy=remedy) for _ in group]

    def _add_decisions(
        self, group: Sequence[Decision], *, claims: Mapping[DecisionId, str], revision: int | None
    ) -> list[Decision | RagBanditError]:
        with counting(self.database) as (connection, moves):
            reserved = dict(zip(map(_ID, group), map(self.estimate, group), strict=True))
            over = self._reservations.admit(connection, group, estimates=reserved)
            refused, whole = dict[DecisionId, RagBanditError](over), group
            if over:
                group = [decision for decision in group if decision.id not in over]
            rows = list(map(self._row, group))
            inserted = send_new(connection, decisions, rows, key="id")
            places = _Places.of(connection, group, label=self.label)
            # Read after the waits for budgets and for the insertion, since the switch may be set meanwhile.
            stored_revision = None if revision is None else send(connection, _REVISION, self._base)
            if stored_revision is not None and _revision_in(stored_revision()) != revision:
                raise _OutdatedError
            are_new = inserted()
            new = list(compress(group, are_new))
            tasks.lock_tasks(connection, new)
            refused.update(take_answers(connection, new))
            refused.update(tasks.take_places(connection, [item for item in new if item.id not in refused]))
            accepted = [item for item in new if item.id not in refused]
            self._begin(connection, accepted, places=places, moves=moves, claims=claims, reserved=reserved)
            stored = {}
            if not all(are_new):
                stored = _stored_decisions(connection, map(_ID, compress(group, map(not_, are_new))))
        stopped = [item.turn_of for item in whole if item.id in over and item.turn_of is not None]
        if stopped:
            # In a transaction of its own, since the one above has locked other rows of `units` and `waiting` already.
            with counting(self.database) as (connection, moves):
                tasks.stop_tasks(connection, stopped, moves=moves, now=whole[0].made_at)
        hashes = dict(zip(map(id, group), map(itemgetter("body_hash"), rows), strict=True))
        results: list[Decision | RagBanditError] = []
        for decision in whole:
            if decision.id in stored and id(decision) in hashes:
                results.append(settle(*stored[decision.id], request_hash=hashes[id(decision)]))
            else:
                results.append(refused.get(decision.id, decision))
        return results

    def _row(self, decision: Decision) -> dict[str, Any]:
        row = decision_row(decision)
        return row if self.text == "full" else row | _without_texts(row, context=self.context)

    def _begin(
        self,
        connection: Connection,
        new: Sequence[Decision],
        *,
        places: "_Places",
        moves: Moves,
        in_front: bool = False,
        claims: Mapping[DecisionId, str] = MappingProxyType({}),
        reserved: Mapping[DecisionId, float] = MappingProxyType({}),
    ) -> None:
        """Let new decisions wait in ledgers and in the answer queue. in_front, claims, reserved: `answers.enqueue`."""
        if not new:
            return
        drawn = [decision for decision in new if decision.turn_of is None]
        moves.add("decided", len(drawn))
        in_use = sorted(places.labels())
        rows = [waiting_row(decision, label=label) for decision in drawn for label in in_use]
        insert_rows(connection, waiting, rows)
        moves.waiting(rows)
        tasks.keep_open(connection, new)
        for_workers = [decision for decision in new if decision.run_by == "worker"]
        if for_workers:
            answers.enqueue(
                connection, for_workers, turns=places.turns, in_front=in_front, claims=claims, reserved=reserved
            )

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
        group, successor = self._by_the_store(group), successor and self._by_the_store([successor])[0]
        rows = list(map(outcome_row, group))
        if self.text != "full":
            rows = [row | _NO_OUTCOME_TEXTS for row in rows]
        sample = None if self.judge is None else replace(self.judge, secret=self.secret)
        with counting(self.database) as (connection, moves):
            ids = sorted(set(map(_DECISION_ID, rows)))
            locked = send(connection, _DECISIONS_OF_OUTCOMES, ids, ids)
            if successor is not None and successor.turn_of is not None:
                tasks.lock_task(connection, successor)
            stored = send(connection, _OUTCOMES, ids, ids)
            waits = lock_with_firsts(connection, ids)
            counts = ask_kept(connection, label=self.label) if sample is not None or self.check else dict[str, int]
            decided = {row["id"]: {**row, "parsed": object_or_empty(row["facts"])} for row in locked()}
            hashes = {row["decision_id"]: row["body_hash"] for row in stored()}
            new: dict[str, tuple[Outcome, Row]] = {}
            again = list[Outcome]()  # second runs: they have no row, but were paid for
            for outcome, row in zip(group, rows, strict=True):
                key, decision = outcome.decision_id, decided.get(outcome.decision_id)
                if decision is None:
                    continue
                if key not in hashes and not feedback_writes.is_foreign(outcome, decision):
                    blank = _blank(row) if ERASED in decision["parsed"] else {}
                    call = stored_key(outcome, request=decision["request"], session=decision["session"])
                    new[key], hashes[key] = (outcome, {**row, **blank, "call": call}), row["body_hash"]
                elif decision["run_by"] == outcome.run_by == "worker" and row["body_hash"] != hashes[key]:
                    again.append(outcome)
            count_spending(moves, again, rows=decided, is_stored=False)
            if new:
                insert_rows(connection, outcomes, [new[key][1] for key in sorted(new)])
                flagged = [row for row in waits() if row["decision_id"] in new]
                flag_waiting(connection, flagged, moves=moves, has_outcome=True)
                self._follow_up(
                    connection,
                    [*new.values()],
                    decided=decided,
                    waits=set(map(_DECISION_ID, waits())),
                    sample=sample,
                    counts=counts(),
                    moves=moves,
                )
                if successor is not None:
                    insert_rows(connection, decisions, [self._row(successor)])
                    if successor.turn_of is not None:
                        tasks.move_task(connection, successor)
                    places = _Places.of(connection, [successor], label=self.label)
                    estimate = {successor.id: self.estimate(successor)}
                    self._begin(connection, [successor], places=places, moves=moves, in_front=True, reserved=estimate)
        return [
            outcome is new.get(outcome.decision_id, (None,))[0]
            or feedback_writes.outcome_reply(outcome, row["body_hash"], decided=decided, hashes=hashes)
            for outcome, row in zip(group, rows, strict=True)
        ]

    def _by_the_store(self, group: Sequence[Made]) -> Sequence[Made]:
        """The values with times of the store, if the clock of this host is ahead."""
        clock = self.database.clock
        return [replace(value, made_at=clock.corrected(value.made_at)) for value in group] if clock.ahead_s() else group

    def _follow_up(
        self,
        connection: Connection,
        inserted: Sequence[tuple[Outcome, Row]],
        *,
        decided: Mapping[str, Row],
        waits: Collection[str],
        sample: JudgeSample | None,
        counts: Mapping[str, int],
        moves: Moves,
    ) -> None:
        """Change the rows that depend on new outcomes: queues, spending, and outcomes with later tool turns.

        waits: decisions for which a ledger waits
        """
        answered, of_tasks = list[str](), list[str]()
        scored, to_label = list[Outcome](), list[Outcome]()
        turns = list[tuple[Outcome, Row, DecisionId]]()
        for outcome, row in inserted:
            decision = decided[outcome.decision_id]
            if decision["run_by"] == "worker":
                answered.append(outcome.decision_id)
            if decision["turn_of"] is not None:
                turns.append((outcome, {**row, "request": decision["request"]}, decision["turn_of"]))
                continue
            if TaskTurn.key in decision["parsed"]:
                of_tasks.append(outcome.decision_id)
            if not link_of(edge_of(decision["request"])):
                scored.append(outcome)
            label = LabelRequest.of(decision["parsed"])
            if label is not None and label.asked and outcome.answer:
                to_label.append(outcome)
        answers.remove(connection, answered)
        count_spending(moves, map(itemgetter(0), inserted), rows=decided)
        if of_tasks:
            turns += earlier_turns(connection, of_tasks, without={outcome.decision_id for outcome, _, _ in turns})
        if turns:
            scored += add_turns(connection, turns, waits=waits)
        self._await_scores(connection, scored, decided=decided, sample=sample, counts=counts, moves=moves)
        if to_label:
            add_labels(connection, to_label, moves=moves)

    def _await_scores(
        self,
        connection: Connection,
        scored: Sequence[Outcome],
        *,
        decided: Mapping[str, Row],
        sample: JudgeSample | None,
        counts: Mapping[str, int],
        moves: Moves,
    ) -> None:
        """Let outcomes wait for the judge and for the check."""
        if sample is not None:
            shard = self.database.shard
            requests = {key: JudgeRequest.of(row["parsed"]) for key, row in decided.items()}
            drawn_before = {key: request.asked for key, request in requests.items() if request is not None}
            sample_outcomes(
                connection, scored, counts=counts, sample=sample, drawn=drawn_before, moves=moves, shard=shard
            )
        if self.check:
            room = MAX_CHECKS - counts["check_due"]
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
        clock = self.database.clock
        if clock.ahead_s():
            group = [replace(item, received_at=clock.corrected(item.received_at)) for item in group]
        with counting(self.database) as (connection, moves):
            replies = feedback_writes.write_feedback(connection, group, moves=moves)
            if also is not None:
                also(connection, moves)
        return replies

    def decision_of_session(
        self, session: str, *, tenant: str, feedback_id: str | None = None, api_key: str | None = None
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
            newest = tasks.newest_decision(connection, session=session, tenant=tenant, api_key=api_key)
        return None if newest is None else (newest, None)

    def end_session(
        self, session: str, *, tenant: str, now: float, begun_until: float | None = None, api_key: str | None = None
    ) -> int:
        """End the open tasks of a session. Returns their number. begun_until: leave tasks that began later."""
        of_session = tasks.decisions_of_session(session, tenant=tenant, api_key=api_key)
        if begun_until is not None:
            of_session.append(decisions.c.made_at <= begun_until)
        begun = select(units.c.first).join(decisions, decisions.c.id == units.c.first)
        is_open = begun.where(*of_session, units.c.until > now).order_by(units.c.first)
        with self.database.write() as connection:
            return len(tasks.end_tasks(connection, connection.execute(is_open).scalars().all(), now=now))

    def stop_task(self, query: Query, *, now: float) -> None:
        """End the open task to which this query would belong, because a budget refuses the query."""
        key = task_key(query)
        task = None if key is None else newest_tasks(self.database, {key}).get(key)
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
            first = row["turn_of"] or decision_id
            query = select(feedback).where(feedback.c.decision_id == first)
            query = query.order_by(feedback.c.received_at, feedback.c.id)
            feedback_rows = connection.execute(query).mappings().all()
            learned, closed, open_row = (self._row_in(connection, table, first) for table in _PLACES)
            begun_at = row["made_at"]
            if row["turn_of"] is not None:
                query = select(decisions.c.made_at).where(decisions.c.id == first)
                begun_at = connection.execute(query).scalar() or begun_at
            has_open_turn = open_row is not None and bool(with_open_turn(connection, [decision_id]))
        waits = "waiting for a worker's answer to a later turn" if has_open_turn else None
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


def _revision_in(rows: Sequence[Row]) -> int:
    return int(rows[0]["revision"]) if rows else 0


def _by(key: Callable[[Row], str], rows: Sequence[Row]) -> dict[str, Row]:
    return dict(zip(map(key, rows), rows, strict=True))


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
        return StoreError(f"the row of decision {row['id']} cannot be read: {error}", remedy="see: `ragbandit verify`")


def readable_outcome(row: Row) -> Outcome | StoreError:
    try:
        return outcome_value(row)
    except (ValueError, TypeError, KeyError) as error:
        fault = f"the outcome of decision {row['decision_id']} cannot be read: {error}"
        return StoreError(fault, remedy="see: `ragbandit verify`")
