"""Ledger transfer: a ledger's rows out of the store, and a log's rows into one.

An import appends each row's decision and update to the ledger. A decision that is new to the store also gets its reward
as one feedback of kind "reward", so that later ledgers can learn it (no feedback for a default reward), and an outcome
without an answer, so that no worker runs the arm again. It is closed for the other ledgers of the store.
"""

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, islice
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, and_, delete, insert, select

from ragbandit.router.learning.audit.checks import draw_fault, seed_fault
from ragbandit.router.learning.examples import made_update
from ragbandit.router.offline.estimation import Tally
from ragbandit.router.offline.logs import Logged
from ragbandit.router.serving.checks.questions import ID_PATTERN
from ragbandit.router.storage.access.spending import DRAWS, known_secret
from ragbandit.router.storage.decisions.store import readable
from ragbandit.router.storage.ledgers.inheritance import inherit, register_policy
from ragbandit.router.storage.ledgers.ledger import Ledger, rows_of_ledger
from ragbandit.router.storage.rows.conversion import (
    Row,
    canonical,
    decision_row,
    feedback_row,
    update_row,
    update_value,
)
from ragbandit.router.storage.rows.outcome_rows import outcome_row
from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.counters import Moves
from ragbandit.router.storage.sql.tables import closures, decisions, feedback, outcomes, updates, waiting
from ragbandit.router.storage.sql.waiting import labels_in_use, lock_rows
from ragbandit.shared.child_process import lease_holder
from ragbandit.shared.errors import Conflict, NotReady, StoreError
from ragbandit.shared.types import IMPORTED, SEEDED_ELSEWHERE, Cost, DecisionId, Feedback, FeedbackId, Json, Outcome

T = TypeVar("T")

#: rows per transaction
PAGE = 500
#: columns of a decision and of an update that are the same whenever a row is made
_DRAWN, _OF_ANSWER = ("arm", "arms", "pmf"), ("quality", "cost")
#: in the facts of a decision that has another id than its row in the log
LOGGED_ID: Final = "logged_id"
#: how the version of a snapshot ends: its last update, and the first digits of its sha256
_VERSION = re.compile(r"-\d+-[0-9a-f]{12}$")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportCounts(Tally):
    """Counts of imported rows."""

    #: rows that are in the ledger now and were not before
    added: int = 0
    #: rows that it had already
    known: int = 0
    #: added rows whose draws do not follow from their seeds
    made_elsewhere: int = 0


def ledger_rows(
    ledger: Ledger, *, since: float | None = None, before: float | None = None, upto: int | None = None
) -> Iterator[Logged]:
    """The ledger's rows in order, a page at a time, of decisions made in [since, before).

    upto: the last seq. Raises StoreError at a row that cannot be read.
    """
    rows = rows_of_ledger(ledger.database, label=ledger.label, after=0, upto=upto, page=PAGE)
    for page in _pages(rows):
        late = late_decisions(ledger, page[0][0]["seq"], page[-1][0]["seq"])
        for row, decided in page:
            decision = readable(decided)
            if isinstance(decision, StoreError):
                raise decision
            update = update_value(row, decision=decision)
            if SEEDED_ELSEWHERE in decision.facts:  # the importing store determines this itself
                own = {name: value for name, value in decision.facts.items() if name != SEEDED_ELSEWHERE}
                decision = replace(decision, facts=own)
            if (since is None or decision.made_at >= since) and (before is None or decision.made_at < before):
                yield Logged(
                    decision=decision,
                    reward=update.reward,
                    seq=update.seq,
                    feedback_ids=update.feedback_ids,
                    feedback_at=row["feedback_at"],
                    learned_at=update.made_at,
                    late=decision.id in late,
                    decided=update.decided,
                    restarts=update.restarts,
                )


def late_decisions(ledger: Ledger, first: int, last: int) -> set[str]:
    """Decisions among the updates first to last that more feedback came for after they were learned."""
    span = updates.c.policy == ledger.label, updates.c.seq.between(first, last)
    with ledger.database.read() as connection:
        notes: list[Row] = list(
            connection.execute(
                select(feedback.c.id, feedback.c.decision_id, updates.c.feedback_ids)
                .join_from(updates, feedback, feedback.c.decision_id == updates.c.decision_id)
                .where(*span, feedback.c.late)
            ).mappings()
        )
        marks: list[Row] = list(
            connection.execute(
                select(outcomes.c.decision_id, outcomes.c.made_by)
                .join_from(updates, outcomes, outcomes.c.decision_id == updates.c.decision_id)
                .where(*span, outcomes.c.stop_reason == IMPORTED)
            ).mappings()
        )
    late = {row["decision_id"] for row in notes if _is_more(row)}
    return late | {row["decision_id"] for row in marks if json.loads(row["made_by"]).get("late")}


