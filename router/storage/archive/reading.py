"""Segments and database as one: the archived decisions, and the rows of a ledger from both in the order of seq."""

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, Table, func, select

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

#: segments that a reader keeps in memory, or all that a page is in
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


def segments(connection: Connection) -> list[Segment]:
    """The sealed segments, in the order of their numbers."""
    rows = connection.execute(select(archive_segments).order_by(archive_segments.c.number)).mappings()
    return [SEGMENTS.value(row) for row in rows]


def archived_spans(connection: Connection, *, label: str) -> list[tuple[int, int]]:
    """(first seq, last seq) of a ledger's updates in every segment that has some."""
    spans = (json.loads(text) for text in connection.execute(select(archive_segments.c.spans)).scalars())
    return [(int(span[label][0]), int(span[label][1])) for span in spans if label in span]


class ArchivedRows:
    """The archived rows of a ledger, for readers that go through it in pages: a segment is opened once for them."""

    def __init__(self, database: Database, *, label: str) -> None:
        self.database, self.label = database, label
        self._read: OrderedDict[tuple[str, str], list[dict[str, Any]]] = OrderedDict()
        self._room = _KEPT

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
        about = {row["decision_id"] for row in self.updates(first, last).values()}
        key = decision_key(table)
        return [
            row for segment in self._segments(first, last) for row in self._rows(segment, table) if row[key] in about
        ]

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
            spans = [(segment, segment.spans.get(self.label)) for segment in segments(connection)]
        overlapping = [segment for segment, span in spans if span and span[0] <= last and span[1] >= first]
        self._room = max(_KEPT, len(overlapping))
        return overlapping

    def _rows(self, segment: Segment, table: Table) -> list[dict[str, Any]]:
        key = segment.manifest_sha256, table.name
        if key not in self._read:
            self._read[key] = read_segment(segment, tables=[table])[table.name]
        self._read.move_to_end(key)
        while len({manifest for manifest, _ in self._read}) > self._room:
            self._read.popitem(last=False)
        return self._read[key]


def archived_decisions(database: Database) -> Iterator[tuple[Segment, list[dict[str, Any]]]]:
    """The archived decisions' rows that are not in the database any more, a segment at a time."""
    with database.read() as connection:
        sealed = segments(connection)
    for segment in sealed:
        rows = read_segment(segment, tables=[decisions])["decisions"]
        moving = select(decisions.c.id).where(decisions.c.id.in_([row["id"] for row in rows]))
        with database.read() as connection:
            here = set(connection.execute(moving).scalars())
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
    archived = ArchivedRows(database, label=label)
    for batch in _pages(archived, after=after, upto=upto, page=page):
        query = select(decisions).where(decisions.c.id.in_([row["decision_id"] for row in batch]))
        with database.read() as connection:
            by_id: dict[str, Row] = {row["id"]: row for row in connection.execute(query).mappings()}
        if len(by_id) < len(batch):
            rows = archived.beside(decisions, batch[0]["seq"], batch[-1]["seq"])
            by_id = {row["id"]: row for row in rows} | by_id
        for row in batch:
            yield row, by_id[row["decision_id"]]


def update_rows(database: Database, *, label: str, after: int, upto: int | None, page: int) -> Iterator[Row]:
    """The updates of a ledger in (after, upto], archived or not, in the order of seq; those too that are added now.

    page: seqs that are read at once. A gap that is in database and archive is given as it is: `verify` says what it
    means. Raises StoreError for a segment that cannot be read.
    """
    for batch in _pages(ArchivedRows(database, label=label), after=after, upto=upto, page=page):
        yield from batch


def _pages(archived: ArchivedRows, *, after: int, upto: int | None, page: int) -> Iterator[list[Row]]:
    """The database is asked first: rows that leave it meanwhile are in a segment that was sealed before."""
    database, label = archived.database, archived.label
    while (end := _end(database, label=label, upto=upto)) > after:
        last = min(after + page, end)
        query = select(updates).where(updates.c.policy == label, updates.c.seq > after, updates.c.seq <= last)
        with database.read() as connection:
            batch: list[Row] = list(connection.execute(query.order_by(updates.c.seq)).mappings())
        if len(batch) < last - after:
            rows = archived.updates(after + 1, last) | {row["seq"]: row for row in batch}
            batch = [rows[seq] for seq in sorted(rows)]
        if batch:
            yield batch
        after = last


def _end(database: Database, *, label: str, upto: int | None) -> int:
    """The last seq of the ledger, or `upto` where that comes first."""
    stored = select(func.coalesce(func.max(updates.c.seq), 0)).where(updates.c.policy == label)
    with database.read() as connection:
        ends = [connection.execute(stored).scalar_one(), *(last for _, last in archived_spans(connection, label=label))]
    return int(max(ends) if upto is None else min(upto, max(ends)))
