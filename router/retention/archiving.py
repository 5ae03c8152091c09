"""Move decisions that every ledger is done with from the database into a new segment.

Files first, then one row in `archive_segments`, then the rows leave in batches. Whatever dies in between, the next
call takes it up: files without a row are written again, and a segment whose rows are still in the database is emptied
first. Nothing is ever in neither place.
"""

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, insert, or_, select, true, update

from ragbandit.router.storage.archive.reading import SEGMENTS, segments
from ragbandit.router.storage.archive.segments import (
    ARCHIVED,
    Rows,
    Segment,
    decision_key,
    read_segment,
    rewrite_segment,
    sweep_segment,
    write_segment,
)
from ragbandit.router.storage.sql.counters import moving
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import (
    archive_segments,
    check_due,
    closures,
    decisions,
    feedback,
    judge_due,
    policies,
    updates,
    waiting,
)

#: most decisions of a segment, so that it fits in memory
SEGMENT_DECISIONS: Final = 20_000
#: decisions whose rows are read, or leave, in one transaction
_BATCH: Final = 500
#: tables whose rows are counted
_COUNTED: Final = (decisions, feedback, updates, closures)


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """What a call has done."""

    segments: int
    decisions: int
    #: decisions that got rows between being sealed and leaving: they stay
    kept: int


def archivable(database: Database, *, before: float) -> int:
    """Decisions made before that time (seconds since 1970) that every ledger is done with."""
    with database.read() as connection:
        query = select(func.count()).select_from(decisions).where(decisions.c.made_at < before, _done(connection))
        return int(connection.execute(query).scalar_one())


def archive(
    database: Database,
    *,
    root: str,
    before: float,
    now: float,
    size: int = SEGMENT_DECISIONS,
    progress: Callable[[int], None] = lambda _moved: None,
) -> Moved:
    """Move what is archivable into segments under `root`, oldest first. One process at a time may call it.

    progress: told after every batch how many decisions have left. Raises StoreError, with nothing lost.
    """
    written = moved = 0
    kept: set[str] = set()  # for the next call: what is judged again and again must not hold this one up
    with database.read() as connection:
        unfinished = connection.execute(select(archive_segments).where(~archive_segments.c.moved)).mappings().all()
    pending = [SEGMENTS.value(row) for row in unfinished]
    while True:
        for sealed in pending:
            left, stayed = _empty(database, sealed, before=moved, progress=progress)
            moved, kept = moved + left, kept | stayed
        segment = _sealed_next(database, root=root, before=before, now=now, size=size, without=kept)
        if segment is None:
            return Moved(segments=written, decisions=moved, kept=len(kept))
        written += 1
        pending = [segment]


def change_segment(database: Database, segment: Segment, tables: Mapping[str, Rows]) -> Segment:
    """Put other values into the columns of a segment that its seal does not cover; the old files are deleted.

    tables: all of its rows, as `read_segment` gives them where nothing is kept. A call that was cut off is repeated:
    either segment is whole at any time. Raises StoreError.
    """
    changed = rewrite_segment(segment, tables)
    with database.write() as connection:
        here = archive_segments.c.number == segment.number
        connection.execute(update(archive_segments).where(here).values(manifest_sha256=changed.manifest_sha256))
    sweep_segment(changed)
    return changed


def _done(connection: Connection) -> ColumnElement[bool]:
    """Every ledger has learned or closed the decision, no ledger ends with it, and it waits for no judge and no check.

    The last update of a ledger stays: it says where the ledger goes on.
    """
    rows = connection.execute(select(policies.c.label, policies.c.retired_at).order_by(policies.c.label)).all()
    known, open_ones = [row.label for row in rows], [row.label for row in rows if row.retired_at is None]
    ends = [
        connection.execute(
            select(updates.c.decision_id).where(updates.c.policy == label).order_by(updates.c.seq.desc()).limit(1)
        ).scalar()
        for label in known
    ]
    finished = [
        or_(*(exists().where(t.c.policy == label, t.c.decision_id == decisions.c.id) for t in (updates, closures)))
        for label in open_ones
    ]
    waits = exists().where(waiting.c.decision_id == decisions.c.id)  # for a label that is being retired
    judged = [~exists().where(due.c.decision_id == decisions.c.id) for due in (judge_due, check_due)]
    return and_(true(), decisions.c.id.not_in([key for key in ends if key]), ~waits, *judged, *finished)


