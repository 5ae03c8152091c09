"""Segments and database as one: the archived decisions, and the rows of a ledger from both in the order of seq."""

import heapq
import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from ragbandit.router.storage.archive.segments import Segment, read_segment
from ragbandit.router.storage.database import Database
from ragbandit.router.storage.rows import Row
from ragbandit.router.storage.tables import archive_segments, decisions, updates

__all__ = ["archived_decisions", "archived_updates", "rows_of_ledger", "segment_value", "segments"]

#: an update's row, and the row of its decision
Pair = tuple[Row, Row]


def segments(connection: Connection) -> list[Segment]:
    """The sealed segments, in the order of their numbers."""
    rows = connection.execute(select(archive_segments).order_by(archive_segments.c.number)).mappings()
    return [segment_value(row) for row in rows]


def segment_value(row: RowMapping) -> Segment:
    """The segment of a row."""
    return Segment(
        number=row["number"],
        root=row["root"],
        manifest_sha256=row["manifest_sha256"],
        seal=row["seal"],
        decisions=row["decisions"],
        spans={label: (first, last) for label, (first, last) in json.loads(row["spans"]).items()},
        kept=frozenset(json.loads(row["kept"])),
    )


def archived_decisions(database: Database) -> Iterator[tuple[Segment, list[dict[str, Any]]]]:
    """The archived decisions' rows that are not in the database any more, a segment at a time."""
    with database.read() as connection:
        found = segments(connection)
    for segment in found:
        rows = read_segment(segment, tables=[decisions])["decisions"]
        with database.read() as connection:
            ids = [row["id"] for row in rows]
            here = _still_here(connection, ids)
        yield segment, [row for row in rows if row["id"] not in here]


def archived_updates(found: list[Segment], *, label: str, after: int, upto: int | None) -> Iterator[Pair]:
    """The archived updates of a ledger in (after, upto] in the order of seq, each with its decision's row.

    A segment is opened when its first seq is due, and left when its last has been given: in memory are as many as
    overlap. Raises StoreError for a segment that cannot be read.
    """
    ours = [segment for segment in found if label in segment.spans and segment.spans[label][1] > after]
    pending = sorted(ours, key=lambda segment: segment.spans[label][0], reverse=True)
    heads: list[tuple[int, int, Iterator[Pair], Any]] = []
    while pending or heads:
        while pending and (not heads or pending[-1].spans[label][0] <= heads[0][0]):
            segment = pending.pop()
            _push(heads, segment.number, _updates_of(segment, label=label, after=after))
        if not heads:
            continue
        seq, number, rest, pair = heapq.heappop(heads)
        if upto is not None and seq > upto:
            return
        yield pair
        _push(heads, number, rest)


def rows_of_ledger(database: Database, *, label: str, after: int, upto: int | None, page: int) -> Iterator[Pair]:
    """The updates of a ledger in (after, upto], archived or not, in the order of seq, each with its decision's row.

    Rows may move into the archive meanwhile: they leave a gap in the database's seqs, and are then looked for in the
    new segments. A gap that is in both is given as it is: `verify` says what it means. Raises StoreError for a segment
    that cannot be read.
    """
    looked = -1
    while True:
        with database.read() as connection:
            found = segments(connection)
        moved_on = False
        for pair in _merged(database, found, label=label, after=after, upto=upto, page=page):
            seq = pair[0]["seq"]
            if seq != after + 1 and looked != after:
                looked, moved_on = after, True
                break
            yield pair
            after = seq
        if not moved_on:
            return


def _merged(
    database: Database, found: list[Segment], *, label: str, after: int, upto: int | None, page: int
) -> Iterator[Pair]:
    """Both in the order of seq; a row that is in both, since it is just moving, once."""
    both: list[Iterator[Pair]] = [
        _stored(database, label=label, after=after, upto=upto, page=page),
        archived_updates(found, label=label, after=after, upto=upto),
    ]
    last = after
    for pair in heapq.merge(*both, key=lambda pair: int(pair[0]["seq"])):
        if pair[0]["seq"] > last:
            last = pair[0]["seq"]
            yield pair


def _stored(database: Database, *, label: str, after: int, upto: int | None, page: int) -> Iterator[Pair]:
    while upto is None or after < upto:
        with database.read() as connection:
            batch = (
                connection.execute(
                    select(updates)
                    .where(updates.c.policy == label, updates.c.seq > after)
                    .order_by(updates.c.seq)
                    .limit(page if upto is None else min(page, upto - after))
                )
                .mappings()
                .all()
            )
            ids = [row["decision_id"] for row in batch]
            made = connection.execute(select(decisions).where(decisions.c.id.in_(ids))).mappings()
            by_id = {row["id"]: row for row in made}
        for row in batch:
            if upto is None or row["seq"] <= upto:
                yield row, by_id[row["decision_id"]]
        if not batch:
            return
        after = batch[-1]["seq"]


def _push(heads: list[Any], number: int, rest: Iterator[Pair]) -> None:
    pair = next(rest, None)
    if pair is not None:
        heapq.heappush(heads, (pair[0]["seq"], number, rest, pair))


def _updates_of(segment: Segment, *, label: str, after: int) -> Iterator[Pair]:
    rows = read_segment(segment, tables=[updates, decisions])
    made = {row["id"]: row for row in rows["decisions"]}
    for row in rows["updates"]:
        if row["policy"] == label and row["seq"] > after:
            yield row, made[row["decision_id"]]


def _still_here(connection: Connection, ids: list[str]) -> set[str]:
    """Those of the ids that are in the database still: a move that was not finished."""
    here: set[str] = set()
    for start in range(0, len(ids), 1000):
        some = ids[start : start + 1000]
        here.update(connection.execute(select(decisions.c.id).where(decisions.c.id.in_(some))).scalars())
    return here
