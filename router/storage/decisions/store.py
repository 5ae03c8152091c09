"""Decision store: decisions, outcomes and feedback, as HTTP, library and workers write and read them.

Every write takes a group, so that concurrent requests share one transaction. Ids are the callers' idempotency
keys: the same body again is a duplicate, another body a conflict, and neither changes a row.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from types import MappingProxyType
from typing import Any, Final, Literal

from sqlalchemy import Connection, RowMapping, Table, exists, or_, select

from ragbandit.router.storage import answer_queue
from ragbandit.router.storage.access.spending import DRAWS, count_spending, shared_secret
from ragbandit.router.storage.decisions.feedback_writes import (
    is_foreign,
    outcome_reply,
    unknown_decision,
    write_feedback,
)
from ragbandit.router.storage.decisions.label_queue import ids_to_label
from ragbandit.router.storage.decisions.tool_turns import (
    CONVERSATION,
    TOOL_TURN,
    add_turns,
    called,
    first_of,
    take_results,
)
from ragbandit.router.storage.rows.conversion import (
    LINKED,
    Row,
    canonical,
    decision_row,
    decision_value,
    feedback_value,
    reward_value,
    without_messages,
)
from ragbandit.router.storage.rows.outcome_rows import (
    MAX_CHECKS,
    JudgeSample,
    add_jobs,
    add_labels,
    outcome_row,
    outcome_value,
    sample_outcomes,
)
from ragbandit.router.storage.sql.bulk_insert import insert_new, insert_rows, run
from ragbandit.router.storage.sql.counters import Moves, counting, is_missing_outcome
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import (
    cancellations,
    closures,
    decisions,
    feedback,
    outcomes,
    updates,
    waiting,
)
from ragbandit.router.storage.sql.waiting import flag_waiting, labels_in_use, lock_waiting, waiting_row
from ragbandit.shared.errors import Conflict, RagBanditError, StoreError
from ragbandit.shared.types import (
    ERASED,
    LABEL_QUEUE,
    NAMED_ID,
    Decision,
    DecisionId,
    DecisionState,
    Feedback,
    Outcome,
    PolicyLabel,
    Receipt,
    Reward,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionRecord:
    """All that is stored about one decision."""

    decision: Decision
    outcome: Outcome | None
    #: in the order received
    feedback: tuple[Feedback, ...]
    late: frozenset[str]
    state: DecisionState
    #: what was learned, and where in the ledger; None unless learned or defaulted
    reward: Reward | None
    learned_seq: int | None
    #: why it was closed or quarantined; while it waits, what the caller has to send before it can be learned
    reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerTask:
    """A decision that a worker is to answer, and whether it still has to."""

    #: StoreError: its row cannot be read
    decision: Decision | StoreError
    answered: bool
    #: a caller wants it cancelled
    cancelled: bool


#: columns of the decision of an outcome; whether the label queue asks for it, and whether its texts were erased
_OWNED: Final = (
    "SELECT id, run_by, tenant, api_key, request, facts LIKE ? AS asked, facts LIKE ? AS is_erased"
    " FROM decisions WHERE id IN ?"
)
#: facts are canonical JSON, with their keys in order
_ASKED, _IS_ERASED = f'%"{LABEL_QUEUE}":{{"asked":true,%', f'%"{ERASED}":%'
#: values of the setting log.text
KeptText = Literal["full", "none"]
#: columns of an outcome where no texts are kept; whether a repetition is the same is known by its hash
_KEPT_OF_OUTCOME: Final[dict[str, Any]] = dict.fromkeys(("answer", "trace", "error", "sources", "reply"))


def _of_decision(outcome: Outcome, *, decision: Row) -> dict[str, Any]:
    """Columns of an outcome that depend on its decision: whose calls it has, and no texts after an erasure."""
    blank = _KEPT_OF_OUTCOME if decision["is_erased"] else {}
    return {**blank, "call": called(outcome, request=decision["request"])}


def _kept_of_decision(row: Mapping[str, Any], *, context: frozenset[str]) -> dict[str, Any]:
    """Columns of a decision where no texts are kept.

    context: the keys that are declared, and kept: what a policy has learned from must be there to be learned again.
    """
    kept: dict[str, Any] = {}
    if context and row["context"] != "{}":
        kept = {key: value for key, value in json.loads(row["context"]).items() if key in context}
    request = without_messages(row["request"], keep=(TOOL_TURN, CONVERSATION, NAMED_ID))
    return {"text": "", "context": canonical(kept) if kept else "{}", "request": request}


class DecisionStore:
    """Reads and writes decisions, outcomes and feedback. One per process; safe to use from several threads."""

    def __init__(
        self,
        database: Database,
        *,
        label: PolicyLabel,
        text: KeptText = "full",
        context: frozenset[str] = frozenset(),
        judge: JudgeSample | None = None,
        check: bool = False,
    ) -> None:
        """label: ledger of the decisions made here. text: the setting log.text. context: keys of contexts kept in any
        case. judge: which outcomes wait for the judge; None if none do. check: whether they wait for a check.
        """
        self.database, self.label = database, label
        self.text, self.context, self.judge, self.check = text, context, judge, check

    @cached_property
    def secret(self) -> bytes:
        """The secret of the store's draws. Raises StoreError."""
        return shared_secret(self.database, name=DRAWS, now=time.time())

    def add_decisions(
        self, group: Sequence[Decision], *, claims: Mapping[DecisionId, str] = MappingProxyType({})
    ) -> list[Decision | RagBanditError]:
        """Commit the decisions; for an id that is taken, the decision that stands, or a Conflict.

        claims: decision -> key of the process that runs it at once: it is claimed in the same transaction.

        A Conflict is also the reply to a tool turn whose results another decision has. When this returns, every
        decision in the result is durable.
        """
        rows = [self._kept_row(decision) for decision in group]
        with counting(self.database) as (connection, moves):
            new = insert_new(connection, decisions, rows, key="id")
            fresh = list(compress(group, new))
            lost = take_results(connection, fresh)
            self._begin(connection, [each for each in fresh if each.id not in lost], moves=moves, claims=claims)
            taken = [row["id"] for row, is_new in zip(rows, new, strict=True) if not is_new]
            standing = _standing(connection, taken)
        return [
            settle(*standing[each.id], request_hash=row["body_hash"])
            if each.id in standing
            else lost.get(each.id, each)
            for each, row in zip(group, rows, strict=True)
        ]

    def _kept_row(self, decision: Decision) -> dict[str, Any]:
        """The row of a decision, without texts if none are kept."""
        row = decision_row(decision)
        return row if self.text == "full" else row | _kept_of_decision(row, context=self.context)

    def _begin(
        self,
        connection: Connection,
        new: Sequence[Decision],
        *,
        moves: Moves,
        in_front: bool = False,
        claims: Mapping[DecisionId, str] = MappingProxyType({}),
    ) -> None:
        """Let decisions wait to be learned and, if workers run them, to be answered, in the transaction that stores
        them. in_front, claims: see `answer_queue.enqueue`.
        """
        moves.add("decided", len(new))
        if new:
            labels = labels_in_use(connection, label=self.label)
            rooms = [waiting_row(each, label=label) for each in new for label in sorted(labels)]
            insert_rows(connection, waiting, rooms)
            moves.waiting(rooms)
            answered_here = [each for each in new if each.run_by == "worker"]
            answer_queue.enqueue(connection, answered_here, in_front=in_front, claims=claims)

    def decisions_by_id(self, ids: Iterable[DecisionId]) -> dict[str, tuple[Decision | StoreError, str]]:
        """The stored decisions among these ids, with the hashes of their requests; StoreError for an unreadable row."""
        with self.database.read() as connection:
            return _standing(connection, ids)

    def tenants_by_id(self, ids: Iterable[str]) -> dict[str, str]:
        """Whose decisions these are; ids that no decision has are left out."""
        with self.database.read() as connection:
            rows = run(connection, "SELECT id, tenant FROM decisions WHERE id IN ?", list(ids))
        return {row["id"]: row["tenant"] for row in rows}

    def answer_task(self, decision_id: DecisionId) -> AnswerTask | None:
        """The facts that a worker needs before it answers this decision, in one query; None for an unknown one."""
        query = select(
            decisions,
            exists().where(outcomes.c.decision_id == decisions.c.id).label("answered"),
            exists().where(cancellations.c.decision_id == decisions.c.id).label("cancelled"),
        ).where(decisions.c.id == decision_id)
        with self.database.read() as connection:
            row = connection.execute(query).mappings().first()
        if row is None:
            return None
        return AnswerTask(decision=readable(row), answered=row["answered"], cancelled=row["cancelled"])

    def add_outcome(self, outcome: Outcome, *, successor: Decision | None = None) -> bool:
        """`add_outcomes` for one. Raises NotFound, Conflict.

        successor: the decision that answers in place of the failed one. It is stored, and waits before all others, if
        the outcome is new, in the same transaction.
        """
        (result,) = self.add_outcomes([outcome], successor=successor)
        if isinstance(result, RagBanditError):
            raise result
        return result

    def add_outcomes(
        self, group: Sequence[Outcome], *, successor: Decision | None = None
    ) -> list[bool | RagBanditError]:
        """Keep the outcomes; per item True if it is new, False if it is kept already, or an error. Durable on return.

        False also for another outcome of a worker, which ran the arm a second time: the first one stands. NotFound for
        an unknown decision; Conflict if the caller's stack reports another outcome than before, or reports on a
        decision that our workers run. successor: see `add_outcome`.
        """
        rows = [outcome_row(outcome) for outcome in group]
        if self.text != "full":
            rows = [row | _KEPT_OF_OUTCOME for row in rows]
        secret = b"" if self.judge is None else self.secret
        with counting(self.database) as (connection, moves):
            named = sorted({row["decision_id"] for row in rows})
            owned = {row["id"]: row for row in run(connection, _OWNED, _ASKED, _IS_ERASED, named)}
            known = {key: row["run_by"] for key, row in owned.items()}
            accepted = [
                (each, row | _of_decision(each, decision=owned[each.decision_id]))
                for each, row in zip(group, rows, strict=True)
                if each.decision_id in known and not is_foreign(each, known)
            ]
            new = insert_new(connection, outcomes, [row for _, row in accepted], key="decision_id")
            inserted = {each.decision_id: (each, row) for each, row in compress(accepted, new)}
            fresh = {key: each for key, (each, _) in inserted.items()}
            if fresh:
                open_rows = lock_waiting(connection, {*fresh})
                flag_waiting(connection, open_rows.values(), moves=moves, has_outcome=True)
                answer_queue.remove(connection, [key for key in fresh if known[key] == "worker"])
                count_spending(moves, fresh.values(), rows=owned)
                turns = {key: first for key in fresh if (first := first_of(owned[key]["request"])) is not None}
                linked = {key for key in fresh if LINKED in (owned[key]["request"] or "")}
                scored = [one for key, one in fresh.items() if key not in turns and key not in linked]
                scored += add_turns(connection, [(*inserted[key], first) for key, first in turns.items()])
                if self.judge is not None:
                    sample, shard = replace(self.judge, secret=secret), self.database.shard
                    sample_outcomes(connection, scored, label=self.label, sample=sample, moves=moves, shard=shard)
                labelled = [
                    one for key, one in fresh.items() if owned[key]["asked"] and one.answer and key not in turns
                ]
                add_labels(connection, labelled, moves=moves)
                if self.check:
                    add_jobs(connection, scored, kind="check", room=MAX_CHECKS, moves=moves)
                if successor is not None:
                    insert_rows(connection, decisions, [self._kept_row(successor)])
                    self._begin(connection, [successor], moves=moves, in_front=True)
            standing: dict[str, str] = {key: row["body_hash"] for key, (_, row) in inserted.items()}
            if repeated := known.keys() - fresh.keys():
                hashes = select(outcomes.c.decision_id, outcomes.c.body_hash)
                rows_before = connection.execute(hashes.where(outcomes.c.decision_id.in_(repeated)))
                standing |= {row.decision_id: row.body_hash for row in rows_before}
        return [
            each is fresh.get(each.decision_id) or outcome_reply(each, row["body_hash"], known=known, standing=standing)
            for each, row in zip(group, rows, strict=True)
        ]

    def has_outcome(self, outcome: Outcome) -> bool:
        """Whether this very outcome is stored already."""
        standing = select(outcomes.c.body_hash).where(outcomes.c.decision_id == outcome.decision_id)
        with self.database.read() as connection:
            return bool(connection.execute(standing).scalar() == outcome_row(outcome)["body_hash"])

    def with_outcome(self, ids: Iterable[str]) -> list[str]:
        """The ids among these whose decisions have an outcome."""
        with self.database.read() as connection:
            there = select(outcomes.c.decision_id).where(outcomes.c.decision_id.in_(list(ids)))
            return list(connection.execute(there).scalars())

    def outcomes_by_id(self, ids: Iterable[str]) -> dict[str, Outcome | StoreError]:
        """The stored outcomes by decision id; StoreError for an unreadable row."""
        with self.database.read() as connection:
            rows = connection.execute(select(outcomes).where(outcomes.c.decision_id.in_(list(ids)))).mappings()
            return {row["decision_id"]: readable_outcome(row) for row in rows}

    def add_feedback(
        self, group: Sequence[Feedback], *, also: Callable[[Connection, Moves], object] | None = None
    ) -> list[Receipt | RagBanditError]:
        """Keep the feedback; per item a Receipt, NotFound or Conflict. Durable when this returns.

        It is late if the ledger that made its decision has closed it. also: makes further changes in the transaction;
        if it raises, nothing is kept.
        """
        with counting(self.database) as (connection, moves):
            replies = write_feedback(connection, group, moves=moves)
            if also is not None:
                also(connection, moves)
        return replies

    def imported_feedback(self, group: Sequence[Feedback]) -> list[Feedback]:
        """What files brought in before on the decisions of this group, or under its ids, in the order received."""
        imported = [feedback.c.id.like(like) for like in ("import-%", "%~%")]
        from_files = or_(*imported, feedback.c.rater.like("import:%"), feedback.c.id.in_([one.id for one in group]))
        query = select(feedback).where(feedback.c.decision_id.in_({one.decision_id for one in group}), from_files)
        query = query.where(feedback.c.api_key.is_(None)).order_by(feedback.c.received_at, feedback.c.id)
        with self.database.read() as connection:
            return [feedback_value(row) for row in connection.execute(query).mappings()]

    def label_queue(self, *, tenant: str | None, limit: int, skip: int = 0) -> list[DecisionRecord]:
        """Answers that wait for a person's label, of a tenant (None: of all, in turn), the newest first."""
        with self.database.read() as connection:
            ids = ids_to_label(connection, tenant=tenant, limit=limit, skip=skip)
        return [self.record(DecisionId(key)) for key in ids]

    def record(self, decision_id: DecisionId) -> DecisionRecord:
        """Everything known of one decision. Raises NotFound, or StoreError if a row of it cannot be read."""
        with self.database.read() as connection:
            row = _by_id(connection, [decision_id]).get(decision_id)
            if row is None:
                raise unknown_decision()
            ended = select(outcomes).where(outcomes.c.decision_id == decision_id)
            outcome = connection.execute(ended).mappings().first()
            about = select(feedback).where(feedback.c.decision_id == decision_id)
            notes = connection.execute(about.order_by(feedback.c.received_at, feedback.c.id)).mappings().all()
            learned = self._one(connection, updates, decision_id)
            closed = self._one(connection, closures, decision_id)
            open_row = self._one(connection, waiting, decision_id)
        waits = _WAITS_FOR_OUTCOME if open_row is not None and is_missing_outcome(open_row) else None
        try:
            return DecisionRecord(
                decision=decision_value(row),
                outcome=None if outcome is None else outcome_value(outcome),
                feedback=tuple(feedback_value(note) for note in notes),
                late=frozenset(note["id"] for note in notes if note["late"]),
                state=_state(learned, closed),
                reward=None if learned is None else reward_value(learned),
                learned_seq=None if learned is None else learned["seq"],
                reason=waits if closed is None else closed["reason"],
            )
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(f"the rows of decision {row['id']} cannot be read: {error}") from error

    def _one(self, connection: Connection, table: Table, decision_id: str) -> RowMapping | None:
        query = select(table).where(table.c.policy == self.label, table.c.decision_id == decision_id)
        return connection.execute(query).mappings().first()