def _is_more(note: Row) -> bool:
    """Whether feedback is none of those that made the update."""
    return note["id"] not in json.loads(note["feedback_ids"]) and note["id"] != _feedback_id(note["decision_id"])


def take_in(
    ledger: Ledger,
    rows: Callable[[], Iterable[Logged]],
    *,
    origin: str,
    source: str = "",
    lease_s: float = 10.0,
    patience_s: float = 30.0,
    remade: bool = False,
    clock: Callable[[], float] = time.time,
    progress: Callable[[ImportCounts], None] = lambda _taken: None,
) -> ImportCounts:
    """Append the rows to the ledger in their order, a page per transaction. Known rows add nothing.

    rows: called twice, as all rows are checked before the first is written.
    origin: the format, kept in the facts of rows that were made elsewhere. source: the file, for messages.
    remade: times, features and weight of cost may differ from known rows; arm, quality and cost must be equal.
    patience_s: how long to wait for the ledger's learner. progress: called after every page with the counts.
    Raises NotReady if the learner keeps the ledger, and Conflict with the line if an id has other contents.
    """
    holder = lease_holder("import")
    known = known_secret(ledger.database, name=DRAWS)
    secret = None if known is None else known.value
    common: dict[str, Any] = {"ledger": ledger, "source": source, "origin": origin, "remade": remade}
    registered = ledger.registered()
    encoder = "" if registered is None else str(registered["encoder_hash"])
    for page in _pages(iter(rows())):
        with ledger.database.read() as connection:
            _ImportPage.of(page, connection=connection, secret=secret, **common).check(encoder)
    taken = ImportCounts()

    def hold() -> None:
        if not ledger.acquire(holder=holder, lease_s=lease_s, patience_s=patience_s):
            raise NotReady(
                f"a learner holds the ledger {ledger.label!r}",
                field="label",
                remedy="stop that learner and try again, or import into another ledger with --label",
            )

    try:
        for number, page in enumerate(_pages(iter(rows()))):
            if number == 0:  # not before there is something to take in: all that is decided waits in a ledger
                encoder = _register(ledger, now=clock())
            hold()
            # A decision of the log may be here already.
            while inherit(ledger, holder=holder) != "done":
                hold()
            with ledger.writing(holder=holder) as (connection, moves, end):
                work = _ImportPage.of(page, connection=connection, secret=secret, **common)
                added = work.write(moves, end=end, now=clock())
            elsewhere = sum(IMPORTED in row.decision.facts for row in added)
            more = ImportCounts(added=len(added), known=len(page) - len(added), made_elsewhere=elsewhere)
            taken = taken.merged(more)
            progress(taken)
    finally:
        ledger.release(holder=holder)
    return taken


def _pages(rows: Iterator[T]) -> Iterator[list[T]]:
    while page := list(islice(rows, PAGE)):
        yield page


def _register(ledger: Ledger, *, now: float) -> str:
    """Make the ledger known, so that every decision in the store has its place in it; the encoder it learns from.

    What a router has registered stands. "" where any encoder will do.
    """
    if ledger.registered() is None:
        with contextlib.suppress(Conflict):  # a router has opened it just now
            register_policy(
                ledger.database, label=ledger.label, algorithm=IMPORTED, params="{}", encoder_hash="", now=now
            )
    registered = ledger.registered()
    assert registered is not None
    return str(registered["encoder_hash"])


def _marked(row: Logged, *, origin: str, secret: bytes | None) -> Logged:
    """The row, with its origin in its facts if its draw cannot be repeated from its seed and snapshot.

    A draw seeded with the secret of another store is marked SEEDED_ELSEWHERE.
    """
    decision = row.decision
    ours = decision.version.startswith(f"{decision.policy}-") and _VERSION.search(decision.version)
    if IMPORTED in decision.facts or (ours and draw_fault(decision) is None):
        elsewhere = IMPORTED not in decision.facts and seed_fault(decision, secret=secret) is not None
        mark: dict[str, Json] = {SEEDED_ELSEWHERE: True} if elsewhere else {}
    else:
        mark = {IMPORTED: origin}
    return replace(row, decision=replace(decision, facts={**decision.facts, **mark})) if mark else row


