"""Ledger transfer: exports the rows of a ledger, and imports the rows of a log into a ledger.

An import appends each row's decision and update to the ledger. A decision that is new to the store also gets

- its reward as one feedback of kind "reward", so that later ledgers can learn it (a default reward gets none);
- an outcome without an answer, so that no worker runs the arm again;
- a closure for every other ledger of the store, so that none of them waits for the decision.
"""

import contextlib
import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, islice
from typing import Any, Final, TypeVar

from sqlalchemy import and_, delete, insert, select

from ragbandit.router.learning.examples import make_update
from ragbandit.router.offline.estimation import Tally
from ragbandit.router.offline.logs import ONLY_PROPENSITY, Logged
from ragbandit.router.serving.checks.questions import ID_PATTERN
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.storage.ledgers.inheritance import inherit, register_policy
from ragbandit.router.storage.ledgers.ledger import Ledger, rows_of_ledger
from ragbandit.router.storage.rows.conversion import (
    canonical,
    decision_row,
    feedback_row,
    read_decision,
    update_row,
    update_value,
)
from ragbandit.router.storage.rows.outcome_rows import outcome_row
from ragbandit.router.storage.rows.waiting import labels_in_use, lock_rows
from ragbandit.router.storage.sql.bulk_insert import Row, insert_new
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Increments
from ragbandit.router.storage.sql.leases import lease_holder
from ragbandit.router.storage.sql.tables import QUERIED_FACTS, closures, decisions, feedback, outcomes, updates, waiting
from ragbandit.shared.errors import Conflict, InvalidInput, NotReady, StoreError
from ragbandit.shared.types import IMPORTED, DecisionId, Feedback, FeedbackId, Json, Outcome, own_feedback_id

T = TypeVar("T")

PAGE = 500
#: columns of a decision that must equal the stored ones even with `remade` (see `import_rows`)
_DRAWN = ("arm", "arms", "pmf")
#: columns of an update that must equal the stored ones even with `remade`
_OF_ANSWER = ("quality", "cost")
#: columns of an update that are not compared, since the ledger sets them
_SET_BY_LEDGER = ("seq", "restarts", "decided")
#: if a decision was imported under a new id, its facts have its id in the log under this key
LOGGED_ID: Final = "logged_id"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportCounts(Tally):
    added: int = 0
    known: int = 0


def ledger_rows(
    ledger: Ledger,
    *,
    since: float | None = None,
    before: float | None = None,
    after: int = 0,
    upto: int | None = None,
) -> Iterator[Logged]:
    """Yield the rows with seqs in (after, upto] whose decisions were made in [since, before). Raises StoreError."""
    for page in _pages(rows_of_ledger(ledger.database, label=ledger.label, after=after, upto=upto, page=PAGE)):
        for row, decided in page:
            decision = read_decision(decided)
            if isinstance(decision, StoreError):
                raise decision
            update = update_value(row, decision=decision)
            if (since is None or decision.made_at >= since) and (before is None or decision.made_at < before):
                yield Logged(
                    decision=decision,
                    reward=update.reward,
                    seq=update.seq,
                    feedback_ids=update.feedback_ids,
                    feedback_at=row["feedback_at"],
                    learned_at=update.made_at,
                    decided=update.decided,
                    restarts=update.restarts,
                )


