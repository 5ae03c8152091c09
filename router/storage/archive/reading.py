"""Segments and database as one: the archived decisions, and the rows of a ledger from both in the order of seq."""

import heapq
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, Table, select

from ragbandit.router.storage.archive.segments import (
    ARCHIVED,
    Segment,
    decision_key,
    read_segment,
    seal_of,
    sealed_columns,
)
from ragbandit.router.storage.rows.mapping import Form, Row, TableRows
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import archive_segments, decisions, updates
from ragbandit.shared.errors import StoreError

#: segments that a reader keeps in memory
_KEPT = 2
#: rows of `archive_segments`
SEGMENTS: Final = TableRows(
    archive_segments,
    Segment,
    spans=Form(
        write=lambda spans: json.dumps(dict(spans)),
        read=lambda text: {label: (first, last) for label, (first, last) in json.loads(text).items()},
    ),
    kept=Form(write=lambda kept: json.dumps(sorted(kept)), read=lambda text: frozenset(json.loads(text))),
)
#: an update's row, and the row of its decision where it was asked for
Pair = tuple[Row, Row | None]


def segments(connection: Connection) -> list[Segment]:
    """The sealed segments, in the order of their numbers."""
    rows = connection.execute(select(archive_segments).order_by(archive_segments.c.number)).mappings()
    return [SEGMENTS.value(row) for row in rows]


def archived_spans(connection: Connection, *, label: str) -> list[tuple[int, int]]:
    """(first seq, last seq) of a ledger's updates in every segment that has some."""
    spans = (json.loads(text) for text in connection.execute(select(archive_segments.c.spans)).scalars())
    return [(int(span[label][0]), int(span[label][1])) for span in spans if label in span]


class ArchivedRows:
    """The archived rows of a ledger, for readers that go through it in pages; the last two segments stay in memory."""

    def __init__(self, database: Database, *, label: str) -> None:
        self.database, self.label = database, label
        self._read: OrderedDict[tuple[str, str], list[dict[str, Any]]] = OrderedDict()

    def updates(self, first: int, last: int) -> dict[int, Row]:
        """Seq -> archived update, for first to last."""
        return {
            row["seq"]: row
            for segment in self._segments(first, last)
            for row in self._rows(segment, updates)
            if row["policy"] == self.label and first <= row["seq"] <= last
        }

    def beside(self, table: Table, first: int, last: int) -> list[dict[str, Any]]:
        """The rows of a table that are about the decisions of these updates."""
        rows = []
        for segment in self._segments(first, last):
            wanted = {
                row["decision_id"]
                for row in self._rows(segment, updates)
                if row["policy"] == self.label and first <= row["seq"] <= last
            }
            rows += [row for row in self._rows(segment, table) if row[decision_key(table)] in wanted]
        return rows

    def versions(self) -> dict[str, list[Segment]]:
        """Policy version -> segments with decisions that it made for this ledger."""
        with self.database.read() as connection:
            sealed = segments(connection)
        by_version: dict[str, list[Segment]] = {}
        for segment in sealed:
            rows = read_segment(segment, tables=[decisions])["decisions"]
            for version in {row["version"] for row in rows if row["policy"] == self.label}:
                by_version.setdefault(version, []).append(segment)
        return by_version

    def decided_by(self, version: str, *, among: Sequence[Segment]) -> Iterator[Row]:
        """The decisions of this ledger that a policy version made, in these segments."""
        for segment in among:
            for row in self._rows(segment, decisions):
                if row["policy"] == self.label and row["version"] == version:
                    yield row

    def _segments(self, first: int, last: int) -> list[Segment]:
        with self.database.read() as connection:
            sealed = segments(connection)
        spans = [(segment, segment.spans.get(self.label)) for segment in sealed]
        return [segment for segment, span in spans if span and span[0] <= last and span[1] >= first]

    def _rows(self, segment: Segment, table: Table) -> list[dict[str, Any]]:
        key = segment.manifest_sha256, table.name
        if key not in self._read:
            self._read[key] = read_segment(segment, tables=[table])[table.name]
        self._read.move_to_end(key)
        while len({manifest for manifest, _ in self._read}) > _KEPT:
            self._read.popitem(last=False)
        return self._read[key]


def archived_decisions(database: Database) -> Iterator[tuple[Segment, list[dict[str, Any]]]]:
    """The archived decisions' rows that are not in the database any more, a segment at a time."""
    with database.read() as connection:
        sealed = segments(connection)
    for segment in sealed:
        rows = read_segment(segment, tables=[decisions])["decisions"]
        with database.read() as connection:
            here = _still_here(connection, [row["id"] for row in rows])
        yield segment, [row for row in rows if row["id"] not in here]


def archived_rows(database: Database, decision_id: str) -> dict[str, list[dict[str, Any]]] | None:
    """The rows of an archived decision, by table name; None where no segment has it.

    It opens the segments, the newest first, until one has it: seconds for a large archive. Raises StoreError.
    """
    with database.read() as connection:
        sealed = segments(connection)
    for segment in reversed(sealed):
        rows = read_segment(segment, tables=[decisions])["decisions"]
        if any(row["id"] == decision_id for row in rows):
            tables = read_segment(segment)
            keys = {table.name: decision_key(table) for table in ARCHIVED}
            return {name: [row for row in of if row[keys[name]] == decision_id] for name, of in tables.items()}
    return None


