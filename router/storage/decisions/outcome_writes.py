"""Stores a group of outcomes in one transaction. Its phases lock rows in this order; `add` calls them:

1. lock: rows of `decisions`, then of `units` (the task of a successor), `outcomes` and `waiting`.
2. insert: rows of `outcomes`, and flags of `waiting`. The outcome of a second run is not stored; its cost is counted.
3. add: each turn's outcome to the outcome of its decision (`turns.add_turns`).
4. queue: `jobs` for the judge, the check and people's labels. A successor, which answers instead of a failed decision,
   is stored last.
5. count: `WriteTransaction` adds to the counters when the block ends.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, Literal

from ragbandit.router.storage.access.reservations import settle_answers
from ragbandit.router.storage.decisions import tasks
from ragbandit.router.storage.decisions.continuing import continuation_key
from ragbandit.router.storage.decisions.decision_writes import DecisionWrites
from ragbandit.router.storage.decisions.feedback_writes import unknown_decision
from ragbandit.router.storage.decisions.turns import add_turns, earlier_turns, read_continues
from ragbandit.router.storage.jobs.scores import MAX_CHECKS, JudgeSample, add_jobs, add_labels, sample_outcomes
from ragbandit.router.storage.rows.outcome_rows import KNOWN_REASONS, outcome_row
from ragbandit.router.storage.rows.waiting import (
    LOCK_WAITING_WITH_FIRSTS,
    WITH_FIRSTS,
    drop_answer_jobs,
    flag_waiting,
)
from ragbandit.router.storage.sql.bulk_insert import Row, insert_rows, send
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Increments, WriteTransaction, send_stored_counts
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.tables import outcomes
from ragbandit.shared.errors import Conflict, RagBanditError
from ragbandit.shared.types import (
    ERASED,
    Decision,
    DecisionId,
    JudgeRequest,
    LabelRequest,
    Outcome,
    PolicyLabel,
    TaskTurn,
    TurnKind,
)

_DECISION_ID: Final = itemgetter("decision_id")
#: query for the columns of decisions that are needed to store their outcomes. Its locks let one writer at a time add an
#: outcome to a decision or to its turns
LOCK_DECISIONS: Final = (
    "SELECT id, run_by, tenant, api_key, request, session, turn_of, facts"  # noqa: S608 # names of ours
    f" FROM decisions WHERE id {WITH_FIRSTS} ORDER BY id FOR NO KEY UPDATE"
)
#: locks the outcomes of decisions for `add_turns`
LOCK_OUTCOMES: Final = (
    f"SELECT decision_id, body_hash FROM outcomes WHERE decision_id {WITH_FIRSTS}"  # noqa: S608 # names of ours
    " ORDER BY decision_id FOR UPDATE"
)
#: columns of an outcome that are NULL if texts are not stored; repeated outcomes are recognised by body_hash
_NO_TEXTS: Final[dict[str, Any]] = dict.fromkeys(("answer", "trace", "error", "sources", "reply"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Scoring:
    """How new outcomes are scored. judge: None if judging is off. check: whether `reward.check` scores them."""

    judge: JudgeSample | None
    check: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _Locked:
    """Values of the rows that the transaction has locked."""

    #: decision id -> its columns, with the facts `parsed`
    decided: Mapping[str, Row]
    #: decision id -> hash of its outcome's body, for stored outcomes and new ones
    hashes: dict[str, str]
    #: rows of `waiting`: decisions that a ledger has neither learned nor closed; see LOCK_WAITING_WITH_FIRSTS
    unlearned: Callable[[], Sequence[Row]]
    #: counters; {} if outcomes are not scored
    counts: Callable[[], Mapping[str, int]]


class OutcomeWrites:
    """Stores outcomes. Thread-safe."""

    def __init__(self, decisions: DecisionWrites, *, text: Literal["full", "none"]) -> None:
        """decisions: stores the decision that answers instead of a failed one. text: the setting log.text."""
        self._decisions, self.database, self.text = decisions, decisions.database, text
        self._kinds = decisions.turn_kinds

    def add(
        self, group: Sequence[Outcome], *, label: PolicyLabel, scoring: Scoring, successor: Decision | None
    ) -> list[bool | RagBanditError]:
        """See `DecisionStore.add_outcomes`. label: label of the ledger."""
        rows = list(map(outcome_row, group))
        if self.text != "full":
            rows = [row | _NO_TEXTS for row in rows]
        with WriteTransaction(self.database) as (connection, tally):
            locked = _lock(connection, rows, label=label, scoring=scoring, successor=successor)
            new = _insert(connection, group, rows=rows, locked=locked, tally=tally, kinds=self._kinds)
            if new:
                scorable = _add_turns_to_outcomes(connection, new, locked=locked)
                self._queue(connection, scorable, new=new, locked=locked, scoring=scoring, tally=tally)
                if successor is not None:
                    self._decisions.replace(connection, successor, label=label, tally=tally)
        inserted = set(map(id, map(itemgetter(0), new)))
        return [
            id(outcome) in inserted or _reply(outcome, row["body_hash"], locked=locked)
            for outcome, row in zip(group, rows, strict=True)
        ]

    def _queue(
        self,
        connection: Connection,
        scorable: Sequence[Outcome],
        *,
        new: Sequence[tuple[Outcome, Row]],
        locked: _Locked,
        scoring: Scoring,
        tally: Increments,
    ) -> None:
        """Insert jobs of the judge, the check and labels."""
        counts = locked.counts()
        if scoring.judge is not None:
            requests = {key: JudgeRequest.of(row["parsed"]) for key, row in locked.decided.items()}
            drawn = {key: request.asked for key, request in requests.items() if request is not None}
            shard = self.database.shard
            sample_outcomes(
                connection, scorable, counts=counts, sample=scoring.judge, drawn=drawn, tally=tally, shard=shard
            )
        if scoring.check:
            add_jobs(connection, scorable, kind="check", room=MAX_CHECKS - counts["check_due"], tally=tally)
        to_label = [outcome for outcome, _ in new if _is_asked_for_label(outcome, locked.decided[outcome.decision_id])]
        if to_label:
            add_labels(connection, to_label, tally=tally)


def _lock(
    connection: Connection, rows: Sequence[Row], *, label: PolicyLabel, scoring: Scoring, successor: Decision | None
) -> _Locked:
    ids = sorted(set(map(_DECISION_ID, rows)))
    decided = send(connection, LOCK_DECISIONS, ids, ids)
    if successor is not None and successor.turn_of is not None:
        tasks.lock_task(connection, successor)
    stored = send(connection, LOCK_OUTCOMES, ids, ids)
    unlearned = send(connection, LOCK_WAITING_WITH_FIRSTS, ids, ids)
    is_counted = scoring.judge is not None or scoring.check
    return _Locked(
        counts=send_stored_counts(connection, label=label) if is_counted else dict[str, int],
        decided={row["id"]: {**row, "parsed": object_or_empty(row["facts"])} for row in decided()},
        hashes={row["decision_id"]: row["body_hash"] for row in stored()},
        unlearned=unlearned,
    )


def _insert(
    connection: Connection,
    group: Sequence[Outcome],
    *,
    rows: Sequence[Row],
    locked: _Locked,
    tally: Increments,
    kinds: Collection[TurnKind],
) -> list[tuple[Outcome, Row]]:
    """Insert the outcomes that are new. Returns them with their rows. kinds: see `settle_answers`"""
    new = list[tuple[Outcome, Row]]()
    again = list[Outcome]()  # outcomes of second runs are not stored, but were paid for
    for outcome, row in zip(group, rows, strict=True):
        key, decision = outcome.decision_id, locked.decided.get(outcome.decision_id)
        if decision is None:
            continue
        if key not in locked.hashes and not _is_foreign(outcome, decision):
            blank = _blank(row) if ERASED in decision["parsed"] else {}
            call = continuation_key(outcome, request=decision["request"], session=decision["session"])
            new.append((outcome, {**row, **blank, "call": call}))
            locked.hashes[key] = row["body_hash"]
        elif decision["run_by"] == outcome.run_by == "worker" and row["body_hash"] != locked.hashes[key]:
            again.append(outcome)
    settle_answers(tally, again, rows=locked.decided, kinds=kinds, is_stored=False)
    if new:
        insert_rows(connection, outcomes, sorted(map(itemgetter(1), new), key=_DECISION_ID))
        keys = {outcome.decision_id for outcome, _ in new}
        flagged = [row for row in locked.unlearned() if row["decision_id"] in keys]
        flag_waiting(connection, flagged, tally=tally, has_outcome=True)
        by_workers = [key for key in keys if locked.decided[key]["run_by"] == "worker"]
        removed = drop_answer_jobs(connection, by_workers)
        reserved = {row["decision_id"]: row["reserved"] or 0 for row in removed()} if kinds else {}
        settle_answers(tally, map(itemgetter(0), new), rows=locked.decided, kinds=kinds, reserved=reserved)
    return new


def _add_turns_to_outcomes(
    connection: Connection, new: Sequence[tuple[Outcome, Row]], *, locked: _Locked
) -> list[Outcome]:
    """Add turns to the outcomes of their decisions. Returns outcomes to score: of new decisions and of ended loops."""
    scorable, of_tasks = list[Outcome](), list[str]()
    turns = list[tuple[Outcome, Row, DecisionId]]()
    for outcome, row in new:
        decision = locked.decided[outcome.decision_id]
        if decision["turn_of"] is not None:
            turns.append((outcome, {**row, "request": decision["request"]}, decision["turn_of"]))
            continue
        if TaskTurn.key in decision["parsed"]:
            of_tasks.append(outcome.decision_id)
        if read_continues(decision["request"]).failed is None:
            scorable.append(outcome)
    if of_tasks:
        turns += earlier_turns(connection, of_tasks, excluded={outcome.decision_id for outcome, _, _ in turns})
    if turns:
        scorable += add_turns(connection, turns, unlearned=set(map(_DECISION_ID, locked.unlearned())))
    return scorable


def _is_asked_for_label(outcome: Outcome, decision: Row) -> bool:
    label = LabelRequest.of(decision["parsed"])
    return bool(decision["turn_of"] is None and label is not None and label.asked and outcome.answer)


def _blank(outcome: Row) -> dict[str, Any]:
    """Columns of the outcome of an erased decision."""
    is_known = outcome["stop_reason"] in KNOWN_REASONS
    return _NO_TEXTS if is_known else {**_NO_TEXTS, "stop_reason": ERASED}


def _is_foreign(outcome: Outcome, decision: Row) -> bool:
    """Whether a caller reports an outcome of a decision that our workers run. decision: row with column `run_by`."""
    return bool(outcome.run_by == "caller" and decision["run_by"] == "worker")


def _reply(outcome: Outcome, body_hash: str, *, locked: _Locked) -> Literal[False] | RagBanditError:
    """The reply to an outcome that was not inserted: False for a duplicate or a worker's second run, else an error."""
    if outcome.decision_id not in locked.decided:
        return unknown_decision()
    if locked.hashes.get(outcome.decision_id) == body_hash:
        return False
    if _is_foreign(outcome, locked.decided[outcome.decision_id]):
        wait = "wait for it (GET /v1/decisions/{id}, or POST /v1/answer again), or cancel it"
        remedy = f"{wait}; report outcomes of decisions that /v1/route made"
        return Conflict("our workers run this decision and report its outcome", field="decision_id", remedy=remedy)
    if outcome.run_by == "worker":
        return False
    remedy = "the first outcome stays; route the question again to run it again"
    return Conflict("this decision has another outcome already", field="decision_id", remedy=remedy)