def import_rows(
    ledger: Ledger,
    rows: Callable[[], Iterable[Logged]],
    *,
    origin: str,
    source: str = "",
    lease_s: float = 10.0,
    patience_s: float = 30.0,
    remade: bool = False,
    progress: Callable[[ImportCounts], None] = lambda _counts: None,
) -> ImportCounts:
    """Append rows to the ledger in their order, a page per transaction. Rows that the ledger already has are skipped.

    rows: called twice, since all rows are checked before the first row is written.
    origin: the format, stored in the facts of rows that this store did not decide.
    source: name of the file, for messages.
    lease_s: lease on the ledger, seconds.
    patience_s: how long to wait for the ledger's learner, seconds.
    remade: True if the rows are computed again for each import, as from a table. Then a row may have other times,
    features and cost weights than the ledger's row of the same id; arm, quality and cost must be equal.
    progress: called after every page with the counts.
    Raises NotReady if a learner keeps the ledger, InvalidInput for a row without pmf, Conflict for one that differs.
    """
    holder = lease_holder("import")
    common: dict[str, Any] = {"ledger": ledger, "source": source, "origin": origin, "remade": remade}
    registered = ledger.policy_row()
    encoder = "" if registered is None else str(registered["encoder_hash"])
    for page in _pages(iter(rows())):
        with ledger.database.read() as connection:
            _ImportPage.of(page, connection=connection, **common).check(encoder)
    counts = ImportCounts()

    def hold() -> None:
        if not ledger.acquire(holder=holder, lease_s=lease_s, patience_s=patience_s):
            remedy = "stop that learner and try again, or import into another ledger with --label"
            raise NotReady(f"a learner holds the ledger {ledger.label!r}", field="label", remedy=remedy)

    try:
        for number, page in enumerate(_pages(iter(rows()))):
            if number == 0:  # an empty log registers nothing: new decisions of the store would wait in its ledger
                _register(ledger, now=time.time())
            hold()
            # Decisions of the log may be in the store already, so the ledger first takes over the store's decisions.
            while inherit(ledger, holder=holder) != "done":
                hold()
            with ledger.writing(holder=holder) as (connection, tally, end):
                import_page = _ImportPage.of(page, connection=connection, **common)
                added = import_page.write(tally, end=end, now=time.time())
            counts = counts.merged(ImportCounts(added=len(added), known=len(page) - len(added)))
            progress(counts)
    finally:
        ledger.release(holder=holder)
    return counts


def _pages(rows: Iterator[T]) -> Iterator[list[T]]:
    while page := list(islice(rows, PAGE)):
        yield page


def _register(ledger: Ledger, *, now: float) -> None:
    """Register the ledger unless a router already has. New decisions of the store then wait in it, too."""
    if ledger.policy_row() is None:
        with contextlib.suppress(Conflict):  # a router has registered it in the meantime
            register_policy(
                ledger.database, label=ledger.label, algorithm=IMPORTED, params="{}", encoder_hash="", now=now
            )


def _mark_imported(row: Logged, *, origin: str) -> Logged:
    """Mark the row IMPORTED, since its draw cannot be repeated from this store's secret."""
    if ONLY_PROPENSITY in row.decision.facts:
        message = "has the probability of the drawn arm only, and a ledger needs that of every arm"
        raise InvalidInput(message, field=f"line {row.line} pmf", remedy="log the whole pmf; `replay --log` needs none")
    if IMPORTED in row.decision.facts:
        return row
    return replace(row, decision=replace(row.decision, facts={**row.decision.facts, IMPORTED: origin}))


def _differing_columns(stored: Row, row: Mapping[str, Any]) -> list[str]:
    """Columns of `decisions` whose values differ, except QUERIED_FACTS: they follow from others, and may be empty."""
    return [name for name, value in row.items() if name not in QUERIED_FACTS and stored[name] != value]


def _prepare(rows: Sequence[Logged], *, ledger: Ledger, connection: Connection, origin: str) -> list[Logged]:
    """The rows as they are stored. Decisions of this store stay as they are, all other rows are marked IMPORTED.

    A row gets a new id if the service does not allow its id, or the store has it for another decision. The new id
    depends on the ledger's label and the old id. Rows that the ledger has learned keep their ids.
    """
    ids = [row.decision.id for row in rows]
    in_ledger = updates.c.policy == ledger.label, updates.c.decision_id.in_(ids)
    learned = set(connection.execute(select(updates.c.decision_id).where(*in_ledger)).scalars())
    stored = {row["id"]: row for row in connection.execute(select(decisions).where(decisions.c.id.in_(ids))).mappings()}

    def is_stored(row: Logged) -> bool:
        values = stored.get(row.decision.id)
        return values is not None and not _differing_columns(values, decision_row(row.decision))

    prepared = []
    for row in rows:
        key = row.decision.id
        if not is_stored(row):
            row = _mark_imported(row, origin=origin)
            is_other = key in stored and not is_stored(row)
            if key not in learned and (is_other or not ID_PATTERN.fullmatch(key)):
                row = _with_new_id(row, label=ledger.label)
        prepared.append(row)
    return prepared