_WAITS_FOR_OUTCOME: Final = "waiting for an outcome: report it by POST /v1/outcomes or Router.outcome(...)"


def _state(learned: Row | None, closed: Row | None) -> DecisionState:
    """The state of a decision, by its rows in `updates` and `closures`."""
    if learned is not None:
        return "learned" if learned["source"] == "explicit" else "defaulted"
    if closed is not None:
        return "quarantined" if closed["state"] == "quarantined" else "closed"
    return "waiting"


def _by_id(connection: Connection, ids: Iterable[str]) -> dict[str, RowMapping]:
    if not (wanted := list(ids)):
        return {}
    rows = connection.execute(select(decisions).where(decisions.c.id.in_(wanted))).mappings()
    return {row["id"]: row for row in rows}


def _standing(connection: Connection, ids: Iterable[str]) -> dict[str, tuple[Decision | StoreError, str]]:
    return {key: (readable(row), row["body_hash"]) for key, row in _by_id(connection, ids).items()}


def settle(standing: Decision | StoreError, standing_hash: str, *, request_hash: str) -> Decision | RagBanditError:
    """The decision that stands under an id, or Conflict if another request made it."""
    if standing_hash == request_hash:
        return standing
    return Conflict(
        "this decision id was used for another request", field="decision_id", remedy="use a new id for a new question"
    )


def readable(row: Row) -> Decision | StoreError:
    """The decision of a row, or what is wrong with the row: one such row must not spoil its neighbours."""
    try:
        return decision_value(row)
    except (ValueError, TypeError, KeyError) as error:
        return StoreError(f"the row of decision {row['id']} cannot be read: {error}", remedy="see: ragbandit verify")


def readable_outcome(row: Row) -> Outcome | StoreError:
    """The same of an outcome."""
    try:
        return outcome_value(row)
    except (ValueError, TypeError, KeyError) as error:
        fault = f"the outcome of decision {row['decision_id']} cannot be read: {error}"
        return StoreError(fault, remedy="see: ragbandit verify")