def _sealed_next(
    database: Database, *, root: str, before: float, now: float, size: int, without: Set[str]
) -> Segment | None:
    """Write and seal the next segment; None if there is nothing more to move."""
    with database.read() as connection:
        oldest = select(decisions.c.id).where(
            decisions.c.made_at < before, decisions.c.id.not_in(sorted(without)), _done(connection)
        )
        ids = list(connection.execute(oldest.order_by(decisions.c.made_at, decisions.c.id).limit(size)).scalars())
        if not ids:
            return None
        earlier = segments(connection)
        tables: dict[str, list[Any]] = {table.name: [] for table in ARCHIVED}
        for start in range(0, len(ids), _BATCH):
            for table in ARCHIVED:
                tables[table.name] += _rows_of(connection, table, ids[start : start + _BATCH])
    segment = write_segment(
        root,
        tables,
        number=1 + max((one.number for one in earlier), default=0),
        seal_before=earlier[-1].seal if earlier else "",
    )
    row = SEGMENTS.row(segment) | {"made_before": before, "made_at": now, "moved": False}
    with database.write() as connection:
        connection.execute(insert(archive_segments), [row])
    sweep_segment(segment)  # what a call that was cut off has left
    return segment


def _empty(
    database: Database, segment: Segment, *, before: int, progress: Callable[[int], None]
) -> tuple[int, set[str]]:
    """Take the rows of a sealed segment out of the database; how many left, and the decisions that stay."""
    sealed = read_segment(segment)
    known = {table.name: {_key(table, row) for row in sealed[table.name]} for table in ARCHIVED}
    ids = [row["id"] for row in sealed["decisions"]]
    left, kept = 0, set(segment.kept)
    for start in range(0, len(ids), _BATCH):
        some = ids[start : start + _BATCH]
        with database.write() as connection, moving(connection, shard=database.shard) as moves:
            # Locked: a row about one of these that is being written now is seen below, or is refused.
            here = set(
                connection.execute(select(decisions.c.id).where(decisions.c.id.in_(some)).with_for_update()).scalars()
            )
            # Not what waits for a label that was registered since: it is about to inherit what has not left.
            done = select(decisions.c.id).where(decisions.c.id.in_(some), _done(connection))
            newer = here.difference(connection.execute(done).scalars())
            newer |= {
                row[decision_key(table)]
                for table in ARCHIVED
                for row in _rows_of(connection, table, some)
                if _key(table, row) not in known[table.name]
            }
            gone = sorted(here - newer)
            moves.archived({table.name: _rows_of(connection, table, gone) for table in _COUNTED})
            for table in reversed(ARCHIVED):
                connection.execute(delete(table).where(table.c[decision_key(table)].in_(gone)))
            if newer - kept:
                kept |= newer
                connection.execute(
                    update(archive_segments)
                    .where(archive_segments.c.number == segment.number)
                    .values(kept=json.dumps(sorted(kept)))
                )
        left += len(gone)
        progress(before + left)
    with database.write() as connection:
        connection.execute(
            update(archive_segments).where(archive_segments.c.number == segment.number).values(moved=True)
        )
    return left, kept


def _key(table: Any, row: Any) -> tuple[Any, ...]:
    return tuple(row[column.name] for column in table.primary_key.columns)


def _rows_of(connection: Connection, table: Any, ids: Sequence[str]) -> Sequence[Any]:
    return connection.execute(select(table).where(table.c[decision_key(table)].in_(ids))).mappings().all()