def _with_new_id(row: Logged, *, label: str) -> Logged:
    key = row.decision.id
    new_id = DecisionId(f"{IMPORTED}-{hashlib.sha256(canonical([label, key]).encode()).hexdigest()[:40]}")
    facts = {**row.decision.facts, LOGGED_ID: key}
    return replace(
        row, decision=replace(row.decision, id=new_id, query=replace(row.decision.query, id=new_id), facts=facts)
    )


def _feedback_id(decision_id: str) -> FeedbackId:
    return own_feedback_id("imported", digest=hashlib.sha256(decision_id.encode()).hexdigest()[:40])


@dataclass(frozen=True, kw_only=True, slots=True)
class _ImportPage:
    """A page of rows, checked against the store and written within one transaction."""

    ledger: Ledger
    connection: Connection
    rows: Sequence[Logged]
    decision_rows: Mapping[DecisionId, Mapping[str, Any]]
    source: str
    origin: str
    remade: bool

    @classmethod
    def of(
        cls, page: Sequence[Logged], *, ledger: Ledger, connection: Connection, source: str, origin: str, remade: bool
    ) -> "_ImportPage":
        if remade:
            rows = [_mark_imported(row, origin=origin) for row in page]
        else:
            rows = _prepare(page, ledger=ledger, connection=connection, origin=origin)
        decision_rows = {row.decision.id: decision_row(row.decision) for row in rows}
        about: dict[str, Any] = {"source": source, "origin": origin, "remade": remade}
        return cls(ledger=ledger, connection=connection, rows=rows, decision_rows=decision_rows, **about)

    def check(self, encoder: str) -> None:
        """Raise Conflict for a row that contradicts the store, or has features of another encoder than `encoder`."""
        for row in self.rows:
            row_encoder = row.decision.encoder_hash
            if encoder and row_encoder != encoder:
                message = f"the ledger learns from encoder {encoder[:12]}, the row has {row_encoder[:12]!r}"
                raise self._conflict(row, "encoder_hash", message)
        self._check_decisions(new_ids=())
        self._learned_ids()

    def write(self, tally: Increments, *, end: int, now: float) -> list[Logged]:
        """Write the rows that the ledger lacks, from seq end + 1. Returns the written rows. Raises Conflict."""
        inserted = insert_new(self.connection, decisions, list(self.decision_rows.values()), key="id")
        new_ids: set[str] = set(compress(self.decision_rows, inserted))
        tally.add("decided", len(new_ids))
        self._check_decisions(new_ids=new_ids)
        learned_ids = self._learned_ids()
        added = [row for row in self.rows if row.decision.id not in learned_ids]
        self._remove_waiting([row for row in added if row.decision.id not in new_ids], tally=tally)
        if added:
            values = [self._update_row(row, seq=end + number) for number, row in enumerate(added, start=1)]
            self.connection.execute(insert(updates), values)
            tally.count_updates(values)
        self._complete_new([row for row in added if row.decision.id in new_ids], tally=tally, now=now)
        return added

    def _check_decisions(self, *, new_ids: Collection[str]) -> None:
        """Raise Conflict if a stored decision differs from its row; if `remade`, only the columns _DRAWN count."""
        rows = {row.decision.id: row for row in self.rows if row.decision.id not in new_ids}
        if not rows:
            return
        for stored in self.connection.execute(select(decisions).where(decisions.c.id.in_(rows))).mappings().all():
            row = rows[stored["id"]]
            different = _differing_columns(stored, self.decision_rows[row.decision.id])
            if self.remade:
                different = [name for name in different if name in _DRAWN]
            if different:
                name = next((name for name in different if name != "body_hash"), different[0])
                raise self._conflict(row, name, f"the store has another decision {row.decision.id!r}")

    def _learned_ids(self) -> set[str]:
        """Ids of the rows that the ledger has learned. Raises Conflict if it learned one with other values."""
        by_id = {row.decision.id: row for row in self.rows}
        in_ledger = updates.c.policy == self.ledger.label, updates.c.decision_id.in_(list(by_id))
        learned_ids: set[str] = set()
        for stored in self.connection.execute(select(updates).where(*in_ledger)).mappings():
            row = by_id[stored["decision_id"]]
            values = self._update_row(row, seq=stored["seq"])
            if self.remade:  # quality and cost can be compared only if the presets agree
                values = {name: values[name] for name in _OF_ANSWER if stored["preset"] == values["preset"]}
            for name, value in values.items():
                if name not in _SET_BY_LEDGER and stored[name] != value:
                    learned = f"the ledger learned {stored[name]!r} from {row.decision.id!r}"
                    raise self._conflict(row, name, f"the row has {value!r}, but {learned}")
            learned_ids.add(row.decision.id)
        return learned_ids

    def _remove_waiting(self, rows: Sequence[Logged], *, tally: Increments) -> None:
        """Remove the rows' decisions from the waiting list. Raises Conflict if this ledger has closed one of them."""
        if not rows:
            return
        ids = {row.decision.id for row in rows}
        in_ledger = and_(waiting.c.policy == self.ledger.label, waiting.c.decision_id.in_(ids))
        waiting_rows = lock_rows(self.connection, in_ledger)
        waiting_ids = {row["decision_id"] for row in waiting_rows}
        for row in rows:
            if row.decision.id not in waiting_ids:
                raise self._conflict(row, "id", f"this ledger has closed {row.decision.id!r} without learning it")
        self.connection.execute(delete(waiting).where(in_ledger))
        tally.count_waiting(waiting_rows, sign=-1)

    def _update_row(self, row: Logged, *, seq: int) -> dict[str, Any]:
        decision, label = row.decision, self.ledger.label
        # Not the time of the import: the same file gives the same rows each time it is imported.
        learned_at = decision.made_at if row.learned_at is None else row.learned_at
        ids = row.feedback_ids
        update = make_update(decision, row.reward, label=label, seq=seq, now=learned_at, feedback_ids=ids)
        return update_row(update, feedback_at=row.feedback_at)

    def _complete_new(self, rows: Sequence[Logged], *, tally: Increments, now: float) -> None:
        if not rows:
            return
        labels = labels_in_use(self.connection, label=self.ledger.label)() - {self.ledger.label}
        reason = f"imported into the ledger {self.ledger.label!r}"
        common = {"state": "closed", "field": None, "reason": reason, "made_at": now}
        closed = [
            {"policy": label, "decision_id": row.decision.id, **common} for label in sorted(labels) for row in rows
        ]
        if closed:
            self.connection.execute(insert(closures), closed)
            tally.count_closures(closed)
        self.connection.execute(insert(outcomes), [outcome_row(self._outcome(row)) for row in rows])
        judged = [feedback_row(_feedback(row)) for row in rows if row.reward.source == "explicit"]
        tally.add("feedback", sum(insert_new(self.connection, feedback, judged, key="id")))

    def _outcome(self, row: Logged) -> Outcome:
        made_by: dict[str, Json] = {IMPORTED: self.origin}
        reported = make_outcome(
            decision_id=row.decision.id, now=row.decision.made_at, status="answered", stop_reason=IMPORTED
        )
        return replace(reported, run_by=row.decision.run_by, made_by=made_by)

    def _conflict(self, row: Logged, name: str, message: str) -> Conflict:
        where = f"{self.source}:{row.line}"
        if not row.line:  # a row that was made from a table has no line
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