def broken_seals(database: Database) -> Iterator[str]:
    """What is wrong with the segments, one line each: a file missing or changed, a seal that does not follow."""
    with database.read() as connection:
        sealed = segments(connection)
    before = ""
    for segment in sealed:
        try:
            # All rows, also those of decisions that stayed in the database: the seal is older than that.
            tables = read_segment(replace(segment, kept=frozenset()))
        except StoreError as error:
            yield str(error)
        else:
            if seal_of(tables, columns=sealed_columns(segment), before=before) != segment.seal:
                yield f"{segment.name} in {segment.root} does not give its seal: it or the one before was changed"
        before = segment.seal


def rows_of_ledger(
    database: Database, *, label: str, after: int, upto: int | None, page: int
) -> Iterator[tuple[Row, Row]]:
    """`update_rows`, each with its decision's row."""
    for row, decision in _Ledger(database=database, label=label, page=page, joined=True).read(after=after, upto=upto):
        assert decision is not None
        yield row, decision


def update_rows(database: Database, *, label: str, after: int, upto: int | None, page: int) -> Iterator[Row]:
    """The updates of a ledger in (after, upto], archived or not, in the order of seq.

    Rows may move into the archive meanwhile: they leave a gap in the database's seqs, and are then looked for in the
    new segments. A gap that is in both is given as it is: `verify` says what it means. Raises StoreError for a segment
    that cannot be read.
    """
    for row, _ in _Ledger(database=database, label=label, page=page, joined=False).read(after=after, upto=upto):
        yield row


class _Ledger:
    """The reader behind both. page: updates that are read from the database at once. joined: with decisions."""

    def __init__(self, *, database: Database, label: str, page: int, joined: bool) -> None:
        self.database, self.label, self.page, self.joined = database, label, page, joined

    def read(self, *, after: int, upto: int | None) -> Iterator[Pair]:
        looked = -1
        while True:
            with self.database.read() as connection:
                sealed = [segment for segment in segments(connection) if self.label in segment.spans]
            moved_on = False
            for pair in self._merged(sealed, after=after, upto=upto):
                seq = pair[0]["seq"]
                if seq != after + 1 and looked != after:
                    looked, moved_on = after, True
                    break
                yield pair
                after = seq
            if not moved_on:
                return

    def _merged(self, found: list[Segment], *, after: int, upto: int | None) -> Iterator[Pair]:
        """Both in the order of seq; a row that is in both, since it is just moving, once."""
        last = after
        both = self._stored(after=after, upto=upto), self._archived(found, after=after, upto=upto)
        for pair in heapq.merge(*both, key=lambda pair: int(pair[0]["seq"])):
            if pair[0]["seq"] > last:
                last = pair[0]["seq"]
                yield pair

    def _stored(self, *, after: int, upto: int | None) -> Iterator[Pair]:
        while upto is None or after < upto:
            query = select(updates).where(updates.c.policy == self.label, updates.c.seq > after)
            if upto is not None:
                query = query.where(updates.c.seq <= upto)
            by_id: dict[str, RowMapping] = {}
            with self.database.read() as connection:
                batch = connection.execute(query.order_by(updates.c.seq).limit(self.page)).mappings().all()
                if self.joined:
                    ids = [row["decision_id"] for row in batch]
                    joined = connection.execute(select(decisions).where(decisions.c.id.in_(ids))).mappings()
                    by_id = {row["id"]: row for row in joined}
            for row in batch:
                yield row, by_id[row["decision_id"]] if self.joined else None
            if not batch:
                return
            after = batch[-1]["seq"]

    def _archived(self, found: list[Segment], *, after: int, upto: int | None) -> Iterator[Pair]:
        """The archived ones in the order of seq.

        A segment is opened when its first seq is due, and left when its last has been given: in memory are as many as
        overlap.
        """
        spans = {segment.number: segment.spans[self.label] for segment in found}
        ours = [segment for segment in found if spans[segment.number][1] > after]
        pending = sorted(ours, key=lambda segment: spans[segment.number][0], reverse=True)
        heads: list[tuple[int, int, Iterator[Pair], Pair]] = []

        def push(number: int, rest: Iterator[Pair]) -> None:
            pair = next(rest, None)
            if pair is not None:
                heapq.heappush(heads, (pair[0]["seq"], number, rest, pair))

        while pending or heads:
            while pending and (not heads or spans[pending[-1].number][0] <= heads[0][0]):
                segment = pending.pop()
                push(segment.number, self._of_segment(segment, after=after))
            if not heads:
                continue
            seq, number, rest, pair = heapq.heappop(heads)
            if upto is not None and seq > upto:
                return
            yield pair
            push(number, rest)

    def _of_segment(self, segment: Segment, *, after: int) -> Iterator[Pair]:
        rows = read_segment(segment, tables=[updates, decisions] if self.joined else [updates])
        by_id = {row["id"]: row for row in rows["decisions"]} if self.joined else {}
        for row in rows["updates"]:
            if row["policy"] == self.label and row["seq"] > after:
                yield row, by_id[row["decision_id"]] if self.joined else None


def _still_here(connection: Connection, ids: list[str]) -> set[str]:
    """Those of the ids that are in the database still: a move that was not finished."""
    here: set[str] = set()
    for start in range(0, len(ids), 1000):
        some = ids[start : start + 1000]
        here.update(connection.execute(select(decisions.c.id).where(decisions.c.id.in_(some))).scalars())
    return here