def _renamed(rows: Sequence[Logged], *, ledger: Ledger, connection: Connection) -> list[Logged]:
    """The rows; one whose id is none of the service's, or stands for another decision, gets an id of this ledger's.

    Systems that number their rows have the same ids. Rows that the ledger learned under their own ids keep them.
    """
    ids = [row.decision.id for row in rows]
    here = updates.c.policy == ledger.label, updates.c.decision_id.in_(ids)
    learned = set(connection.execute(select(updates.c.decision_id).where(*here)).scalars())
    wanted = select(decisions).where(decisions.c.id.in_(set(ids) - learned))
    stored = {row["id"]: row for row in connection.execute(wanted).mappings()}
    renamed = []
    for row in rows:
        key, standing = row.decision.id, stored.get(row.decision.id)
        other = standing is not None and any(
            standing[name] != value for name, value in decision_row(row.decision).items()
        )
        if key not in learned and IMPORTED in row.decision.facts and (other or not ID_PATTERN.fullmatch(key)):
            text = canonical([ledger.label, key])
            new = DecisionId(f"{IMPORTED}-{hashlib.sha256(text.encode()).hexdigest()[:40]}")
            decision = replace(row.decision, id=new, query=replace(row.decision.query, id=new))
            row = replace(row, decision=replace(decision, facts={**decision.facts, LOGGED_ID: key}))
        renamed.append(row)
    return renamed


def _feedback_id(decision_id: str) -> FeedbackId:
    """The id of the feedback that stands for a logged reward."""
    return FeedbackId(f"{IMPORTED}-{hashlib.sha256(decision_id.encode()).hexdigest()[:40]}")


@dataclass(frozen=True, kw_only=True, slots=True)
class _ImportPage:
    """Rows to be written in one transaction."""

    ledger: Ledger
    connection: Connection
    rows: Sequence[Logged]
    #: the rows of `decisions`, by id
    decision_rows: Mapping[DecisionId, Mapping[str, Any]]
    source: str
    origin: str
    remade: bool

    @classmethod
    def of(
        cls, page: Sequence[Logged], *, ledger: Ledger, connection: Connection, secret: bytes | None, **about: Any
    ) -> "_ImportPage":
        """The rows of a log, marked, under ids that stand for nothing else in the store."""
        rows = [_marked(row, origin=about["origin"], secret=secret) for row in page]
        rows = rows if about["remade"] else _renamed(rows, ledger=ledger, connection=connection)
        decision_rows = {row.decision.id: decision_row(row.decision) for row in rows}
        return cls(ledger=ledger, connection=connection, rows=rows, decision_rows=decision_rows, **about)

    def check(self, encoder: str) -> None:
        """Raises Conflict for a row that says something else than the store, or that `encoder` did not encode."""
        self._check_encoder(encoder)
        self._check_standing(new=())
        self._check_learned()

    def write(self, moves: Moves, *, end: int, now: float) -> list[Logged]:
        """Write what the ledger does not have, from seq end + 1; the rows written. Raises Conflict."""
        inserted = insert_new(self.connection, decisions, list(self.decision_rows.values()), key="id")
        new: set[str] = set(compress(self.decision_rows, inserted))
        moves.add("decided", len(new))
        self._check_standing(new=new)
        known = self._check_learned()
        added = [row for row in self.rows if row.decision.id not in known]
        self._out_of_waiting([row for row in added if row.decision.id not in new], moves=moves)
        if added:
            values = [self._row(row, seq=end + number) for number, row in enumerate(added, start=1)]
            self.connection.execute(insert(updates), values)
            moves.updates(values)
        self._furnish([row for row in added if row.decision.id in new], moves=moves, now=now)
        return added

    def _check_encoder(self, encoder: str) -> None:
        """Raises Conflict for features that the ledger's policy could not read."""
        for row in self.rows if encoder else ():
            if row.decision.encoder_hash != encoder:
                raise self._conflict(
                    row,
                    "encoder_hash",
                    f"the ledger learns from encoder {encoder[:12]}, the row has {row.decision.encoder_hash[:12]!r}",
                )

    def _check_standing(self, *, new: Collection[str]) -> None:
        """A decision that the store has already must be this one, in every field; if remade, in what was drawn."""
        rows = {row.decision.id: row for row in self.rows if row.decision.id not in new}
        standing = select(decisions).where(decisions.c.id.in_(rows))
        for stored in self.connection.execute(standing).mappings().all() if rows else ():
            row = rows[stored["id"]]
            other = [name for name, value in self.decision_rows[row.decision.id].items() if stored[name] != value]
            other = [name for name in other if not self.remade or name in _DRAWN]
            if other:
                name = next((name for name in other if name != "body_hash"), other[0])
                raise self._conflict(row, name, f"the store has another decision {row.decision.id!r}")

    def _check_learned(self) -> set[str]:
        """Ids of the rows that the ledger learned. Raises Conflict if it learned other values from one."""
        ids = [row.decision.id for row in self.rows]
        here = updates.c.policy == self.ledger.label, updates.c.decision_id.in_(ids)
        learned = self.connection.execute(select(updates).where(*here)).mappings()
        by_id = {row.decision.id: row for row in self.rows}
        known: set[str] = set()
        for stored in learned:
            row = by_id[stored["decision_id"]]
            values = self._row(row, seq=stored["seq"])
            if self.remade:  # with another preset, this ledger learned only the value
                values = {name: values[name] for name in _OF_ANSWER if stored["preset"] == values["preset"]}
            own = "seq", "restarts", "decided"  # set by the ledger; files do not have them
            other = [name for name, value in values.items() if name not in own and stored[name] != value]
            if other:
                message = (
                    f"is {values[other[0]]!r}, but the ledger learned {stored[other[0]]!r} from {row.decision.id!r}"
                )
                raise self._conflict(row, other[0], message)
            known.add(row.decision.id)
        return known

    def _out_of_waiting(self, rows: Sequence[Logged], *, moves: Moves) -> None:
        """Decisions of the store that this ledger has not done with yet."""
        if not rows:
            return
        ids = {row.decision.id for row in rows}
        here = and_(waiting.c.policy == self.ledger.label, waiting.c.decision_id.in_(ids))
        open_rows = lock_rows(self.connection, here)
        there = {row["decision_id"] for row in open_rows}
        for row in rows:
            if row.decision.id not in there:
                raise self._conflict(row, "id", f"this ledger has closed {row.decision.id!r} without learning it")
        self.connection.execute(delete(waiting).where(here))
        moves.waiting(open_rows, sign=-1)

    def _row(self, row: Logged, *, seq: int) -> dict[str, Any]:
        """The row of `updates`."""
        decision, label = row.decision, self.ledger.label
        # By default what every reading of the file gives, so that the same file again is the same rows.
        learned_at = decision.made_at if row.learned_at is None else row.learned_at
        ids = row.feedback_ids
        update = made_update(decision, row.reward, label=label, seq=seq, now=learned_at, feedback_ids=ids)
        return update_row(update, feedback_at=row.feedback_at)

    def _furnish(self, rows: Sequence[Logged], *, moves: Moves, now: float) -> None:
        """Outcomes and marks of decisions that are new to the store."""
        if not rows:
            return
        labels = labels_in_use(self.connection, label=self.ledger.label) - {self.ledger.label}
        reason = f"imported into the ledger {self.ledger.label!r}"
        closed = [
            {
                "policy": label,
                "decision_id": row.decision.id,
                "state": "closed",
                "field": None,
                "reason": reason,
                "made_at": now,
            }
            for label in sorted(labels)
            for row in rows
        ]
        if closed:
            self.connection.execute(insert(closures), closed)
            moves.closures(closed)
        self.connection.execute(insert(outcomes), [outcome_row(self._outcome(row)) for row in rows])
        judged = [feedback_row(_feedback(row)) for row in rows if row.reward.source == "explicit"]
        moves.add("feedback", sum(insert_new(self.connection, feedback, judged, key="id")))

    def _outcome(self, row: Logged) -> Outcome:
        return Outcome(
            decision_id=row.decision.id,
            status="answered",
            answer=None,
            trace=(),
            cost=Cost(),
            steps=0.0,
            stop_reason=IMPORTED,
            error=None,
            run_by=row.decision.run_by,
            made_by={IMPORTED: self.origin, "late": row.late},
            made_at=row.decision.made_at,
        )

    def _conflict(self, row: Logged, name: str, message: str) -> Conflict:
        where = f"{self.source}:{row.line}"
        if not row.line:  # made of a table
            where = f"{self.source} {row.decision.query.text:.60} {row.decision.arm}"
        elsewhere = IMPORTED in row.decision.facts and not self.remade
        remedy = f"correct the row{', or import the file into another ledger (--label)' * elsewhere}"
        return Conflict(message, field=f"{where} {name}", remedy=remedy)


def _feedback(row: Logged) -> Feedback:
    return Feedback(
        id=_feedback_id(row.decision.id),
        decision_id=row.decision.id,
        kind="reward",
        value=row.reward.value,
        source="code",
        received_at=row.decision.made_at if row.feedback_at is None else row.feedback_at,
    )
